"""Public names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

import framework
from examples.reference.markdown import WIDTH, code, docstring, first_paragraph, prose, table, written_types
from framework.config.schema import field_docs
from framework.types.frozen import Frozen

MODULES = Path(framework.__file__).parent.parent / "docs/embedding.md"
"""The page whose table lists the public modules."""
_RESULTS_OPENING = """\
What a run returns: `RunResult`, and the types that it contains. `agentsd run --json` and
`RunResult.model_dump_json()` have the same fields:

```sh
agentsd run --json "search for 'calculator'" | jq '{status, output, tokens: .usage.total_tokens}'
```

`--json` may omit fields that are null or empty. It has the result of a tool once, in `tool_calls`:
a message of a tool has `content` only if the model read something else, such as a cut result, and
`tool_output` and `observation` in `trace` follow the same rule. `agentsd chat --json` prints one
such object per answer, each on one line. Times are milliseconds unless a name says otherwise;
timestamps are ISO 8601 in UTC.
"""
_OPENING = """\
The public names of {what}, with signatures.
[Python API](../embedding.md) shows how they are used.
"""
_OWN = "framework"
PLUGIN_NAMES = (
    *("tool", "Tool", "ToolContext", "ToolCall", "ToolResult", "filter_tools"),
    *("hook", "executor", "Run", "PluginContext", "HttpClient"),
)
"""Names that have a page of their own, in its order."""
RUN_METHODS = (
    *("follow", "result", "resume", "resume_stream", "decide", "pending", "todo", "update_todo", "cancel"),
    *("orphans", "resume_orphans", "expire"),
)
"""Methods of the runtime for stored runs."""
INTERFACES = ("Store", "WorkSource", "Generation")
"""Names to annotate with, whose methods only the runtime calls."""
STORES = ("JsonStore", "MemoryStore")
"""Classes of stores, whose methods of the interface only the runtime calls."""
DECISIONS = get_args(get_args(framework.Decision)[0])
CREATED_BY_THE_RUNTIME = ("Tool", "ToolContext", "Run", "PluginContext", *INTERFACES, "RunStream", "RunInfo")
"""Classes that no program creates: their pages leave out how."""


def names_page() -> Iterator[str]:
    """Yield the lines of the page on what `agentsd` exports, apart from those with a page of their own."""
    yield "# Names of agentsd\n"
    yield _OPENING.format(what="`agentsd`")
    yield "[Runtime](python-runtime.md), [what plugins use](python-plugins.md), [events](events.md) and"
    yield "[results](python-results.md) have pages of their own.\n"
    found = {name: getattr(framework, name) for name in framework.__all__}
    errors = {name: kind for name, kind in found.items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    for name, value in found.items():
        if name not in {*errors, *PLUGIN_NAMES, "Runtime", "events"} and not _is_of_results(value):
            yield from _entry(f"agentsd.{name}", value)
    yield "## Errors\n"
    yield "[Error codes](outcomes.md#error-codes) has their causes.\n"
    yield prose(", ".join(map(code, errors))) + "\n"


def results_page() -> Iterator[str]:
    """Yield the lines of the page on the data that a result contains: the fields of `RunResult` and their types."""
    yield "# Results\n"
    yield _RESULTS_OPENING
    names = (name for name in framework.__all__ if name not in PLUGIN_NAMES)
    for name in sorted(names, key=lambda name: (name != "RunResult", name)):
        if _is_of_results(found := getattr(framework, name)):
            yield from _entry(f"agentsd.{name}", found)


def _is_of_results(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseModel) and found not in DECISIONS


def plugins_page() -> Iterator[str]:
    """Yield the lines of the page on what plugins import from `agentsd`."""
    yield "# Names for plugins\n"
    yield _OPENING.format(what="`agentsd` that plugins use")
    yield "[Plugins](../plugins.md) explains them with examples.\n"
    for name in PLUGIN_NAMES:
        yield from _entry(f"agentsd.{name}", getattr(framework, name))


def runtime_page() -> Iterator[str]:
    """Yield the lines of the page on the runtime: how it is opened, and how runs are started."""
    yield "# Runtime\n"
    yield _OPENING.format(what="`Runtime` that start runs")
    yield "What works on stored runs is on [a page of its own](python-runs.md).\n"
    yield from docstring(inspect.getdoc(framework.Runtime))
    yield from _methods("agentsd.Runtime", framework.Runtime, lambda name: name not in RUN_METHODS)


def runs_page() -> Iterator[str]:
    """Yield the lines of the page on what the runtime does with stored runs."""
    yield "# Runtime: stored runs\n"
    yield _OPENING.format(what="`Runtime` for stored runs")
    yield from _methods("agentsd.Runtime", framework.Runtime, lambda name: name in RUN_METHODS)


def modules_page(title: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page on some public modules. What several export is shown once."""
    yield f"# {title}\n"
    yield _OPENING.format(what="these modules of `agentsd`")
    shown: set[int] = set()
    for name in names:
        module = import_module(name)
        path = name.replace("framework", "agentsd", 1)
        yield f"## {path}\n"
        yield prose(first_paragraph(module.__doc__)) + "\n"
        for public in public_names(module):
            found = getattr(module, public)
            if id(found) not in shown:
                shown.add(id(found))
                yield from (
                    f"#{line}" if re.match("##+ ", line) else line for line in _entry(f"{path}.{public}", found)
                )


