"""Files of a project over HTTP: read, edited, restored, with what each change did."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from framework.config.agents.findings import agents_by_file, template_variables
from framework.config.editing import FileChanged, edit_refusal, readable_text, write_if_unchanged
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Candidate, Generation, Preview
from framework.config.generations.history import FileChange, HistoryEntry
from framework.config.overlay import is_settings_file
from framework.config.schema import SCHEMAS, SchemaKind, names_of
from framework.config.snapshot import AGENTS, API_DOCUMENTS, PLUGINS, PROMPTS, TRIGGERS, Snapshot, is_case_file
from framework.config.yaml.document import MAX_DOCUMENT_BYTES
from framework.server.errors import (
    EditConflict,
    EditDisabled,
    EditRefused,
    EditRejected,
    FileNotFound,
    NotUsable,
    PreconditionRequired,
)
from framework.server.identity import ProjectAdmin, requires
from framework.server.request_handling import (
    Cursor,
    IdempotencyHeader,
    Keyed,
    MessageRoute,
    OptionalSize,
    ServedRuntime,
    ServerState,
    api_router,
    error_responses,
    json_response,
    page_of,
    shared,
)
from framework.server.schemas import (
    CheckedConfig,
    ConfigHistory,
    LiveConfig,
    PastConfig,
    ResponseModel,
    Rollback,
    redact_changes,
    redact_problems,
    redacted_json,
)
from framework.types.errors import ConfigError, RequestError
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Change, Problem
from framework.types.redact import redact
from framework.types.text import source_digest

log = logging.getLogger(__name__)
MAX_SHOWN_FILES = 100
FileKind = Literal["agent", "cases", "template", "plugin", "sources", "skill", "settings"]
"""What a file defines: `sources` are tool servers, `skill` is a file of an Agent Skill."""
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

    `source` is its content on the disk, if it exists.
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
    if path.startswith((PLUGINS + "/", API_DOCUMENTS + "/", TRIGGERS + "/")):
        return "plugin" if path.endswith(".py") else "sources"
    if path.startswith(PROMPTS + "/"):
        return "template"
    if "/" in path and not path.startswith(AGENTS + "/"):
        return "skill"
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


_ENTITY_TAG = re.compile(r'"([0-9a-f]{16})"')
_MAX_WAIT_SECONDS = 15.0
"""Longest wait for the reload of an edit. A widening edit is published after a second, by default."""


def expected_digest(if_match: str | None, if_none_match: str | None) -> str | None:
    """Return the digest of the version that an edit replaces, from its headers; None if it creates the file.

    Raises:
        PreconditionRequired: neither header is set.
        RequestError: a header names no version.
    """
    if if_match is not None and if_none_match is not None:
        raise RequestError("If-Match and If-None-Match exclude each other: send one of them", param="if-match")
    if if_none_match is not None and if_none_match.strip() != "*":
        raise RequestError("If-None-Match accepts only *, which creates the file", param="if-none-match")
    if if_none_match is not None:
        return None
    if if_match is None:
        raise PreconditionRequired(
            "an edit needs the version that it replaces: send If-Match with the ETag of the file, or If-None-Match: *"
            " to create it"
        )
    if not (tag := _ENTITY_TAG.fullmatch(if_match.strip())):
        raise RequestError('If-Match accepts one ETag of the file, such as "7f3a91c05e1d2b46"', param="if-match")
    return tag[1]


def encode_texts(catalog: Catalog, texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the bytes of texts to check or write.

    Raises:
        RequestError: a file may not be edited over HTTP, or a text is too long or not allowed in a file.
    """
    found = {}
    for path, text in texts.items():
        if obstacle := edit_obstacle(catalog, path, None):
            raise EditRefused(f"{path} is not edited over HTTP: {obstacle}", param="path")
        if "\0" in text:
            raise RequestError(f"{path}: character U+0000 is not allowed in files", param="text")
        found[path] = text.encode()
        if len(found[path]) > MAX_DOCUMENT_BYTES:
            message = f"{path} would have {len(found[path])} bytes; the limit is {MAX_DOCUMENT_BYTES}"
            raise RequestError(message, param="text")
    return found


