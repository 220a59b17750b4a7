"""Folders are floors: a module imports only from floors below its own, and in its own folder from modules below it."""

from __future__ import annotations

import ast
import re
import sys
from abc import ABC
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "framework"
FLOORS = (
    {"types"},
    {"llm", "tools", "store", "telemetry"},
    {"config"},
    {"evals"},
    {"engine"},
    {"replay", "console"},
    {"server", "testing"},
    {"pytest_fixtures"},
    {"cli"},
    {"__main__"},
)
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}
HEAVY = {
    "anthropic",
    "botocore",
    "cronsim",
    "google.auth",
    "google.genai",
    "openai",
    "instructor",
    "httpcore2",
    "httpx2",
    "jsonschema_rs",
    "mcp",
    "pydantic_monty",
    "watchfiles",
    "opentelemetry.sdk",
    "opentelemetry.exporter",
    "prometheus_client",
}
"""Modules that may be imported inside a function: SDKs that not every process needs."""
HEAVY |= {"framework.types.http_transport"}  # with httpx2
HEAVY |= {"framework.tools.mcp.client", "framework.tools.mcp.login"}  # with the MCP SDK, an extra
HEAVY |= {"framework.tools.a2a_client"}  # with the A2A SDK, an extra
HEAVY |= {"framework.store.store", "framework.store.memory"}  # with SQLAlchemy, once a store is opened
HEAVY |= {"sqlalchemy.dialects.postgresql"}  # for a store in PostgreSQL
HEAVY |= {"framework.engine.procrastinate"}  # with Procrastinate, an extra
HEAVY |= {"framework.server.a2a"}  # with the A2A SDK, an extra
HEAVY |= {"framework.server.acp"}  # with the ACP SDK, an extra
HEAVY |= {"framework.server.process"}  # with FastAPI and uvicorn, an extra
HEAVY |= {"framework.server.agui"}  # with the types of AG-UI, 0.1 s
HEAVY |= {"framework.server.mcp"}  # with the MCP SDK, an extra
HEAVY |= {"framework.llm.openai.connection"}  # with the openai SDK
HEAVY |= {"framework.llm.openai.client", "framework.llm.openai.responses", "framework.llm.offline"}  # as the next
HEAVY |= {
    "framework.llm.anthropic",
    "framework.llm.cloud",
    "framework.llm.gemini",
}  # clients, of which a process uses one or two
HEAVY |= {"framework.llm.message_formats"}  # with the formats of all providers, for runs with earlier messages
HEAVY |= {"framework.evals.comparison", "framework.evals.runner"}  # for `reload.gate: tests`
OWNERS = {"run", "context", "services", "spans", "journal", "launcher", "budget", "policy"}
"""Names of objects whose attributes only their own methods change, unlike the state of a run."""
TEST_MODULES = sorted((ROOT / "tests").rglob("*.py"))
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def folder_of(module: str) -> str:
    return module.split(".")[1]


