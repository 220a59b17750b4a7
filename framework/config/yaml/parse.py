"""A file's data as a typed model, or every Problem with it at once: place, caret, and the name that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from math import inf
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from framework.config.yaml.document import Document, DocumentError, KeyPath, read_document, shorten
from framework.config.yaml.fixes import boolean_fix, key_fix, value_fix
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

_ModelT = TypeVar("_ModelT", bound=BaseModel)

MAX_FILE_PROBLEMS = 100
_MAX_WORD_CHARS = 100
_NAME = re.compile(r"\^\[(.+?)\]\[(.+?)\]\{0,(\d+)\}\$")
"""The pattern of a name, such as an agent's."""
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping of keys"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
}
"""What should stand there, by pydantic's kind of error."""
_ALLOW_ALL = 'say which tools are allowed, for instance `allow: ["*"]` for all of them'


_LITERAL_SECRET = re.compile(
    r"(?:key|token|secret|password|authorization|cookie)s?['\"]?\s*+:\s*+(?!['\"]?(?:Bearer |Basic )?\$\{)",
    re.IGNORECASE,
)


_KEY_LIKE = re.compile(r"(?<![\w./$+=-])(?=[\w+=-]*[A-Za-z])(?=[\w+=-]*[0-9])[\w+=-]{16,}(?![\w./:])")
"""A value that may be a key although its own key is misspelt: letters and digits, and no path or model name."""


class ParseError(Exception):
    """A file that is not what it should be; `problems` lists everything found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def parse_agent(path: str, source: bytes) -> tuple[AgentSpec, Document]:
    """Parse an agent file; raises ParseError."""
    return parse(path, source, AgentSpec)


def parse(path: str, source: bytes, model: type[_ModelT]) -> tuple[_ModelT, Document]:
    """Parse a file as any of our models; raises ParseError."""
    try:
        document = read_document(path, source)
    except DocumentError as error:
        raise ParseError([error.problem]) from None
    try:
        return model.model_validate(document.data), document.without_data()
    except ValidationError as error:
        raise ParseError(sort_problems(validation_problems(error.errors(include_url=False), document, model))) from None


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by file, line and column, each once; those without a line come last in their file."""
    return sorted(dict.fromkeys(problems), key=lambda p: (p.path, p.line or inf, p.column or 0))


def mask_problems(problems: Iterable[Problem], source: bytes) -> list[Problem]:
    """Return the problems without the secrets that a file holds itself, instead of the names of their variables.

    Lines are left out if a key of the file names a secret; otherwise values that look like keys are masked in them.
    """
    if _LITERAL_SECRET.search(source.decode("utf-8", "replace")):
        return [problem.model_copy(update={"excerpt": None}) for problem in problems]
    return [_masked(problem) for problem in problems]


def _masked(problem: Problem) -> Problem:
    if problem.excerpt is None or not _KEY_LIKE.search(problem.excerpt):
        return problem
    excerpt = _KEY_LIKE.sub(lambda found: "*" * len(found[0]), problem.excerpt)  # the caret keeps its place
    return problem.model_copy(update={"excerpt": excerpt})


def validation_problems(
    details: Sequence[ErrorDetails], document: Document, model: type[BaseModel]
) -> Iterator[Problem]:
    """Pydantic's findings (`error.errors()`), each at its place in the file; of very many, the first."""
    placed = [(_place(detail, document.data), detail) for detail in details[:MAX_FILE_PROBLEMS]]
    for path, same in groupby(placed, key=lambda found: found[0]):
        yield from _problems(path, [detail for _, detail in same], document, model)
    if len(details) > MAX_FILE_PROBLEMS:
        yield Problem(path=document.path, message=f"and {len(details) - MAX_FILE_PROBLEMS} problems more")


def _problems(
    path: KeyPath, details: Sequence[ErrorDetails], document: Document, model: type[BaseModel]
) -> Iterator[Problem]:
    wanted = list(dict.fromkeys(_EXPECTED[detail["type"]] for detail in details if detail["type"] in _EXPECTED))
    if wanted:  # the members of a union complain one by one: it is one mistake
        fix = boolean_fix(document, path, details[0]["input"]) if wanted == [_EXPECTED["bool_type"]] else None
        hint = f"YAML 1.2 takes it for text; write {fix.instead}" if fix else None
        yield document.problem(path, f"must be {' or '.join(wanted)}", hint=hint, fix=fix)
    for detail in details:
        if detail["type"] not in _EXPECTED:
            yield _problem(path, detail, document, model)


def _problem(path: KeyPath, detail: ErrorDetails, document: Document, model: type[BaseModel]) -> Problem:
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    match detail["type"]:
        case "extra_forbidden":
            known = _fields_at(model, path[:-1])
            fix = key_fix(document, path, known)
            hint = _suggest(last, [fix.instead] if fix else known)
            return document.problem(path, f"unknown key {shorten(last)!r}", hint=hint, at_key=True, fix=fix)
        case "missing":
            hint = _ALLOW_ALL if last == "allow" else None
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
            text = f"must begin with one of {first}, and go on with at most {most} of {others}"
            return document.problem(path, text)
        case _:
            return document.problem(path, _sentence(detail))


def _sentence(detail: ErrorDetails) -> str:
    """Pydantic's message without its preamble."""
    message = detail["msg"].removeprefix("Value error, ")
    if message.startswith("Input should be "):
        return "must be " + message.removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def _place(detail: ErrorDetails, data: Any) -> KeyPath:
    """Where in the data a finding belongs: for a missing key, where it would stand."""
    loc = detail["loc"]
    if detail["type"] == "missing":
        return (*_data_path(loc[:-1], data), *loc[-1:])
    return _data_path(loc, data)


def _data_path(loc: KeyPath, data: Any) -> KeyPath:
    """Pydantic's location without the labels of union members, which stand in no file.

    A label may be equal to a key beside it: the reading that reaches the last part is the one that is meant.
    """
    return max(_readings(loc, data), key=lambda path: (path[-1:] == loc[-1:], len(path)))


def _readings(loc: KeyPath, here: Any) -> Iterator[KeyPath]:
    """Every way to walk down the data by some of the location's parts."""
    if not loc:
        yield ()
        return
    part, rest = loc[0], loc[1:]
    listed = isinstance(here, list) and isinstance(part, int) and part < len(here)
    if listed or (isinstance(here, dict) and part in here):
        for reading in _readings(rest, here[part]):
            yield (part, *reading)
    yield from _readings(rest, here)


def _fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand at a path of a model."""
    here: list[type[BaseModel]] = [model]
    for part in path:
        fields = [_field(candidate, part) for candidate in here] if isinstance(part, str) else []
        here = [found for info in fields if info for found in _models_in(info.annotation)] or here
    return [info.alias or name for found in here for name, info in found.model_fields.items()]


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    return next((info for name, info in model.model_fields.items() if key in (name, info.alias)), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _suggest(word: str, known: Sequence[str]) -> str | None:
    if close := _closest(word, known):
        return f"did you mean {close!r}?"
    return f"known here: {', '.join(known)}" if known and len(known) <= 40 else None


def _closest(word: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(word, list(known), n=1, cutoff=0.55) if len(word) <= _MAX_WORD_CHARS else ()
    return close[0] if close else None
