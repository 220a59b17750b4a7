"""The bodies of the routes for the project's files: their text without secrets, and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from framework.config.agents.file_uses import agents_by_file, template_variables
from framework.config.file_text import readable_text
from framework.config.files.editing import edit_refusal
from framework.config.files.snapshot import PLUGINS, PROMPTS, Snapshot, is_case_file, source_digest
from framework.config.generations.candidate import Candidate
from framework.config.generations.catalog import Catalog
from framework.config.generations.file_changes import FileChange
from framework.config.generations.generation import Generation
from framework.config.generations.history import HistoryEntry
from framework.config.overlay import is_settings_file
from framework.server.paging import page_of
from framework.server.schemas import PastConfig, ResponseModel, redact_changes, redact_problems
from framework.types.problem import Change, Problem

MAX_SHOWN_FILES = 100
"""Number of changed files of a generation that are returned."""

FileKind = Literal["agent", "cases", "template", "plugin", "sources", "settings"]
"""What a file defines: `sources` are tool servers."""
FileState = Literal["live", "changed", "invalid", "deleted"]
"""`live`: as in the live generation; `changed`: not live yet; `invalid`: its last good version is live, if there is
one; `deleted`: live, but no longer on the disk."""

EditOutcome = Literal["applied", "partial", "rejected", "unchanged", "pending"]
"""The result of an edit: that of its reload, or `pending` if it has not ended yet."""


class ProjectFile(ResponseModel):
    """A file of the project."""

    path: str
    """Path relative to the project's folder."""
    kind: FileKind
    size: int
    """Bytes on the disk."""
    digest: str | None = None
    """Digest of the bytes on the disk, for `If-Match`; None if the file cannot be read."""
    state: FileState
    editable: bool
    """Whether the file may be edited over HTTP by a key with the role `admin`, if `server.allow_edit` is set."""
    reason: str | None = None
    """Why it is not editable."""
    agents: tuple[str, ...]
    """The live agents that use it."""


