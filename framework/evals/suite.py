"""Reads a project's cases from its `*.test.yaml` files, and validates them against its agents and tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from framework.config.files.snapshot import TEST_SUFFIXES
from framework.config.generations.generation import Generation
from framework.config.yaml.document import Document, KeyPath, read_unique_keys
from framework.config.yaml.parse import ParseError, parse, sort_problems
from framework.config.yaml.partial import merge_valid
from framework.types.case import SUB_AGENT_PREFIX, Case, CaseFile
from framework.types.problem import Problem
from framework.types.text import did_you_mean


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
