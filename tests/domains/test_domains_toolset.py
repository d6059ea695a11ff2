import pytest

from limosa.base.errors import SandboxError
from limosa.base.messages import ToolCall, ToolResult
from limosa.domains.toolset import Toolset, make_spec

SPEC = make_spec("look", "Look.", place="string", count="integer", size="number", deep="boolean")
GOOD = {"place": "attic", "count": 2, "size": 1.5, "deep": False}


async def look(place: str, count: int, size: float, deep: bool) -> ToolResult:
    return ToolResult(f"{place} {count} {size} {deep}")


async def die(place: str) -> ToolResult:
    raise SandboxError("dead")


TOOLS = Toolset([(SPEC, look), (make_spec("die", "Die.", place="string"), die)])


async def test_a_good_call_runs_the_function():
    assert await TOOLS.call(ToolCall("look", GOOD)) == ToolResult("attic 2 1.5 False")
    assert await TOOLS.call(ToolCall("look", {**GOOD, "size": 3})) == ToolResult("attic 2 3 False")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("peek", GOOD), "error: no tool peek, use look, die"),
        (ToolCall("look", {"place": "attic"}), "error: missing argument count"),
        (ToolCall("look", {**GOOD, "more": 1}), "error: unknown argument more"),
        (ToolCall("look", {**GOOD, "place": 3}), "error: argument place must be a string"),
        (ToolCall("look", {**GOOD, "place": None}), "error: argument place must be a string"),
        (ToolCall("look", {**GOOD, "count": 2.5}), "error: argument count must be a integer"),
        (ToolCall("look", {**GOOD, "count": True}), "error: argument count must be a integer"),
        (ToolCall("look", {**GOOD, "deep": 1}), "error: argument deep must be a boolean"),
    ],
)
async def test_a_bad_call_is_an_observation(call: ToolCall, said: str):
    assert await TOOLS.call(call) == ToolResult(said, is_error=True)


async def test_a_long_bad_name_stays_short():
    result = await TOOLS.call(ToolCall("x" * 5000, {}))
    assert result.is_error
    assert len(result.content) < 100


async def test_infrastructure_trouble_passes_through():
    with pytest.raises(SandboxError):
        await TOOLS.call(ToolCall("die", {"place": "here"}))


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="repeat"):
        Toolset([(SPEC, look), (SPEC, look)])


def test_specs_are_json_schemas_in_order():
    assert [spec.name for spec in TOOLS.specs] == ["look", "die"]
    assert SPEC.parameters["required"] == ["place", "count", "size", "deep"]
    assert SPEC.parameters["properties"]["count"] == {"type": "integer"}
