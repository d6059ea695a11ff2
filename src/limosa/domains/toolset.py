"""Tools by name: checks a call against its schema and runs the function behind it.

Every environment answers its calls through a `Toolset`. A wrong name or argument is a short
observation for the model; what the function itself raises (a dead sandbox) passes through.
Leaves out nested schemas: arguments are flat, of the four scalar types.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from limosa.base.messages import ToolCall, ToolResult, ToolSpec

ToolFunction = Callable[..., Awaitable[ToolResult]]

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


class Toolset:
    """Tools of one environment, given as (spec, async function of the named arguments)."""

    def __init__(self, tools: Sequence[tuple[ToolSpec, ToolFunction]]) -> None:
        self.specs: tuple[ToolSpec, ...] = tuple(spec for spec, _ in tools)
        self._tools = {spec.name: (spec, function) for spec, function in tools}
        assert len(self._tools) == len(tools), f"tool names repeat: {[s.name for s in self.specs]}"
        for spec in self.specs:
            for name, schema in spec.parameters.get("properties", {}).items():
                assert schema["type"] in TYPES, f"{spec.name}.{name}: unknown type {schema}"

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a call; a bad name or argument is a result with `is_error`.

        Raises: whatever the tool's function raises, such as SandboxError.
        """
        if call.name not in self._tools:
            return make_error(f"no tool {call.name[:40]}, use {', '.join(self._tools)}")
        spec, function = self._tools[call.name]
        fault = _find_fault(spec, call.arguments)
        if fault:
            return make_error(fault)
        return await function(**call.arguments)


def make_spec(name: str, description: str, **types: str) -> ToolSpec:
    """A tool whose parameters are all required, each given as name=type."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in types.items()},
        "required": list(types),
    }
    return ToolSpec(name, description, parameters)


def make_error(text: str) -> ToolResult:
    """An observation of failure, in the one form that all domains use."""
    return ToolResult(f"error: {text}", is_error=True)


def _find_fault(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    for name in spec.parameters.get("required", ()):
        if name not in arguments:
            return f"missing argument {name}"
    for name, value in arguments.items():
        if name not in properties:
            return f"unknown argument {name[:40]}"
        kind = properties[name]["type"]
        is_disguised = isinstance(value, bool) and kind != "boolean"  # bool is an int in Python
        if is_disguised or not isinstance(value, TYPES[kind]):
            return f"argument {name} must be a {kind}"
    return ""
