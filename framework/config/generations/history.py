"""The history of generations: archive, changes of each file, and rollbacks that are held."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from framework.config.agents.compile import Agent, CompileContext, compile_agent, template_names
from framework.config.generations.generation import Candidate, Generation
from framework.config.snapshot import Snapshot, build_snapshot
from framework.config.templates.prompts import PROMPTS_FOLDER
from framework.config.yaml.parse import parse_agent
from framework.types.errors import ConfigError, GenerationNotFound
from framework.types.frozen import Frozen
from framework.types.installation import DATA_FOLDER, write_private_file
from framework.types.problem import Change, Problem
from framework.types.redact import redact

log = logging.getLogger(__name__)


_MAX_ENTRIES = 20
Trigger = Literal["startup", "watch", "api", "rollback", "source"]


class _ArchivedAgent(NamedTuple):
    """The file of an agent, and what it was compiled in."""

    path: str
    source: bytes
    digest: str
    context: CompileContext
    """Mostly the same object as that of other agents."""
    stale: tuple[Problem, ...]
    """The errors of its file, if that was invalid."""
    restricted: Agent | None
    """The agent itself, if an invalid file restricts it."""


@dataclass(frozen=True, slots=True)
class ArchivedGeneration:
    """A generation with the files of its agents instead of the agents."""

    without_agents: Generation
    """The generation without its agents."""
    agents: Mapping[str, _ArchivedAgent]

    @classmethod
    def of(cls, generation: Generation) -> ArchivedGeneration:
        """Archive a generation."""
        agents = {}
        for name, agent in generation.agents.items():
            good, restricted = agent.last_good, agent if agent.original else None
            source = agent.document.source
            agents[name] = _ArchivedAgent(agent.path, source, good.digest, good.context, agent.stale, restricted)
        return cls(replace(generation, agents={}), agents)

    @property
    def stale(self) -> set[str]:
        """The names of the agents whose files were invalid."""
        return {name for name, agent in self.agents.items() if agent.stale}

    def version(self, name: str) -> tuple[str, tuple[Problem, ...]] | None:
        """Return the digest of an agent and the errors in its file; None if there is no such agent."""
        return (self.agents[name].digest, self.agents[name].stale) if name in self.agents else None

    def restore(self, current: Generation) -> Generation:
        """Return the generation. Agents that are equal in the current generation are shared with it."""
        agents = {name: _restored(agent, current.agents.get(name)) for name, agent in self.agents.items()}
        return replace(self.without_agents, agents=agents)


def _restored(archived: _ArchivedAgent, current: Agent | None) -> Agent:
    if archived.restricted:
        return archived.restricted
    if current and (current.digest, current.path) == (archived.digest, archived.path):
        return current if current.stale == archived.stale else replace(current, stale=archived.stale)
    spec, document = parse_agent(archived.path, archived.source)
    agent, _ = compile_agent(spec, document, archived.digest, archived.context)
    return replace(agent, stale=archived.stale) if archived.stale else agent


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A generation with the time and the trigger of its publication."""

    archived: ArchivedGeneration
    at: datetime
    trigger: Trigger
    changes: tuple[Change, ...]
    """The changes against the generation before it."""

    @property
    def number(self) -> int:
        """The number of the generation."""
        return self.archived.without_agents.number

    @property
    def digest(self) -> str:
        """The digest of the files that it was built from."""
        return self.archived.without_agents.digest

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The errors and warnings of the generation."""
        return self.archived.without_agents.problems

    @property
    def unusable(self) -> tuple[str, ...]:
        """The paths of the invalid files."""
        return self.archived.without_agents.unusable

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return tuple(self.archived.agents)


class History:
    """The last generations that were live, oldest first; at most 20."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=_MAX_ENTRIES)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> HistoryEntry | None:
        """The entry of the live generation, or None before the first load."""
        return self._entries[-1] if self._entries else None

    def add(self, candidate: Candidate, trigger: Trigger) -> None:
        """Add a candidate that has just gone live."""
        archived = ArchivedGeneration.of(candidate.generation)
        self._entries.append(HistoryEntry(archived, datetime.now(UTC), trigger, candidate.changes))

    def entry(self, number: int) -> HistoryEntry:
        """Return the entry of a generation. Raises GenerationNotFound if it is not in the history."""
        for entry in self._entries:
            if entry.number == number:
                return entry
        numbers = ", ".join(str(entry.number) for entry in self._entries)
        raise GenerationNotFound(
            f"generation {number} is not in the history; available: {numbers or 'none'}", param="generation"
        )