class FileEdits:
    """Writes edits, one after another."""

    def __init__(self, catalog: Catalog, *, watched: bool) -> None:
        """Create a writer.

        `watched` is whether edits of its files go live on their own.
        """
        self._catalog, self._watched = catalog, watched
        self._root = catalog.root.parent if catalog.is_single_file else catalog.root
        self._lock = asyncio.Lock()

    async def apply(self, path: str, text: str, expected: str | None) -> AppliedEdit:
        """Write the text of a file if it still is the expected version, and wait until it is live.

        Raises:
            EditDisabled: `server.allow_edit` is not set.
            EditRefused: this file is not edited over HTTP.
            EditConflict: the file has changed.
            EditRejected: the edit would not go live, or adds an error.
            NotUsable: the file cannot be written.
        """
        catalog = self._catalog
        if not catalog.current.settings.server.allow_edit:
            raise EditDisabled("editing over HTTP is off: set server.allow_edit: true in agentsd.yaml")
        content = encode_texts(catalog, {path: text})[path]
        reloads: asyncio.Queue[ConfigReloaded | ConfigRejected] = asyncio.Queue()
        stop = catalog.subscribe(reloads.put_nowait)
        try:
            async with self._lock:
                await self._check_version(path, expected)
                preview = await catalog.preview({path: content})
                _require_valid(path, preview, catalog.problems)
                if is_new := source_digest(content) != expected:
                    await self._write(path, content, expected)
            if not is_new:
                outcome: EditOutcome = "unchanged"
            elif preview.outcome == "unchanged":  # test cases that decide nothing: no generation contains them
                outcome = self._published()
            else:
                outcome = await self._wait(path, content, reloads)
        finally:
            stop()
        return AppliedEdit(
            path=path,
            digest=source_digest(content),
            outcome=outcome,
            generation=catalog.current.number,
            widens=preview.candidate.widens,
            changes=redact_changes(preview.candidate.changes),
            problems=redact_problems(catalog.problems if outcome == "rejected" else preview.problems),
        )

    async def _check_version(self, path: str, expected: str | None) -> None:
        """Raise EditConflict before anything is built, and EditRefused if the present text is not shown over HTTP."""
        snapshot = await asyncio.to_thread(self._catalog.snapshot)
        present = source_on_disk(snapshot, path)
        if obstacle := edit_obstacle(self._catalog, path, present):
            raise EditRefused(f"{path} is not edited over HTTP: {obstacle}", param="path")
        digest = None if present is None else source_digest(present)
        if digest != expected:
            raise EditConflict(path, expected, digest)

    async def _write(self, path: str, content: bytes, expected: str | None) -> None:
        try:
            await asyncio.to_thread(write_if_unchanged, self._root, path, content, expected)
        except FileChanged as changed:
            raise EditConflict(path, expected, changed.digest) from None
        except OSError as error:
            raise NotUsable(f"{path} cannot be written: {error.strerror}") from None

    async def _wait(
        self, path: str, content: bytes, events: asyncio.Queue[ConfigReloaded | ConfigRejected]
    ) -> EditOutcome:
        """Wait until a reload has published or rejected the file; `pending` if none does in time.

        A rejection may be about other files: those saved before this one, or broken ones beside it.
        """
        catalog = self._catalog
        was_read = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAX_WAIT_SECONDS if self._watched else 0):
                while content not in (catalog.current.files.get(path), catalog.current.cases.get(path)):
                    if was_read:
                        return "rejected"
                    await events.get()
                    was_read = catalog.has_read(path, content)
                return self._published()
        return "pending"

    def _published(self) -> EditOutcome:
        return "partial" if self._catalog.current.errors else "applied"


def _require_valid(path: str, preview: Preview, known: Collection[Problem]) -> None:
    """Raise EditRejected if a candidate would be rejected, or has errors in this file, or errors that are not known."""
    errors = [problem for problem in preview.problems if problem.severity == "error"]
    caused = [problem for problem in errors if problem.path == path or problem not in known]
    if preview.outcome == "rejected" or caused:
        raise EditRejected(f"the edit of {path} was not written: it would not go live", caused or errors)


_MATCH = "ETag of the version that the edit replaces."
_NONE_MATCH = "`*` creates the file."


