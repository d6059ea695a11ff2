"""A YAML file as a frozen pydantic model; every fault is one `ConfigError` with the way out.

Stricter than YAML: a key stands once, is text, and is known. Neighbours: `config.py` is the file
of a run; other commands' files use `Section` and `load_section` alike. Leaves out names that live
in tables of higher floors: see `config.KnownNames`.
"""

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from limosa.base.errors import ConfigError

S = TypeVar("S", bound="Section")
Location = tuple[int | str, ...]

# What pydantic calls by Python's names, in the words of a YAML file.
EXPECTED = {
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "too_short": "a list with at least {min_length} in it",
}


class Section(BaseModel):
    """A part of a file: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Python counts True as 1; and YAML reads yes, no, on and off as true and false."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise PydanticCustomError(
                "truth", "Input should be a number or text, not true or false"
            )
        return value


def load_section(path: Path, schema: type[S], *, example: str) -> S:
    """Read a file and check its shape; `example` is the path of a file to start from.

    Raises: ConfigError naming key, value, what is accepted, and a hint.
    """
    value = _read_yaml(path, example)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _to_config_error(path, schema, error, example) from None


def name_nearest(name: str, known: Collection[str]) -> str:
    """The end of a hint that names the known word nearest to a wrong one; empty where none is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _read_yaml(path: Path, example: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = f"give the path of a YAML file, such as {example}"
        raise ConfigError(f"cannot read the file {str(path)!r}: {error}", hint=hint) from None
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2020-13-45
        fault = str(error).replace('in "<unicode string>", ', "")
        raise ConfigError(f"{path}: not valid YAML: {fault}", hint="mend what is named") from None
    if not isinstance(value, dict):
        kinds = {type(None): "is empty", list: "is a list", str: "is plain text"}
        kind = kinds.get(type(value), f"is {_brief(value)}")
        what = f"{path}: the file {kind}, expected a mapping of keys"
        raise ConfigError(what, hint=f"start from {example}")
    return value


class _StrictLoader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; here the second is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                fault = f"the key {name!r} is not text; put it in quotes if it is meant"
                raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
            if name in seen:
                fault = f"the key {name!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def _to_config_error(
    path: Path, schema: type[BaseModel], error: ValidationError, example: str
) -> ConfigError:
    """The first fault in full, the others by key: one clear error, not a page."""
    faults: dict[str, list[ErrorDetails]] = {}
    for finding in error.errors(include_url=False):
        parts, _ = _follow(schema, finding["loc"])
        if finding["type"] == "extra_forbidden":
            parts = finding["loc"]
        faults.setdefault(".".join(map(str, parts)), []).append(finding)
    key, findings = next(iter(faults.items()))
    first = findings[0]
    if first["type"] == "extra_forbidden":
        _, section = _follow(schema, first["loc"][:-1])
        known = list(section.model_fields)
        what = f"{path}: unknown key {key!r} (value {_brief(first['input'])})"
        hint = f"known keys here: {', '.join(known)}{name_nearest(str(first['loc'][-1]), known)}"
    elif first["type"] == "missing":
        what = f"{path}: the key {key!r} is missing"
        hint = f"add {key!r}; see {example}"
    else:
        what = f"{path}: {key} is {_brief(first['input'])}, {_describe_expected(findings)}"
        way_out = f"see {example}"
        if _has_default(schema, first["loc"]):
            way_out = "or leave the key out for its default"
        hint = f"give {key} a value as described, {way_out}"
    others = list(faults)[1:]
    if others:
        what += f" (and {len(others)} more: {', '.join(others)})"
    return ConfigError(what, hint=hint)


def _has_default(schema: type[BaseModel], location: Location) -> bool:
    """Whether what a finding is about may be left out of the file; an item of a list may not."""
    parts, _ = _follow(schema, location)
    if not parts or isinstance(parts[-1], int):
        return False
    _, section = _follow(schema, parts[:-1])
    return not section.model_fields[parts[-1]].is_required()


def _follow(schema: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel]]:
    """The part of a finding's location that the file has, and the section it ends in.

    pydantic ends the location of a union's finding in the name of the branch that failed.
    """
    parts: list[int | str] = []
    section = schema
    for part in location:
        if isinstance(part, str):
            field = section.model_fields.get(part)
            if field is None:
                break
            section = next(iter(_list_sections(field.annotation)), section)
        parts.append(part)
    return tuple(parts), section


def _list_sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _list_sections(part)]


def _describe_expected(findings: Sequence[ErrorDetails]) -> str:
    texts = []
    for finding in findings:
        message = finding["msg"].removeprefix("Input should be ")
        known = EXPECTED.get(finding["type"])
        text = known.format_map(finding.get("ctx", {})) if known else None
        texts.append(text or message[:1].lower() + message[1:])
    return f"expected {' or '.join(dict.fromkeys(texts))}"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
