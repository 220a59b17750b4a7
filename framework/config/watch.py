"""Watches the project's folders. An event is only a hint that something changed: the catalog's scan is the truth."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

from framework.config.catalog import Catalog
from framework.config.snapshot import FOLDERS

log = logging.getLogger(__name__)

STEP_MS = 20
RECONCILE_SECONDS = 2.0

Folders = dict[Path, tuple[int, int]]
"""The folders watched, each with its device and inode: one that was replaced needs a new watch."""


async def watch(catalog: Catalog, *, quiet: float) -> None:
    """Reload the catalog after every change, once files have been left alone for `quiet` seconds. Runs until cancelled.

    Folders that appear later, and changes that the operating system does not report, are found by a look every
    `RECONCILE_SECONDS`.
    """
    while True:
        try:
            await _watch_folders(catalog, _folders(catalog.root), quiet)
        except* (OSError, RuntimeError) as errors:
            log.warning("the file watcher failed and is started again: %s", errors.exceptions[0])
            await asyncio.sleep(RECONCILE_SECONDS)
        await catalog.reload()


async def _watch_folders(catalog: Catalog, folders: Folders, quiet: float) -> None:
    """Watch until the folders themselves are no longer the same."""
    from watchfiles import awatch  # not needed by a process that does not watch

    changes = awatch(
        *folders,
        watch_filter=None,  # the scan decides what counts; a filter here would miss swapped directories
        step=STEP_MS,
        debounce=400,
        rust_timeout=int(RECONCILE_SECONDS * 1000),
        yield_on_timeout=True,
    )
    async with aclosing(changes):
        async for changed in changes:
            if changed:
                await asyncio.sleep(quiet)
            await catalog.reload()
            if _folders(catalog.root) != folders:
                return


def _folders(root: Path) -> Folders:
    wanted = [root.parent] if root.is_file() else [root / name for name in FOLDERS]
    found: Folders = {}
    for folder in wanted:
        try:
            status = folder.stat()
        except OSError:
            continue
        found[folder] = (status.st_dev, status.st_ino)
    return found or {root: (0, 0)}