def name_of(path: Path) -> str:
    return ".".join(("framework", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


NAMES = {name_of(path) for path in MODULES}


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Free the trees at the end: garbage collections of later tests would go through a million nodes."""
    yield
    for cached in (parsed, nodes, imports_of, functions):
        cached.cache_clear()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, which many tests go through."""
    return tuple(ast.walk(parsed(path)))


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the modules that these nodes import, and the names that may be modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


@cache
def imports_of(path: Path) -> tuple[tuple[str, ast.stmt], ...]:
    """Return the imports of a module, including those inside functions and for type checking only."""
    return tuple(imports(nodes(path)))


def own_imports(path: Path) -> set[str]:
    """Return the framework modules that a module imports."""
    return {name for name, _ in imports_of(path) if name in NAMES}


@cache
def functions(path: Path) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """Return all functions of a module."""
    return tuple(node for node in nodes(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


TIME_OF_DAY = {
    "framework.cli.location": "shows how long ago something was",
    "framework.config.snapshot": "compares with the times of files on this machine",
    "framework.config.generations.catalog": "times of spans",
    "framework.config.generations.history": "shows when files were edited and rolled back",
    "framework.engine.model_call.retry": "times of spans",
    "framework.engine.routing": "times of spans",
    "framework.engine.runtime.start": "shows when an item was changed",
    "framework.llm.provider_errors": "compares with a date of the provider",
    "framework.server.openai_api": "the field `created` of responses and models",
    "framework.store.database": "the clock of a store begins with it",
    "framework.store.schema": "shows when the tables were changed",
    "framework.store.processes": "a jump only renews the lease early",
    "framework.telemetry.metrics": "when the last reload succeeded",
    "framework.telemetry.spans": "times of spans",
    "framework.tools.builtin.notes": "shows when an item was changed",
    "framework.tools.mcp.content": "times of spans",
    "framework.tools.mcp.login": "whether a token ends soon; a server that refuses one gets a new one",
}
"""Modules that read this machine's time of day, which may be wrong, and why nothing depends on it. Everything that
expires, is deleted or is counted by day uses `Store.now`."""


def test_only_these_modules_read_the_time_of_day() -> None:
    reads = re.compile(
        r"\btime\.time\b|\btime_ns\(|\bdatetime\.now\(|\butcnow\(|\bdate\.today\(|from time import .*\btime\b"
    )
    assert {name_of(path) for path in MODULES if reads.search(path.read_text("utf-8"))} == TIME_OF_DAY.keys()


def test_a_module_imports_only_from_floors_below() -> None:
    assert not [
        f"{path}:{node.lineno} imports {name}: up or sideways"
        for path in MODULES
        for name, node in imports_of(path)
        if name.startswith("framework.") and folder_of(name) != folder_of(name_of(path))
        if FLOOR.get(folder_of(name), 99) >= FLOOR[folder_of(name_of(path))]
    ]


def test_only_heavy_sdks_are_imported_inside_functions() -> None:
    assert not [
        f"{path}:{node.lineno} {name}"
        for path in MODULES
        for name, node in imports_of(path)
        if node.col_offset
        and any(function.lineno < node.lineno <= (function.end_lineno or 0) for function in functions(path))
        if not any(name == sdk or name.startswith(sdk + ".") for sdk in HEAVY)
    ]


def test_there_is_no_import_cycle() -> None:
    graph = {name_of(path): own_imports(path) for path in MODULES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module in done:
            return
        for imported in graph.get(module, ()):
            if not module.startswith(imported + "."):  # the __init__ of a package
                visit(imported, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_nothing_is_assigned_to_a_run_or_its_services_from_outside() -> None:
    assert not [
        f"{path}:{node.lineno} assigns {ast.unparse(node)}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value).rpartition(".")[2] in OWNERS
    ]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function without its docstring."""
    docstring = ast.get_docstring(function) or ""
    return (function.end_lineno or function.lineno) - function.lineno - docstring.count("\n")


def test_files_and_functions_stay_small() -> None:
    long = [path for path in MODULES if path.read_text("utf-8").count("\n") > 800]
    assert not long, "nobody reads a file this long in one sitting"
    assert not [
        f"{path}:{function.lineno} {function.name} has {lines_of(function)} lines"
        for path in MODULES
        for function in functions(path)
        if lines_of(function) > 60
    ]


def test_every_module_has_a_docstring() -> None:
    assert not [path for path in MODULES if path.stem != "__init__" and not ast.get_docstring(parsed(path))]


PACKAGES = sorted({path.parent for path in MODULES} - {PACKAGE})
ENTRY = re.compile(r"^    (\w+)  +\S", re.MULTILINE)
"""A module in the list of its package: name, then purpose."""


def test_a_package_lists_its_modules_in_reading_order() -> None:
    """Each module is listed above those that it imports, so that the list reads from the top like the code."""
    for folder in PACKAGES:
        package = name_of(folder / "__init__.py")
        listed = ENTRY.findall(ast.get_docstring(parsed(folder / "__init__.py"), clean=False) or "")
        modules = [path for path in MODULES if folder in path.parents and path != folder / "__init__.py"]
        there = {name_of(path).removeprefix(f"{package}.").split(".")[0] for path in modules}
        assert sorted(listed) == sorted(there), package
        for path in modules:
            here = name_of(path).removeprefix(f"{package}.").split(".")[0]
            for name in own_imports(path):
                if name.startswith(f"{package}.") and (other := name.removeprefix(f"{package}.").split(".")[0]) != here:
                    assert listed.index(here) < listed.index(other), (
                        f"{name_of(path)} imports {name}, which is listed above"
                    )


def test_no_module_has_a_catch_all_name() -> None:
    assert not {path.stem for path in MODULES} & {"utils", "util", "helpers", "common", "misc", "base"}


CONVENTIONAL = {"log", "T", "command", "COMMANDS", "main", "routes"}
"""Names with a conventional meaning in each module: loggers, type variables, commands, entry points and routes."""


def public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public names that a module defines at its top level."""
    for node in tree.body:
        match node:
            case ast.AsyncFunctionDef(decorator_list=[ast.Call(func=ast.Attribute(value=ast.Name())), *_]):
                names = []  # the handler of a route, whose name is the id of the operation
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_every_public_name_is_defined_once() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for name in set(public_names(parsed(path))):
            places.setdefault(name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in CONVENTIONAL} == {}


PRIVATE = re.compile(r"_[a-zA-Z]\w*")
OWN_TREES = ("framework", "tests", "plugins", "examples", "benchmarks")
PUBLISHED_NAMES = {
    "_asdict": "of named tuples, documented",
    "_replace": "of named tuples, documented",
    "_request_id": "of the openai SDK's responses, which its README declares public",
}
"""Names with an underscore that are part of a public interface, and why."""
SUSPECTS = re.compile(r"(?<!self)(?<!cls)(?:\.|\bimport |, |, \")(_[a-zA-Z]\w*)")
NAMED_BY_TEXT = {"getattr", "setattr", "hasattr", "delattr"}
"""Functions whose second argument is the name of an attribute; `monkeypatch.setattr` also takes a dotted path."""


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that a module defines at any level, attributes of its own objects included."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def private_names(nodes: Collection[ast.AST], own: set[str]) -> Iterator[str]:
    """Yield the private names of other distributions that a module imports, reads or sets.

    A name that our own code defines somewhere, too, is not recognized as another distribution's.
    """
    for name, _ in imports(nodes):
        if name.partition(".")[0] not in OWN_TREES:
            yield from filter(PRIVATE.fullmatch, name.split("."))
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=module)) if module in sys.stdlib_module_names:
                pass
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name) and name not in own:
                yield name
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in NAMED_BY_TEXT:
                texts = [arg.value for arg in args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                parts = (part for text in texts for part in text.split("."))
                yield from (part for part in parts if PRIVATE.fullmatch(part) and part not in own)


def overridden_names(kind: type) -> Iterator[str]:
    """Yield the private names of other distributions' classes that a class defines again."""
    for base in kind.__mro__[1:]:
        top = base.__module__.partition(".")[0]
        if top not in OWN_TREES and top not in sys.stdlib_module_names:
            both = vars(kind).keys() & vars(base).keys() - vars(ABC).keys()
            yield from (name for name in both if PRIVATE.fullmatch(name))


def test_only_public_names_of_other_distributions_are_used() -> None:
    """A private name may disappear in any version, and what it means is known to its library alone."""
    others = (path for name in OWN_TREES if name not in ("framework", "tests") for path in (ROOT / name).rglob("*.py"))
    modules = {path: nodes(path) for path in (*MODULES, *others)}
    own = {name for module in modules.values() for name in defined_names(module)} | PUBLISHED_NAMES.keys()
    for path in TEST_MODULES:
        source = path.read_text("utf-8")
        if not own.issuperset(SUSPECTS.findall(source)):  # parsing all of them takes seconds
            modules[path] = tuple(ast.walk(ast.parse(source)))
    found: dict[str, set[str]] = {}
    for path, module in modules.items():
        if names := set(private_names(module, own | set(defined_names(module)))):
            found[str(path.relative_to(ROOT))] = names
    assert not found


def test_only_public_methods_of_other_distributions_are_overridden() -> None:
    found: dict[str, set[str]] = {}
    for path in MODULES:
        module = import_module(name_of(path))
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and (names := set(overridden_names(kind))):
                found.setdefault(str(path.relative_to(ROOT)), set()).update(names)
    assert not found


OTHER_TESTS = re.compile(r"^\s*(from|import)\s+tests\b(?!\.support\b)", re.MULTILINE)
"""An import from a module of tests that is not in `tests.support`."""


def test_no_test_module_imports_another() -> None:
    """Helpers that several tests share are in `tests.support`, fixtures in `tests/conftest.py`."""
    assert not [
        f"{path}:{node.lineno} imports {name}"
        for path in TEST_MODULES
        if OTHER_TESTS.search(source := path.read_text("utf-8"))  # parsing all of them takes seconds
        for name, node in imports(ast.walk(ast.parse(source)))
        if re.match(r"tests\.(?!support\.)(\w+\.)*test_", name)
    ]
