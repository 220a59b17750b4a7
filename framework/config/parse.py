"""A file's data as a typed model, or every Problem with it at once: place, caret, and the name that was meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from framework.config.document import Document, DocumentError, Path, read_document
from framework.types.problem import Problem
from framework.types.spec import AgentSpec

M = TypeVar("M", bound=BaseModel)

_ALLOW_ALL = 'say which tools are allowed, for instance `allow: ["*"]` for all of them'


class ParseError(Exception):
    """A file that is not what it should be; `problems` lists everything found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def parse_agent(path: str, source: bytes) -> tuple[AgentSpec, Document]:
    """Parse an agent file; raises ParseError."""
    return parse(path, source, AgentSpec)


def parse(path: str, source: bytes, model: type[M]) -> tuple[M, Document]:
    """Parse a file as any of our models; raises ParseError."""
    try:
        document = read_document(path, source)
    except DocumentError as error:
        raise ParseError([error.problem]) from None
    try:
        return model.model_validate(document.data), document
    except ValidationError as error:
        found = spec_problems(error, document, model)
        raise ParseError(sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0))) from None


def spec_problems(error: ValidationError, document: Document, model: type[BaseModel]) -> Iterator[Problem]:
    """Every finding of pydantic, at its place in the file."""
    for detail in error.errors(include_url=False):
        yield _problem(detail, document, model)


def _problem(detail: ErrorDetails, document: Document, model: type[BaseModel]) -> Problem:
    path = _data_path(detail["loc"], document.data)
    last = detail["loc"][-1] if detail["loc"] else ""
    match detail["type"]:
        case "extra_forbidden":
            fields = _fields_at(model, path[:-1])
            return document.problem(path, f"unknown key {last!r}", hint=_suggest(str(last), fields), at_key=True)
        case "missing":
            hint = _ALLOW_ALL if last == "allow" else None
            return document.problem(path, f"the key {last!r} is missing", hint=hint, at_key=True)
        case "literal_error" | "enum":
            expected = str(detail["ctx"].get("expected", ""))
            options = [option.strip("' ") for option in expected.replace(" or ", ",").split(",")]
            return document.problem(path, f"must be {expected}", hint=_suggest(str(detail["input"]), options))
        case _:
            return document.problem(path, _sentence(detail))


def _sentence(detail: ErrorDetails) -> str:
    """Pydantic's message without its preamble."""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return message if message != detail["msg"] else message[:1].lower() + message[1:]


def _data_path(loc: tuple[int | str, ...], data: Any) -> Path:
    """Pydantic's location without the labels of union members, which stand in no file."""
    path: Path = ()
    here = data
    for index, part in enumerate(loc):
        listed = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if listed or (isinstance(here, dict) and part in here):
            path, here = (*path, part), here[part]
        elif index == len(loc) - 1 and isinstance(here, dict):
            path = (*path, part)  # a missing key: the place is the one around it
    return path


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
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
    close = get_close_matches(word, known, n=1, cutoff=0.55)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(known)}" if known and len(known) <= 40 else None
