"""Reads the declarations of MCP servers and skill hosts in `plugins/*.yaml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.yaml.document import Document, DocumentError, read_document
from framework.config.yaml.environment import expand, is_affected
from framework.config.yaml.parse import ParseError, data_path, mask_problems, sort_problems, validation_problems
from framework.types.problem import Problem
from framework.types.tool_servers import McpServer, SkillHost, Sources

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """The declaration of one MCP server or skill host."""

    name: str
    """The prefix of its tool names: `mcp.docs`, `skill.files`."""
    config: McpServer | SkillHost
    document: Document
    path: tuple[str, str]

    def problem(self, message: str) -> Problem:
        """Return a warning at the line of the declaration. Only a warning: agents run without the source's tools."""
        problem = self.document.problem(self.path, message, at_key=True)
        return problem.model_copy(update={"severity": "warning", "excerpt": None})


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """All sources that a project declares, by name."""

    declared: Mapping[str, DeclaredSource]
    problems: tuple[Problem, ...] = ()

    @property
    def configs(self) -> dict[str, McpServer | SkillHost]:
        """The configurations by name."""
        return {name: source.config for name, source in self.declared.items()}


class SourceCache:
    """Reads the files when their bytes change. An invalid file keeps its last valid declarations."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, tuple[DeclaredSource, ...], tuple[Problem, ...]]] = {}

    def read(self, files: Mapping[str, bytes], unreadable: Mapping[str, Problem]) -> SourceFiles:
        """Return the sources that these files declare. For duplicate names, the first file by path wins."""
        before, self._read = self._read, {}
        for path in [path for path in unreadable if path in before]:
            self._read[path] = (b"", before[path][1], ())  # the snapshot reports the reason
        for path in (path for path in files if path.endswith(_SUFFIXES)):
            cached = before.get(path)
            if cached and cached[0] == files[path]:
                self._read[path] = cached
                continue
            try:
                self._read[path] = files[path], tuple(read_sources(path, files[path], os.environ)), ()
            except ParseError as error:
                self._read[path] = files[path], cached[1] if cached else (), error.problems
            except Exception as error:  # noqa: BLE001 - one file must not keep the others from being read
                self._read[path] = files[path], cached[1] if cached else (), (problem_from_exception(path, error),)
        declared: dict[str, DeclaredSource] = {}
        problems: list[Problem] = []
        for _, (_, sources, errors) in sorted(self._read.items()):
            problems.extend(errors)
            for source in sources:
                if first := declared.get(source.name):
                    message = f"{source.name} is already declared in {first.document.path}; this declaration is ignored"
                    problems.append(source.document.problem(source.path, message, at_key=True))
                else:
                    declared[source.name] = source
        return SourceFiles(declared, tuple(problems))


def read_sources(path: str, source: bytes, environ: Mapping[str, str]) -> Iterator[DeclaredSource]:
    """Yield the sources that one file declares. Raises ParseError, without lines that contain a secret."""
    try:
        document = read_document(path, source)
    except DocumentError as error:
        raise ParseError(mask_problems(error.problems, source)) from None
    data, unset = expand(document, environ)
    problems = [problem for _, problem in unset]
    try:
        sources = Sources.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        own = [detail for detail in details if not is_affected(data_path(detail["loc"], data), unset)]
        problems += validation_problems(own if problems else details, document, Sources)
        raise ParseError(mask_problems(sort_problems(problems), source)) from None
    if problems:
        raise ParseError(mask_problems(problems, source))
    for name, server in sources.mcp_servers.items():
        yield DeclaredSource(f"mcp.{name}", server, document, ("mcp_servers", name))
    for name, host in sources.skill_hosts.items():
        yield DeclaredSource(f"skill.{name}", host, document, ("skill_hosts", name))
