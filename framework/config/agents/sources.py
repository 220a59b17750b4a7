"""Files of tool sources (`plugins/*.yaml`): the MCP servers and skill hosts of a project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from framework.config.agents.unexpected_errors import problem_from_exception
from framework.config.yaml.document import Document, DocumentError, read_document
from framework.config.yaml.environment import expand
from framework.config.yaml.parse import ParseError, mask_problems, sort_problems, validation_problems
from framework.types.problem import Problem
from framework.types.tool_servers import McpServer, SkillHost, Sources

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """One source, as a file declares it."""

    name: str
    """What the names of its tools begin with: `mcp.docs`, `skill.files`."""
    config: McpServer | SkillHost
    document: Document
    path: tuple[str, str]

    def problem(self, message: str) -> Problem:
        """A warning at the source's place: agents go on without what it cannot give."""
        found = self.document.problem(self.path, message, at_key=True)
        return found.model_copy(update={"severity": "warning", "excerpt": None})


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """All sources of a project, by name."""

    declared: Mapping[str, DeclaredSource]
    problems: tuple[Problem, ...] = ()


class SourceCache:
    """Reads the files when their bytes change; one that cannot be used keeps what it declared last."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, tuple[DeclaredSource, ...], tuple[Problem, ...]]] = {}

    def read(self, files: Mapping[str, bytes], unreadable: Mapping[str, Problem]) -> SourceFiles:
        """What these files declare. Of two that use one name, the first by path has it."""
        before, self._read = self._read, {}
        for path in [path for path in unreadable if path in before]:
            self._read[path] = (b"", before[path][1], ())  # why, the snapshot tells
        for path in (path for path in files if path.endswith(_SUFFIXES)):
            known = before.get(path)
            if known and known[0] == files[path]:
                self._read[path] = known
                continue
            try:
                self._read[path] = files[path], tuple(read_sources(path, files[path], os.environ)), ()
            except ParseError as error:
                self._read[path] = files[path], known[1] if known else (), error.problems
            except Exception as error:  # noqa: BLE001 - whatever one file causes, the others are read
                self._read[path] = files[path], known[1] if known else (), (problem_from_exception(path, error),)
        declared: dict[str, DeclaredSource] = {}
        problems: list[Problem] = []
        for _, (_, found, wrong) in sorted(self._read.items()):
            problems.extend(wrong)
            for source in found:
                if first := declared.get(source.name):
                    message = f"{source.name} is also declared in {first.document.path}, which is used"
                    problems.append(source.document.problem(source.path, message, at_key=True))
                else:
                    declared[source.name] = source
        return SourceFiles(declared, tuple(problems))


def read_sources(path: str, source: bytes, environ: Mapping[str, str]) -> Iterator[DeclaredSource]:
    """What one file declares; raises ParseError, which shows no line that holds a secret."""
    try:
        document = read_document(path, source)
    except DocumentError as error:
        raise ParseError(mask_problems([error.problem], source)) from None
    data, problems = expand(document, environ)
    if problems:
        raise ParseError(mask_problems(problems, source))
    try:
        found = Sources.model_validate(data)
    except ValidationError as error:
        wrong = validation_problems(error.errors(include_url=False), document, Sources)
        raise ParseError(mask_problems(sort_problems(wrong), source)) from None
    for name, server in found.mcp_servers.items():
        yield DeclaredSource(f"mcp.{name}", server, document, ("mcp_servers", name))
    for name, host in found.skill_hosts.items():
        yield DeclaredSource(f"skill.{name}", host, document, ("skill_hosts", name))
