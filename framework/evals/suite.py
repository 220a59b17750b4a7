"""Test cases of agents in files: what a case says, and the suite of an agent's cases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from textwrap import indent
from typing import Any

import yaml

from framework.config.generations.generation import Generation
from framework.config.snapshot import TEST_SUFFIXES
from framework.config.yaml.document import Document, DocumentError, KeyPath, read_document, read_unique_keys
from framework.config.yaml.parse import ParseError, merge_valid, parse, sort_problems
from framework.types.case import SUB_AGENT_PREFIX, Case, CaseFile
from framework.types.errors import RequestError
from framework.types.problem import Problem
from framework.types.text import did_you_mean

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*[A-Za-z0-9_./-]|[A-Za-z_]")
_ITEM = re.compile(r"^cases:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*([ ]*)- ", re.MULTILINE)
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"])
"""Texts that some YAML parsers read as another type."""
_WIDTH = 140


def case_file(case: Mapping[str, Any]) -> str:
    """Return the text of a file with one case. Texts that YAML could read as another type are quoted."""
    text = yaml.dump({"cases": [dict(case)]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    assert read_document("case", text.encode()).data == {"cases": [dict(case)]}, "parsing the text returns the case"
    return text


def with_case(source: bytes, case: Mapping[str, Any], path: str) -> str:
    """Return the text of a case file with one case appended; the other lines are unchanged.

    Raises:
        RequestError: the file is invalid, or a case cannot be appended to it.
    """
    try:
        data = read_document(path, source).data
    except DocumentError as error:
        raise RequestError(f"{path} cannot be extended: {error}") from None
    before = data.get("cases")
    cases = before if isinstance(before, list) else []
    renamed = {**case, "name": _new_name(str(case["name"]), cases)}
    text = source.decode("utf-8-sig").rstrip() + "\n"
    item = case_file(renamed).partition("\n")[2]
    first = _ITEM.search(text)
    whole = text + indent(item, first[1] if first else "")
    try:
        is_intact = read_document(path, whole.encode()).data == {**data, "cases": [*cases, renamed]}
    except DocumentError:
        is_intact = False
    if not is_intact:
        raise RequestError(f"{path} cannot be extended: its `cases` are not a block list at its end; use another file")
    return whole


def _new_name(name: str, cases: Sequence[Any]) -> str:
    names_in_use = {case.get("name") for case in cases if isinstance(case, Mapping)}
    names = (name, *(f"{name} ({number})" for number in range(2, len(names_in_use) + 2)))
    return next(free for free in names if free not in names_in_use)


class _Dumper(yaml.SafeDumper):
    """A dumper without anchors, which the case format does not support."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    lines = value.split("\n")
    if len(lines) > 1 and all(line.isprintable() and line == line.strip() for line in lines if line) and lines[0]:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    plain = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) < _WIDTH // 2
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


@dataclass(frozen=True, slots=True)
class PlacedCase:
    """A case with its agent and its place in a file."""

    case: Case
    agent: str
    document: Document
    index: int

    @property
    def place(self) -> str:
        """`file:line`."""
        return self.document.place(("cases", self.index))

    def problem(self, message: str, *keys: str | int, hint: str | None = None) -> Problem:
        """Return a Problem at the case, or at one of its keys."""
        return self.document.problem(("cases", self.index, *keys), message, hint=hint, at_key=True)


@dataclass(frozen=True, slots=True)
class Suite:
    """The valid cases, in the order of their files, and the problems of the others."""

    cases: tuple[PlacedCase, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make a file or a case invalid."""
        return tuple(problem for problem in self.problems if problem.severity == "error")


def read_suite(generation: Generation) -> Suite:
    """Read the case files of a generation."""
    cases: list[PlacedCase] = []
    problems: list[Problem] = []
    for path, source in sorted(generation.cases.items()):
        if isinstance(source, Problem):
            problems.append(source)
            continue
        try:
            file, document = parse(path, source, CaseFile)
        except ParseError as error:
            problems.extend(error.problems)
            problems.extend(_problems(_valid_parts(path, source), generation))
            continue
        placed = [
            PlacedCase(case, case.agent or default_agent(path), document, index)
            for index, case in enumerate(file.cases)
        ]
        problems.extend(_problems(placed, generation))
        cases.extend(placed)
    return Suite(tuple(cases), tuple(sort_problems(problems)))


def _valid_parts(path: str, source: bytes) -> Iterator[PlacedCase]:
    """Yield what the valid parts of an invalid file name, so that all its mistakes are reported together."""
    document = read_unique_keys(path, source)
    cases = document.data.get("cases") if document else None
    if document is None or not isinstance(cases, list):
        return
    for index, fields in enumerate(cases):
        if isinstance(fields, dict):
            base = Case(name=f"case {index}", message="x").model_dump(mode="json")
            named = {key: fields[key] for key in ("name", "agent", "results", "expect") if key in fields}
            case = Case.model_validate(merge_valid(Case, base, named)[0])
            yield PlacedCase(case, case.agent or default_agent(path), document, index)


def default_agent(path: str) -> str:
    """Return the name of the agent that a case file is named after."""
    name = PurePosixPath(path).name
    return next((name.removesuffix(suffix) for suffix in TEST_SUFFIXES if name.endswith(suffix)), name)


def _problems(cases: Iterable[PlacedCase], generation: Generation) -> Iterator[Problem]:
    seen: set[str] = set()
    reported = {PurePosixPath(problem.path).stem for problem in generation.errors}
    """Agents not to report as missing: those with problems of their own files, and those already reported."""
    for placed in cases:
        name = placed.case.name
        if name in seen:
            yield placed.problem(f"duplicate case name: {name!r}", "name")
        seen.add(name)
        agent = generation.agents.get(placed.agent)
        if agent is None and placed.agent in reported:
            continue
        if agent is None:
            reported.add(placed.agent)
            message = (
                f"there is no usable agent {placed.agent!r}{did_you_mean(placed.agent, sorted(generation.agents))}"
            )
            hint = None if placed.case.agent else "name the file after its agent, or write `agent: NAME`"
            yield placed.problem(message, "agent", hint=hint)
            continue
        yield from _unknown_tools(
            placed, [*generation.tools, *(f"{SUB_AGENT_PREFIX}{other}" for other in generation.agents)]
        )


def _unknown_tools(placed: PlacedCase, known: list[str]) -> Iterator[Problem]:
    """Yield warnings for names that match no tool: expectations on them do not depend on what the agent does."""
    for path, pattern in _tool_patterns(placed.case):
        if not any(fnmatchcase(name, pattern) for name in known):
            problem = placed.problem(f"there is no tool {pattern!r}{did_you_mean(pattern, known)}", *path)
            yield problem.model_copy(update={"severity": "warning"})


def _tool_patterns(case: Case) -> Iterator[tuple[KeyPath, str]]:
    expect = case.expect
    for key in ("offered", "not_offered", "called", "called_exactly", "not_called", "denied"):
        for index, pattern in enumerate(getattr(expect, key) or ()):
            yield ("expect", key, index), pattern
    for index, pattern in enumerate(expect.asked or ()):
        if pattern not in ("plan", "step"):
            yield ("expect", "asked", index), pattern
    yield from ((("expect", "arguments", pattern), pattern) for pattern in expect.arguments)
    yield from ((("results", name), name) for name in case.results)
