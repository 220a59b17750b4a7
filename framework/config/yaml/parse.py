"""Validates a document against a pydantic model and converts errors to Problems with positions and suggestions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from math import inf
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from framework.config.yaml.agent_keys import SECTION_KEYS, TOP_LEVEL, WRITTEN, path_in_file, read_agent_keys
from framework.config.yaml.document import (
    MAX_SHOWN_CHARS,
    Document,
    DocumentError,
    KeyPath,
    boolean_fix,
    key_fix,
    read_document,
    text_fix,
    value_fix,
)
from framework.types.problem import Problem
from framework.types.spec import RISKS, AgentSpec
from framework.types.text import shorten

_FILE = re.compile(r"(?<!\$)\$\{file:")
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")

Unset = tuple[KeyPath, Problem]
"""A value with a variable that is not set, or with a file where none is read."""


def expand(document: Document, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Unset]]:
    """Return the document's data with variables substituted, and each variable that is not set; it counts as empty."""
    unset: list[Unset] = []

    def fill(path: KeyPath, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill((*path, key), item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill((*path, index), item) for index, item in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        if _FILE.search(value):
            if path[0] == "models" and path[2:] == ("api_key",):
                return value  # the model's client reads the file whenever it changes
            hint = "use a variable here, ${NAME}"
            message = "files are read for the api_key of a model's alias only"
            unset.append((path, document.problem(path, message, hint=hint)))
        for name in _unset(value, environ):
            hint = f"set it, or write ${{{name}:-default}}"
            unset.append((path, document.problem(path, f"the variable {name} is not set", hint=hint)))
        return _VARIABLE.sub(lambda match: _value(match, environ), value)

    return fill((), document.data), unset


def variable_hint(value: object) -> str | None:
    """Return the hint on an invalid value of an agent file that contains `${VARIABLE}`; None without one."""
    if not isinstance(value, str) or "${" not in value:
        return None
    return "variables are replaced in agentsd.yaml and plugins/*.yaml only: define an alias there, and write its name"


def is_affected(path: KeyPath, unset: Iterable[Unset]) -> bool:
    """Return whether the value at a path is, contains or is part of one with a variable that is not set."""
    return any(path == where[: len(path)] or where == path[: len(where)] for where, _ in unset)


def _unset(text: str, environ: Mapping[str, str]) -> Iterator[str]:
    for match in _VARIABLE.finditer(text):
        if match["name"] and match["default"] is None and match["name"] not in environ:
            yield match["name"]


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["name"] is None:
        return "$"
    return environ.get(match["name"]) or match["default"] or ""


JsonObject = dict[str, Any]
_MAX_ITEMS = 1000
"""Length up to which the items of an invalid list are tried one by one."""
_MAX_COMPARED_ITEMS = 100
"""Items of a list that are kept at most if some exclude each other: each one is validated with those before it."""


def merge_valid(
    model: type[BaseModel], base: JsonObject, data: Mapping[str, Any], item_by_item: Collection[str] = ()
) -> tuple[JsonObject, list[KeyPath]]:
    """Merge the valid parts of `data` into `base`; return the result and the paths of the invalid parts.

    Args:
        model: the model that validates both.
        base: valid data, as `model_dump(mode="json", by_alias=True)` returns it.
        data: the values to merge.
        item_by_item: dotted keys of lists whose invalid items may be dropped one by one.
    """
    invalid: list[KeyPath] = []

    def merge(base: JsonObject, path: KeyPath, value: Any) -> JsonObject:
        merged = _replaced(base, path, value)
        if _is_valid(model, merged):
            return merged
        key = ".".join(map(str, path))
        if isinstance(value, dict) and isinstance(get_dotted(base, key), dict):
            for part, item in value.items():
                base = merge(base, (*path, part), item)
            return base
        if isinstance(value, list) and len(value) <= _MAX_ITEMS and key in item_by_item:

            def fits(items: list[Any]) -> bool:
                return _is_valid(model, _replaced(base, path, items))

            kept = [index for index, item in enumerate(value) if fits([item])]
            if not fits([value[index] for index in kept]):
                kept = _compatible(kept, lambda indexes: fits([value[index] for index in indexes]))
            invalid.extend((*path, index) for index in range(len(value)) if index not in {*kept})
            return _replaced(base, path, [value[index] for index in kept])
        invalid.append(path)
        return base

    for key, value in data.items():
        base = merge(base, (key,), value)
    return base, invalid


def _compatible(indexes: Sequence[int], fits: Callable[[list[int]], bool]) -> list[int]:
    """Return the indexes of the first items that are valid together: duplicates of earlier ones are dropped."""
    kept: list[int] = []
    for index in indexes[:_MAX_COMPARED_ITEMS]:
        if fits([*kept, index]):
            kept.append(index)
    return kept


def get_dotted(data: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or None."""
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_valid(model: type[BaseModel], data: JsonObject) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


def _replaced(data: JsonObject, path: KeyPath, value: Any) -> JsonObject:
    """Return a copy with the value at a path replaced."""
    first, rest = str(path[0]), path[1:]
    inner = data.get(first)
    below = _replaced(inner if isinstance(inner, dict) else {}, rest, value) if rest else value
    return {**data, first: below}


_ModelT = TypeVar("_ModelT", bound=BaseModel)

MAX_FILE_PROBLEMS = 100
_MAX_WORD_CHARS = 100
_NAME = re.compile(r"\^\[(.+?)\]\[(.+?)\]\{0,(\d+)\}\$")
"""The form of a name pattern, such as `^[a-z][a-z0-9_-]{0,63}$`."""
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping of keys"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
}
"""The expected kind of value, by pydantic's error type."""
_MISSING = {
    "name": "the name of the file cannot be the name of the agent: a-z, 0-9, _ and -, starting with a letter",
    "allow": 'list the allowed tools, or write `allow: ["*"]` to allow all',
    "per": "write what has a limit of its own, such as `per: day` or `per: [tenant, day]`",
}
"""Hints on missing keys."""


_INSTEAD: Mapping[str, KeyPath] = {
    "allowed_tools": ("tools",),
    **dict.fromkeys(("system", "prompt", "system_prompt"), ("instructions",)),
    "subagents": ("agents",),
}
"""Keys of agent files by names that other frameworks use for them."""
SETTINGS_KEYS = frozenset({
    "models", "model_calls", "grants", "locale", "log", "reload", "store", "server", "work"
})  # fmt: skip
"""The keys of `agentsd.yaml` that agent files do not have."""
_OTHER_FILES: Mapping[str, str] = {
    **dict.fromkeys(SETTINGS_KEYS, "agentsd.yaml"),
    **dict.fromkeys(("mcp_servers", "a2a_agents"), "a file plugins/NAME.yaml"),
    "cases": "a file agents.d/NAME.test.yaml",
}
"""The files of keys that agent files do not have."""
_FROM_RISK: Mapping[KeyPath, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("runtime_policy", "confirm"): ((), (*RISKS, "never")),
    ("plan", "approval"): (("never", "always"), RISKS),
}
"""Keys whose value is `{from: RISK}`, with the texts that they may have instead, and the risks."""
_MAX_PLACES = 2
_MAX_LEVELS = 5


_LITERAL_SECRET = re.compile(
    r"(?:key|(?<!max_total_)token|secret|password|authorization|cookie|header|extra_body)s?['\"]?\s*+:\s*+"
    r"(?!['\"]?(?:Bearer |Basic )?\$\{)",
    re.IGNORECASE,
)


_KEY_LIKE = re.compile(r"(?<![\w./$+=-])(?=[\w+=-]*[A-Za-z])(?=[\w+=-]*[0-9])[\w+=-]{16,}(?![\w./:])")
"""A value that may be a secret under a misspelled key: letters and digits, but no path or model name."""


class ParseError(Exception):
    """Raised for a file that is invalid; `problems` lists all errors."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def parse_agent(path: str, source: bytes) -> tuple[AgentSpec, Document]:
    """Parse an agent file; raise ParseError if it is invalid."""
    return parse(path, source, AgentSpec)


def parse(path: str, source: bytes, model: type[_ModelT]) -> tuple[_ModelT, Document]:
    """Parse a file into `model`; raise ParseError if it is invalid.

    Returns the model, and the document with its positions but without its data.
    """
    found: list[Problem] = []
    try:
        document = read_document(path, source)
    except DocumentError as error:
        if error.document is None:
            raise ParseError(error.problems) from None
        document, found = error.document, [*error.problems]
    written, keys = document, read_agent_keys(document) if model is AgentSpec else None
    if keys:
        document = keys.document
        found += keys.problems
    try:
        parsed = model.model_validate(document.data)
    except ValidationError as error:
        found += validation_problems(error.errors(include_url=False), document, model)
        raise ParseError(sort_problems(found)) from None
    if found := found or written.empty_values():
        raise ParseError(sort_problems(found))
    return parsed, document.without_data()


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems by file, line and column, without duplicates; those without a line come last in their file."""
    return sorted(dict.fromkeys(problems), key=lambda p: (p.path, p.line or inf, p.column or 0))


def without_repeats(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without those that only quote another one, such as the agent's of a broken template."""
    found = [*problems]
    quoted = {f"{problem.place}: {problem.message}" for problem in found}
    return [problem for problem in found if problem.message.partition(": ")[2] not in quoted]


def mask_problems(problems: Iterable[Problem], source: bytes) -> list[Problem]:
    """Return the problems without literal secrets of the file.

    If a key of the file names a secret, the excerpts are removed; otherwise values that look like secrets are masked.
    """
    if _LITERAL_SECRET.search(source.decode("utf-8", "replace")):
        return [problem.model_copy(update={"excerpt": None}) for problem in problems]
    return [_masked(problem) for problem in problems]


def _masked(problem: Problem) -> Problem:
    if problem.excerpt is None or not _KEY_LIKE.search(problem.excerpt):
        return problem
    return problem.model_copy(update={"excerpt": mask_key_like(problem.excerpt)})


def mask_key_like(text: str) -> str:
    """Mask values of letters and digits that may be secrets, whatever their key. The text keeps its length."""
    return _KEY_LIKE.sub(lambda match: "*" * len(match[0]), text)  # same length: carets stay aligned


def validation_problems(
    details: Sequence[ErrorDetails], document: Document, model: type[BaseModel]
) -> Iterator[Problem]:
    """Convert pydantic's errors (`error.errors()`) to Problems.

    Of more than `MAX_FILE_PROBLEMS` errors, the last Problem has the number of those that are omitted.
    """
    placed = [(_place(detail, document.data), detail) for detail in details[:MAX_FILE_PROBLEMS]]
    for path, group in groupby(placed, key=lambda entry: entry[0]):
        same = [detail for _, detail in group]
        hint = variable_hint(same[0]["input"]) if model is AgentSpec else None
        for problem in _problems(path, same, document, model):
            yield problem.model_copy(update={"hint": hint}) if hint else problem
    if len(details) > MAX_FILE_PROBLEMS:
        yield Problem(path=document.path, message=f"and {len(details) - MAX_FILE_PROBLEMS} more problems")


def _problems(
    path: KeyPath, details: Sequence[ErrorDetails], document: Document, model: type[BaseModel]
) -> Iterator[Problem]:
    if short := _short_form(path, details[0], document):
        yield short
        return
    expected_kinds = list(dict.fromkeys(_EXPECTED[detail["type"]] for detail in details if detail["type"] in _EXPECTED))
    if expected_kinds:  # each member of a union reports an error, but it is one mistake
        fix = boolean_fix(document, path, details[0]["input"]) if expected_kinds == [_EXPECTED["bool_type"]] else None
        hint = f"YAML 1.2 reads this as text; write {fix.instead}" if fix else None
        if expected_kinds == ["a list"] and not isinstance(details[0]["input"], dict):
            hint = "write it in brackets: […]"
        yield document.problem(path, f"must be {' or '.join(expected_kinds)}", hint=hint, fix=fix)
    for detail in details:
        if detail["type"] not in _EXPECTED:
            yield _problem(path, detail, document, model)


def _short_form(path: KeyPath, detail: ErrorDetails, document: Document) -> Problem | None:
    """Return the problem of a risk in place of `{from: RISK}`; None if the value is something else."""
    value, words = detail["input"], _FROM_RISK.get(path)
    if words is None or not isinstance(value, str):
        return None
    texts, choices = words
    meant = value if value in choices else _closest(value, (*choices, *texts))
    if meant in texts:
        return None
    form = f"{{from: {meant or 'high'}}}"
    fix = text_fix(document, path, value, form) if value == meant else None
    message = " or ".join((*map(repr, texts), "{from: RISK}"))
    return document.problem(path, f"must be {message}", hint=f"write {path[-1]}: {form}", fix=fix)


def _problem(path: KeyPath, detail: ErrorDetails, document: Document, model: type[BaseModel]) -> Problem:
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    match detail["type"]:
        case "extra_forbidden":
            known, older = _keys_at(model, path, document)
            place_hint = _place_of_key(last, path, model, document)
            fix = None if place_hint else key_fix(document, path, [*known, *older])
            hint = place_hint or _suggest(last, [fix.instead] if fix else known, older)
            return document.problem(
                path, f"unknown key {shorten(last, MAX_SHOWN_CHARS)!r}", hint=hint, at_key=True, fix=fix
            )
        case "missing":
            hint, last = _MISSING.get(last), str(path_in_file(document, path)[-1]) if model is AgentSpec else last
            return document.problem(path, f"the key {last!r} is missing", hint=hint, at_key=True)
        case "literal_error" | "enum":
            expected = str(detail["ctx"].get("expected", ""))
            options = [option.strip("' ") for option in expected.replace(" or ", ",").split(",")]
            fix = value_fix(document, path, detail["input"], options)
            close = fix.instead if fix else _closest(str(detail["input"]), options)
            hint = f"did you mean {close!r}?" if close else None
            return document.problem(path, f"must be {expected}", hint=hint, fix=fix)
        case "string_pattern_mismatch" if name := _NAME.fullmatch(detail["ctx"]["pattern"]):
            first, others, most = name.groups()
            text = f"must start with {first}, followed by at most {most} characters of {others}"
            return document.problem(path, text)
        case _:
            return document.problem(path, _sentence(detail))


def _sentence(detail: ErrorDetails) -> str:
    """Return pydantic's message without its prefix, in this project's style."""
    message = detail["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        return "must be " + message.removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def _place(detail: ErrorDetails, data: Any) -> KeyPath:
    """Return the path of an error in the data; for a missing key, the path it would have."""
    loc = detail["loc"]
    if detail["type"] == "missing":
        return (*data_path(loc[:-1], data), *loc[-1:])
    return data_path(loc, data)


def data_path(loc: KeyPath, data: Any) -> KeyPath:
    """Return pydantic's location without its labels of union members, which do not occur in the file.

    A label may equal a key, so a location can be read in several ways: prefer one that reaches the last part.
    """
    return max(_readings(loc, data), key=lambda path: (path[-1:] == loc[-1:], len(path)))


def _readings(loc: KeyPath, value: Any) -> Iterator[KeyPath]:
    """Yield every path through the data that uses some of the location's parts, in order."""
    if not loc:
        yield ()
        return
    part, rest = loc[0], loc[1:]
    is_item = isinstance(value, list) and isinstance(part, int) and part < len(value)
    if is_item or (isinstance(value, dict) and part in value):
        for reading in _readings(rest, value[part]):
            yield (part, *reading)
    yield from _readings(rest, value)


def _keys_at(model: type[BaseModel], path: KeyPath, document: Document) -> tuple[list[str], list[str]]:
    """Return the keys that are valid in place of an unknown one, and their older spellings."""
    fields = _fields_at(model, path[:-1])
    if model is not AgentSpec:
        return fields, []
    if section := SECTION_KEYS.get(path_in_file(document, path)[:-1]):
        return [*section], []
    older = [name for name in fields if (*path[:-1], name) in WRITTEN]
    newer = dict.fromkeys(str(keys[-1]) for keys in WRITTEN.values() if keys[:-1] == path[:-1])
    return [*dict.fromkeys([*(name for name in fields if name not in older), *newer])], older


def _fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys that a model allows at a path."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        fields = [_field(candidate, part) for candidate in models] if isinstance(part, str) else []
        models = [inner for info in fields if info for inner in _models_in(info.annotation)] or models
    return [info.alias or name for candidate in models for name, info in candidate.model_fields.items()]


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    return next((info for name, info in model.model_fields.items() if key in (name, info.alias)), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _place_of_key(key: str, path: KeyPath, model: type[BaseModel], document: Document) -> str | None:
    """Return the hint on a key that exists elsewhere in the file, or in another file; None if there is none."""
    places = sorted(_paths_to(key, model), key=len)
    if model is AgentSpec:
        path = path_in_file(document, path)
        newer = (keys for keys in WRITTEN.values() if keys[-1] == key)
        places = [*dict.fromkeys([*(path_in_file(document, place) for place in places), *newer])]
        if places and len(places[0]) == 1 and places[0] != (key,):
            return f"write it as {_written(places[0])}"
    if not places and model is AgentSpec and key in _INSTEAD:
        return f"write it as {_written(_INSTEAD[key])}"
    if places:
        above = ".".join(str(part) for part in path[:-1])
        moves = [
            f"in {_written(place)}" if len(place) > 1 else f"at the top level of the file, not in {above}"
            for place in places[:_MAX_PLACES]
        ]
        return f"it belongs {', or '.join(moves)}"
    if model is AgentSpec:
        return f"it belongs in {_OTHER_FILES[key]}" if key in _OTHER_FILES else None
    of_agents = key in AgentSpec.model_fields or key in TOP_LEVEL
    return "it belongs in a file agents.d/NAME.yaml" if of_agents else None


def _written(path: KeyPath) -> str:
    """Return a path as it is written in a file, such as `runtime_policy: {max_steps: …}`."""
    first, *rest = (str(part) for part in path)
    return f"{first}: {{{_written(tuple(rest))}}}" if rest else f"{first}: …"


def _paths_to(key: str, model: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths to a key in a model and the models in its fields; those in lists and with own names excepted."""
    for name, info in model.model_fields.items():
        path = (*above, info.alias or name)
        if path[-1] == key:
            yield path
        if len(path) < _MAX_LEVELS and get_origin(info.annotation) not in (dict, tuple, list):
            for inner in _models_in(info.annotation):
                yield from _paths_to(key, inner, path)


_OTHER_WORDS = MappingProxyType({"arguments": "parameters", "args": "parameters", "params": "parameters"})
"""Keys of other programs' files that no spelling leads to."""


def _suggest(word: str, known: Sequence[str], older: Sequence[str]) -> str | None:
    other = _OTHER_WORDS.get(word)
    if close := other if other in known else _closest(word, [*known, *older]):
        return f"did you mean {close!r}?"
    return f"valid keys: {', '.join(known)}" if known and len(known) <= 40 else None


def _closest(word: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(word, list(known), n=1, cutoff=0.55) if len(word) <= _MAX_WORD_CHARS else ()
    return close[0] if close else None