class FileList(ResponseModel):
    """The files that the project is made of."""

    generation: int
    files: tuple[ProjectFile, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


class Variable(ResponseModel):
    """A variable that a template can use."""

    name: str
    description: str
    agents: tuple[str, ...]
    """The agents whose file defines it; empty if every template has it."""


class FileContent(ProjectFile):
    """A file with its text."""

    text: str | None = None
    """Text on the disk, with secrets masked; None if there is none to show."""
    live: str | None = None
    """Text in the live generation, if it differs."""
    problems: tuple[Problem, ...]
    """Errors and warnings of the file."""
    variables: tuple[Variable, ...] = ()
    """For a template: the variables that it can use."""


class GenerationDetail(PastConfig):
    """A generation of the history with its files."""

    previous: int | None = None
    """The generation that it is compared with; None if that is not in the history."""
    agents: tuple[str, ...]
    problems: tuple[Problem, ...]
    files: tuple[FileChange, ...]
    """The files that differ from the previous generation, at most 100."""
    rollback: tuple[Change, ...]
    """The changes that a rollback to it would make now."""


class CandidateFiles(BaseModel):
    """Texts of files to check in place of those on the disk."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    files: dict[str, str] = Field(default={}, max_length=100)
    """Texts by path, of agent files and templates. Files that do not exist count as new."""


class NewText(BaseModel):
    """The text to write."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    text: str


class AppliedEdit(ResponseModel):
    """The result of an edit that was written."""

    path: str
    digest: str
    """Digest of the text that was written."""
    outcome: EditOutcome
    """`applied`, `partial` or `rejected`, as in a check; `unchanged`: the file had this text; `pending`: the files are
    written, but their reload has not ended yet."""
    generation: int
    """The live generation."""
    widens: bool
    """Whether some agent may do or consume more than before."""
    changes: tuple[Change, ...]
    """What the edit changes, as checked before it was written."""
    problems: tuple[Problem, ...]


def file_list(catalog: Catalog, cursor: str | None = None, limit: int | None = None) -> FileList:
    """Return a page of the files of a project. Reads them from the disk."""
    generation, snapshot = catalog.current, catalog.snapshot()
    users = agents_by_file(generation.agents, generation.files)
    live = generation.files.keys()
    broken = {problem.path for problem in snapshot.problems}
    every = sorted({*snapshot.files, *snapshot.cases, *live, *broken})
    paths, following = page_of(every, cursor, limit, str)
    return FileList(
        generation=generation.number,
        files=tuple(_project_file(catalog, snapshot, path, users.get(path, ())) for path in paths),
        next=following,
    )


def file_content(catalog: Catalog, path: str) -> FileContent | None:
    """Return a file with its text; None if the project has no such file. Reads all files from the disk."""
    generation, snapshot = catalog.current, catalog.snapshot()
    source = source_on_disk(snapshot, path)
    if source is None and path not in generation.files and not any(one.path == path for one in snapshot.problems):
        return None
    users = agents_by_file(generation.agents, generation.files)
    file, live = _project_file(catalog, snapshot, path, users.get(path, ())), live_source(generation, path)
    text = readable_text(path, source) if source is not None else None
    shown = readable_text(path, live).text if live not in (None, source) else None
    variables = (
        template_variables(generation.agents, path.removeprefix(PROMPTS + "/")) if file.kind == "template" else ()
    )
    return FileContent(
        **dict(file),
        text=text and text.text,
        live=shown,
        problems=redact_problems([problem for problem in catalog.problems if problem.path == path]),
        variables=tuple(Variable(name=one.name, description=one.description, agents=one.agents) for one in variables),
    )


def generation_detail(catalog: Catalog, number: int) -> GenerationDetail:
    """Return a generation of the history. Raises GenerationNotFound."""
    entry, live = catalog.history.entry(number), catalog.current
    before = next((one for one in catalog.history if one.number == number - 1), None)
    restored = live if number == live.number else entry.archived.restore(live)
    return GenerationDetail(
        **dict(PastConfig.of(entry, live.number)),
        previous=before and before.number,
        agents=entry.agents,
        problems=redact_problems(entry.problems),
        files=_file_changes(entry, before),
        rollback=redact_changes(Candidate.of(restored, live).changes),
    )


def live_source(generation: Generation, path: str) -> bytes | None:
    """Return the bytes of a file in a generation: of an invalid agent file, those of its last good version."""
    for agent in generation.agents.values():
        if agent.path == path:
            return agent.last_good.document.source
    return generation.files.get(path)


def edit_obstacle(catalog: Catalog, path: str, source: bytes | None) -> str | None:
    """Return why a file is not edited over HTTP; None if it is.

    Args:
        catalog: the project.
        path: relative to the project's folder.
        source: its content on the disk, if it exists.
    """
    if refusal := edit_refusal(path, catalog.root.name if catalog.is_single_file else None):
        return refusal
    text = readable_text(path, source) if source is not None else None
    if text and text.is_masked:
        return "it contains what looks like a secret, which is not shown: edit it on the server's machine"
    return text.reason if text else None


def _project_file(catalog: Catalog, snapshot: Snapshot, path: str, agents: tuple[str, ...]) -> ProjectFile:
    source = source_on_disk(snapshot, path)
    reason = edit_obstacle(catalog, path, source)
    unreadable = next((problem for problem in snapshot.problems if problem.path == path), None)
    if unreadable is not None:
        reason = reason or unreadable.message
    state = "deleted" if source is None and unreadable is None else _state(catalog, path, source)
    return ProjectFile(
        path=path,
        kind=_kind(path),
        size=len(source or b""),
        digest=None if source is None else source_digest(source),
        state=state,
        editable=reason is None,
        reason=reason,
        agents=agents,
    )


def _state(catalog: Catalog, path: str, source: bytes | None) -> FileState:
    if source is None or any(one.path == path and one.severity == "error" for one in catalog.problems):
        return "invalid"
    return "live" if is_case_file(path) or catalog.current.files.get(path) == source else "changed"


def source_on_disk(snapshot: Snapshot, path: str) -> bytes | None:
    """Return the content of a file; None if it does not exist or cannot be read."""
    source = snapshot.files.get(path) or snapshot.cases.get(path)
    return source if isinstance(source, bytes) else None


def _kind(path: str) -> FileKind:
    if is_settings_file(path):
        return "settings"
    if path.startswith(PLUGINS + "/"):
        return "plugin" if path.endswith(".py") else "sources"
    if path.startswith(PROMPTS + "/"):
        return "template"
    return "cases" if is_case_file(path) else "agent"


def _file_changes(entry: HistoryEntry, before: HistoryEntry | None) -> tuple[FileChange, ...]:
    """Return the files that differ from the entry before. Those of the first generation are all new."""
    if before is None and entry.number > 1:
        return ()
    new = entry.archived.without_agents.files
    old: Mapping[str, bytes] = before.archived.without_agents.files if before else {}
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return tuple(
        FileChange(path=path, before=_text(path, old), after=_text(path, new)) for path in paths[:MAX_SHOWN_FILES]
    )


def _text(path: str, files: Mapping[str, bytes]) -> str | None:
    return readable_text(path, files[path]).text if path in files else None