def _redact_texts(schema: Any) -> Any:
    """Redact secrets in the texts of a schema, such as descriptions of agents, but not properties by their names."""
    if isinstance(schema, str):
        return redact(schema)
    if isinstance(schema, list):
        return [_redact_texts(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _redact_texts(item) for key, item in schema.items()}
    return schema


async def _in_thread(make: Any, *arguments: object) -> object:
    """Build and serialize a response in a thread: both take long for many files."""
    return await asyncio.to_thread(lambda: json_response(make(*arguments)))


def _tagged(body: BaseModel, digest: str | None) -> JSONResponse:
    headers: Mapping[str, str] = {"etag": f'"{digest}"'} if digest else {}
    return JSONResponse(redacted_json(body), headers=headers)


def _edits(state: ServerState) -> FileEdits:
    return FileEdits(state.runtime.catalog, watched=state.runtime.watcher is not None)


routes = api_router("configuration")
file_routes = api_router("configuration", MessageRoute)
_READS, _CHANGES = requires("read", all_agents=True), requires("admin", all_agents=True)


@file_routes.put("/config/files/{path:path}", response_model=AppliedEdit, responses=error_responses(409, 412, 413, 428))
async def write_file(
    request: Request,
    identity: ProjectAdmin,
    edits: Annotated[FileEdits, shared(_edits)],
    path: str,
    body: NewText,
    if_match: Annotated[str | None, Header(description=_MATCH)] = None,
    if_none_match: Annotated[str | None, Header(description=_NONE_MATCH)] = None,
) -> object:
    """Write an agent file or template, if it is still the version of `If-Match`, and wait until it is live."""
    applied = await edits.apply(path, body.text, expected_digest(if_match, if_none_match))
    client = request.client.host if request.client else "a socket"
    log.info("%s was edited by %s from %s: %s", path, identity.name, client, applied.outcome)
    return _tagged(applied, applied.digest)


@file_routes.post(
    "/config/check", response_model=CheckedConfig, dependencies=[_CHANGES], responses=error_responses(413)
)
async def check_config(runtime: ServedRuntime, candidate: CandidateFiles | None = None) -> object:
    """Return what the files, or these texts in their place, would change. Nothing is written or published."""
    catalog = runtime.catalog
    preview = await catalog.preview(encode_texts(catalog, candidate.files if candidate else {}))
    return await _in_thread(CheckedConfig.of, preview)


@file_routes.get("/config/files", response_model=FileList, dependencies=[_READS])
async def list_files(runtime: ServedRuntime, cursor: Cursor = None, limit: OptionalSize = None) -> object:
    """List the files of the project, with their state and the agents that use them."""
    return await _in_thread(file_list, runtime.catalog, cursor, limit)


@file_routes.get(
    "/config/files/{path:path}", response_model=FileContent, dependencies=[_READS], responses=error_responses(404)
)
async def read_file(runtime: ServedRuntime, path: str) -> object:
    """Return a file with its text, in which secrets are masked. The `ETag` is its digest."""
    found = await asyncio.to_thread(file_content, runtime.catalog, path)
    if found is None:
        raise FileNotFound("the project has no such file; the files are in GET /agent/config/files", param="path")
    return _tagged(found, found.digest)


@file_routes.get("/config/schema", dependencies=[_READS])
async def show_schema(
    runtime: ServedRuntime, kind: Annotated[SchemaKind, Query(description="Which files.")] = "agent"
) -> dict[str, Any]:
    """Return the JSON Schema of a kind of YAML files, with the names of the project as suggestions."""
    return await asyncio.to_thread(lambda: _redact_texts(SCHEMAS[kind](names_of(runtime.catalog))))


@routes.get("/config", response_model=LiveConfig, dependencies=[_READS])
async def show_config(runtime: ServedRuntime) -> object:
    """Return the live generation and the problems of the files."""
    return json_response(LiveConfig.of(runtime.catalog))


@routes.get("/config/history", response_model=ConfigHistory, dependencies=[_READS])
async def list_generations(runtime: ServedRuntime, cursor: Cursor = None, limit: OptionalSize = None) -> object:
    """List the generations in the history, the live one first."""
    live = runtime.catalog.current.number
    past = [PastConfig.of(entry, live) for entry in runtime.catalog.history][::-1]
    page, following = page_of(past, cursor, limit, lambda entry: str(entry.generation))
    return json_response(ConfigHistory(generations=tuple(page), next=following))


@routes.get(
    "/config/history/{generation}",
    response_model=GenerationDetail,
    dependencies=[_READS],
    responses=error_responses(404),
)
async def show_generation(runtime: ServedRuntime, generation: Annotated[int, Path(ge=1)]) -> object:
    """Return a generation of the history: its changes, its files, and what a rollback to it would change."""
    return await asyncio.to_thread(lambda: json_response(generation_detail(runtime.catalog, generation)))


@routes.post("/config/rollback", response_model=LiveConfig, responses=error_responses(404, 409, 413))
async def roll_back(
    request: Request,
    identity: ProjectAdmin,
    runtime: ServedRuntime,
    keyed: Keyed,
    rollback: Rollback,
    idempotency_key: IdempotencyHeader = None,
) -> object:
    """Publish an earlier generation again. It stays live until the files change."""

    async def rolled_back() -> Response:
        try:
            await runtime.catalog.rollback(rollback.generation)
        except ConfigError as error:
            raise NotUsable(error.message, error.problems) from None
        client = request.client.host if request.client else "a socket"
        log.info("rolled back to generation %d, requested by %s from %s", rollback.generation, identity.name, client)
        return json_response(LiveConfig.of(runtime.catalog))

    return await keyed.once(request, idempotency_key, rolled_back)
