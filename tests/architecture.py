"""Checks of the house rules over source text; `test_architecture.py` runs them on the project.

Every function takes a `Source` and gives its findings as sentences, so that each can be shown to
fail on a small source that breaks its rule. Nothing here imports the code under check.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FLOORS: Mapping[str, int] = {
    "base": 0,
    **dict.fromkeys(("models", "tokens", "sandbox", "store"), 1),
    **dict.fromkeys(("agent", "domains", "inference"), 2),
    **dict.fromkeys(("rollout", "training"), 3),
    **dict.fromkeys(("evaluation", "quality"), 4),
    **dict.fromkeys(("gateway", "dashboard", "harness"), 5),
    "cli": 6,
}
# Lower, and still out of reach: these meet through `base/interfaces.py`.
APART: Mapping[str, str] = {"training": "inference"}
DOTTED_PATH = r"limosa(\.\w+)+(:\w+)?"
HEAVY = frozenset({"torch", "transformers", "matplotlib", "tokenizers", "safetensors", "gguf"})
NETWORK = frozenset(
    {"socket", "ssl", "http", "urllib", "requests", "httpx", "aiohttp", "websockets", "ftplib"}
)
LIGHT_FOLDERS = ("base", "agent", "domains", "store", "sandbox", "rollout", "quality")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_MAIN_LOOP_LINES = 120
VAGUE_WORDS = frozenset({"util", "utils", "helper", "helpers", "manager", "impl", "legacy"})
MUTABLE_TYPES = frozenset({"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict"})
MUTATORS = frozenset(
    {"append", "add", "update", "extend", "insert", "pop", "popitem", "remove", "discard"}
    | {"clear", "setdefault", "appendleft", "sort", "reverse"}
)
MUTABLE_NODES = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A module's text and tree; `name` is dotted, such as `limosa.base.config`."""

    name: str
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The folder of `src/limosa` it lies in; empty for the package's own module."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "limosa" and len(parts) > 1 else ""


def parse(name: str, text: str) -> Source:
    """A source from its text."""
    return Source(name, text, ast.parse(text))