def public_modules() -> list[ModuleType]:
    """Return the modules that docs/embedding.md lists, in its order."""
    text = MODULES.read_text("utf-8").split("The public API consists of", 1)[1].split("\n## ", 1)[0]
    heads = re.findall(r"^\| (`agentsd.*?) \|", text, re.M)
    return [import_module(name) for head in heads for name in re.findall(r"`((?:agentsd|framework)\.[\w.]+)`", head)]


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a module exports: those of `__all__`, or the classes and functions that it defines."""
    defined = [
        name
        for name, found in vars(module).items()
        if not name.startswith("_") and callable(found) and getattr(found, "__module__", "") == module.__name__
    ]
    return list(getattr(module, "__all__", defined))


def _entry(path: str, found: Any) -> Iterator[str]:
    yield f"## {path}\n"
    if get_origin(found) is Annotated:
        yield f"One of {', '.join(code(kind.__name__) for kind in get_args(get_args(found)[0]))}.\n"
        return
    name = path.rsplit(".", 1)[-1]
    if name not in CREATED_BY_THE_RUNTIME and (signature := _signature(name, found)):
        yield f"```py\n{signature}\n```\n"
    yield from docstring(inspect.getdoc(found) if callable(found) else None)
    if inspect.isclass(found) and issubclass(found, BaseModel):
        docs, types = field_docs(found), written_types(found)
        rows = [
            (code(name), code(types[name]), docs.get(name) or _constant(found, name)) for name in found.model_fields
        ]
        yield from table(("field", "type", "meaning"), rows)
        yield ""
    if inspect.isclass(found) and not issubclass(found, (BaseException, Frozen)) and name not in INTERFACES:
        yield from _methods(path, found, lambda _: True)


def _constant(kind: type[BaseModel], name: str) -> str:
    """Return the meaning of a field that has one value only."""
    values = get_args(kind.model_fields[name].annotation)
    return f"Always `{values[0]}`." if len(values) == 1 and isinstance(values[0], str) else ""


def _methods(path: str, kind: type, is_shown: Callable[[str], bool]) -> Iterator[str]:
    for name, found in list(vars(kind).items()):
        method = inspect.unwrap(found.__func__ if isinstance(found, classmethod | staticmethod) else found)
        is_own = inspect.isfunction(method) and method.__module__.startswith(_OWN)
        is_of_store = kind.__name__ in STORES and hasattr(framework.Store, name)
        if is_own and not name.startswith("_") and is_shown(name) and not is_of_store:
            yield f"### {path.rsplit('.', 1)[-1]}.{name}\n"
            yield f"```py\n{_signature(name, method)}\n```\n"
            yield from docstring(inspect.getdoc(method))


class _Written:
    """An annotation or a default that is shown as a program would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(name: str, found: Any) -> str:
    """Return a signature without the names of modules, one parameter a line if it is long."""
    # An alias such as `Callable[[int], str]` is callable, too: Python 3.13 says that it takes `(*args, **kwargs)`.
    if not callable(found) or get_origin(found) or (inspect.isclass(found) and issubclass(found, BaseModel)):
        return ""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return ""
    parameters = [
        one.replace(
            annotation=one.empty if one.annotation is one.empty else _Written(_annotation(one.annotation)),
            default=one.empty if one.default is one.empty else _Written(_default(one.default)),
        )
        for one in signature.parameters.values()
        if one.name not in {"self", "cls"}
    ]
    is_class, answer = inspect.isclass(found), signature.return_annotation
    if is_class or answer is signature.empty:
        shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    else:
        shown = signature.replace(parameters=parameters, return_annotation=_Written(_annotation(answer)))
    start = "class" if is_class else "async def" if inspect.iscoroutinefunction(found) else "def"
    line = f"{start} {name}{shown}"
    if len(line) <= WIDTH:
        return line
    head, _, tail = line.partition("(")
    inside, _, after = tail.rpartition(")")
    return f"{head}(\n" + "".join(f"    {one},\n" for one in _split(inside)) + f"){after}"


def _split(parameters: str) -> Iterator[str]:
    """Yield parameters that are separated by commas, apart from commas in brackets."""
    depth, start = 0, 0
    for place, character in enumerate(parameters):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield parameters[start:place].strip()
            start = place + 1
    yield parameters[start:].strip()


def _annotation(annotation: Any) -> str:
    is_plain = isinstance(annotation, type) and not getattr(annotation, "__args__", None)
    text = annotation.__name__ if is_plain else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _default(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)})"
    return str(value.__name__) if inspect.isroutine(value) else repr(value)
