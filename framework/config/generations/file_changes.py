"""The texts of the files in archived generations, and which generations changed those of one agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from framework.config.agents.compile import template_names
from framework.config.generations.history import ArchivedGeneration, HistoryEntry
from framework.config.templates.prompts import PROMPTS_FOLDER
from framework.config.yaml.parse import parse_agent
from framework.types.frozen import Frozen
from framework.types.problem import Change
from framework.types.redact import redact

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
    if entries and entries[0].number == 1 and name in entries[0].archived.paths:
        yield _revision(None, entries[0], name)
    for before, after in pairwise(entries):
        if after.archived.version(name) != before.archived.version(name):
            yield _revision(before, after, name)


def agent_texts(archived: ArchivedGeneration, name: str) -> dict[str, str]:
    """Return the texts of an agent's file and of the project's templates that it uses; empty without the agent."""
    if name not in archived.paths:
        return {}
    path, source, prompts = archived.paths[name], archived.sources[name], archived.contexts[name].prompts
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