def read_sources(root: Path, below: Path) -> list[Source]:
    """Every Python file below a folder; dotted names are relative to `root`."""
    sources = []
    for path in sorted(below.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources.append(parse(name, path.read_text(encoding="utf-8")))
    return sources


def list_imports(source: Source) -> list[str]:
    """Dotted names that a module imports anywhere, dotted paths in its string tables included."""
    found: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            found += [f"{prefix}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and re.fullmatch(DOTTED_PATH, str(node.value)):
            found.append(str(node.value).replace(":", "."))
    return found


def find_floor_breaches(source: Source) -> list[str]:
    """Imports that go up, or sideways on one floor."""
    if source.folder == "":
        return []
    if source.folder not in FLOORS:
        return [f"{source.name}: the folder {source.folder!r} has no floor"]
    floor, findings = FLOORS[source.folder], []
    for name in list_imports(source):
        if name.startswith("."):
            findings.append(f"{source.name} imports {name}: write the name in full")
        parts = name.split(".")
        if parts[0] != "limosa" or parts[1:2] in ([], [source.folder], ["__version__"]):
            continue
        target = FLOORS.get(parts[1])
        if target is None:
            findings.append(f"{source.name} imports {name}, which has no floor")
        elif target >= floor or APART.get(source.folder) == parts[1]:
            findings.append(f"{source.name} (floor {floor}) imports {name} (floor {target})")
    return findings


def find_heavy_imports(source: Source, heavy: Iterable[str]) -> list[str]:
    """Imports of packages that the module's folder must do without, lazy ones included."""
    roots = {name.split(".")[0] for name in list_imports(source)}
    return [f"{source.name} imports {root}" for root in sorted(roots & set(heavy))]


def find_long_parts(source: Source, allowed: Mapping[str, str]) -> list[str]:
    """Files and functions over their bounds; `allowed` names main loops, with the reason."""
    findings = []
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        findings.append(f"{source.name} has {lines} lines, at most {MAX_FILE_LINES}")
    for name, node in walk_functions(source):
        bound = MAX_MAIN_LOOP_LINES if name in allowed else MAX_FUNCTION_LINES
        length = count_lines(node)
        if length > bound:
            findings.append(f"{name} has {length} lines, at most {bound}")
    return findings


def walk_functions(source: Source) -> Iterator[tuple[str, FunctionNode]]:
    """Every function with its dotted name, nested ones included."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                yield f"{prefix}.{child.name}", child
                yield from walk(child, f"{prefix}.{child.name}")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}.{child.name}")
            else:
                yield from walk(child, prefix)

    return walk(source.tree, source.name)


def count_lines(node: FunctionNode) -> int:
    """Lines of a function from its `def`, docstring included."""
    assert node.end_lineno is not None, "ast.parse gives every node its end"
    return node.end_lineno - node.lineno + 1


def find_deep_inheritance(sources: Iterable[Source]) -> list[str]:
    """Chains of more than two project classes, exception types aside."""
    parents: dict[str, list[str]] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                bases = (b.value if isinstance(b, ast.Subscript) else b for b in node.bases)
                parents[node.name] = [ast.unparse(base).rpartition(".")[2] for base in bases]

    def chain(name: str) -> list[str]:
        if name not in parents:
            return [name]
        longest = max((chain(base) for base in parents[name]), key=len, default=[])
        return [name, *longest]

    findings = []
    for name in parents:
        names = chain(name)
        project = [n for n in names if n in parents]
        if len(project) > 2 and not names[-1].endswith(("Exception", "Error")):
            findings.append(f"{' -> '.join(project)}: {len(project)} project classes, at most 2")
    return findings


def find_vague_names(source: Source) -> list[str]:
    """Modules, classes and functions that are called after nothing."""
    names = source.name.split(".")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | FunctionNode):
            names.append(node.name)
    findings = []
    for name in names:
        words = {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}
        if words & VAGUE_WORDS:
            findings.append(f"{source.name}: the name {name!r} says nothing")
    return findings


def find_missing_docstring(source: Source) -> list[str]:
    """A module that does not say its role."""
    return [] if ast.get_docstring(source.tree) else [f"{source.name} has no docstring"]


def find_side_effects(source: Source) -> list[str]:
    """Calls for their effect, loops and the like in a module's body."""
    findings = []
    for node in source.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        kinds = (ast.Expr, ast.For, ast.While, ast.With, ast.Delete, ast.AugAssign)
        if isinstance(node, kinds) and not is_docstring and not is_guard:
            code = ast.unparse(node).splitlines()[0]
            findings.append(f"{source.name}:{node.lineno} does something on import: {code}")
    return findings


def find_module_state(source: Source) -> list[str]:
    """Mutable values in a module's body that are no constants, or constants that are changed."""
    findings, constants = [], set()
    for node in source.tree.body:
        for name, value in _list_assignments(node):
            if not _is_mutable(value) or name.startswith("__"):
                continue
            constants.add(name)
            if not name.isupper():
                findings.append(f"{source.name}:{node.lineno} keeps mutable state in {name!r}")
    for _, function in walk_functions(source):
        for inner in ast.walk(function):
            if isinstance(inner, ast.Global):
                findings.append(f"{source.name}:{inner.lineno} rebinds {', '.join(inner.names)}")
            changed = _changed_name(inner)
            if changed in constants and changed not in _local_names(function):
                findings.append(f"{source.name}:{inner.lineno} changes the constant {changed!r}")
    return list(dict.fromkeys(findings))


def _list_assignments(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(t.id, node.value) for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
        return [(node.target.id, node.value)]
    return []


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_TYPES
    return isinstance(value, MUTABLE_NODES)


def _changed_name(node: ast.AST) -> str | None:
    """The name whose value a node changes in place: by item, by `+=`, or by a method."""
    target: ast.expr | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        target = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        target = node.func.value if node.func.attr in MUTATORS else None
    return target.id if isinstance(target, ast.Name) else None


def _local_names(function: FunctionNode) -> set[str]:
    names = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