HOLD_FILE = f"{DATA_FOLDER}/hold.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """A rollback that holds until the files change."""

    generation: int
    """Number of the generation that was rolled back to, in the process that did it."""
    digest: str
    """The digest of its files."""
    at: datetime
    ignored: str
    """The digest of the files on the disk, which are ignored."""
    files: Mapping[str, bytes]
    """The files of the generation, by path."""

    @classmethod
    def of(cls, archived: ArchivedGeneration, ignored: str) -> Hold:
        """Return the hold of a rollback to an archived generation."""
        generation = archived.without_agents
        # An agent with an invalid file has its last good version, unless the file restricts it: then it is left out.
        kept = (agent for agent in archived.agents.values() if agent.stale and not agent.restricted)
        files = {**generation.files, **{agent.path: agent.source for agent in kept}}
        return cls(generation.number, generation.digest, datetime.now(UTC), ignored, files)

    @property
    def snapshot(self) -> Snapshot:
        """The files of the generation, to build it again."""
        return build_snapshot(self.files, (), {})

    def __str__(self) -> str:
        rollback = f"a rollback to generation {self.generation} at {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"the files are held since {rollback}: they go live when they change"


class HoldFile:
    """The file of the hold, which a restart finds again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Hold | None:
        """Return the hold; None if there is none. Raises ConfigError if the file cannot be read."""
        try:
            return _hold_of(json.loads(self._path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}): it says which files a rollback holds back; "
                "delete it to let the files on the disk go live"
            ) from None

    def write(self, hold: Hold) -> None:
        """Save a hold. If that fails, it ends with this process, which is logged."""
        files = {path: b64encode(content).decode() for path, content in hold.files.items()}
        head = {"generation": hold.generation, "digest": hold.digest, "at": hold.at.isoformat()}
        content = json.dumps({"version": _VERSION, **head, "ignored": hold.ignored, "files": files}) + "\n"
        try:
            write_private_file(self._path, content)
        except OSError as error:
            log.warning("%s cannot be written (%s): the rollback is lost when this process ends", self._path, error)

    def delete(self) -> None:
        """Delete the hold, which has ended."""
        try:
            self._path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            log.warning("%s cannot be deleted (%s): the hold of the rollback has ended", self._path, error)


def _hold_of(document: Any) -> Hold:
    if document["version"] != _VERSION:
        raise ValueError(f"unknown format {document['version']!r}")
    files = {path: b64decode(content, validate=True) for path, content in document["files"].items()}
    number, digest, at = int(document["generation"]), str(document["digest"]), datetime.fromisoformat(document["at"])
    return Hold(number, digest, at, str(document["ignored"]), files)


_MAX_TEXT_CHARS = 200_000
"""Limit for the texts of one file change together; those of a larger one are left out."""


class FileChange(Frozen):
    """A file that differs between two generations. Secrets in its texts are masked."""

    path: str
    before: str | None = None
    """Text in the earlier generation; None if the file did not exist."""
    after: str | None = None
    """Text in the later generation; None if the file no longer exists."""
    too_large: bool = False
    """The texts are left out because of their size."""


@dataclass(frozen=True, slots=True)
class AgentRevision:
    """A generation in which an agent differs from the generation before it."""

    entry: HistoryEntry
    changes: tuple[Change, ...]
    """Changed keys of the agent's file."""
    files: tuple[FileChange, ...]
    """Changed files: the agent's own, and templates. Empty if only its tools or its sub-agents changed."""
    stale: bool
    """Whether its file was invalid, so that its last good version was live."""


def agent_revisions(history: Iterable[HistoryEntry], name: str) -> Iterator[AgentRevision]:
    """Yield the generations that changed an agent, oldest first.

    The oldest generation in the history has nothing to be compared with; it counts only if it is the first of all.
    """
    entries = list(history)
    if entries and entries[0].number == 1 and name in entries[0].archived.agents:
        yield _revision(None, entries[0], name)
    for before, after in pairwise(entries):
        if after.archived.version(name) != before.archived.version(name):
            yield _revision(before, after, name)


def agent_texts(archived: ArchivedGeneration, name: str) -> dict[str, str]:
    """Return the texts of an agent's file and of the project's templates that it uses; empty without the agent."""
    if (agent := archived.agents.get(name)) is None:
        return {}
    path, source, prompts = agent.path, agent.source, agent.context.prompts
    templates = prompts.closure(template_names(parse_agent(path, source)[0]))
    own = {f"{PROMPTS_FOLDER}/{one}": text for one, text in templates.items() if one in prompts.project_names}
    return {path: source.decode("utf-8-sig"), **own}


def file_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FileChange, ...]:
    """Compare the texts of files, by path."""
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return tuple(_file_change(path, before.get(path), after.get(path)) for path in paths)


def _revision(before: HistoryEntry | None, after: HistoryEntry, name: str) -> AgentRevision:
    earlier = agent_texts(before.archived, name) if before else {}
    changes = tuple(change for change in after.changes if change.agent == name)
    files = file_changes(earlier, agent_texts(after.archived, name))
    return AgentRevision(after, changes, files, stale=name in after.archived.stale)


def _file_change(path: str, before: str | None, after: str | None) -> FileChange:
    if len(before or "") + len(after or "") > _MAX_TEXT_CHARS:
        return FileChange(path=path, too_large=True)
    return FileChange(path=path, before=before and redact(before), after=after and redact(after))
