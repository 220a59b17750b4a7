"""Checks and writes edits of the project's files, and waits until they are live."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import suppress

from framework.config.files.editing import FileChanged, write_if_unchanged
from framework.config.files.snapshot import source_digest
from framework.config.generations.candidate import Preview
from framework.config.generations.catalog import Catalog
from framework.config.yaml.document import MAX_DOCUMENT_BYTES
from framework.server.errors import (
    EditConflict,
    EditDisabled,
    EditRefused,
    EditRejected,
    NotUsable,
    PreconditionRequired,
)
from framework.server.file_schemas import AppliedEdit, EditOutcome, edit_obstacle, source_on_disk
from framework.server.schemas import redact_changes, redact_problems
from framework.types.errors import RequestError
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem

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
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise RequestError("If-None-Match accepts only *, which creates the file", param="if-none-match")
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

        Args:
            catalog: the project.
            watched: whether edits of its files go live on their own.
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
