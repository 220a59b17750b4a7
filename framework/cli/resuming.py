"""Resumes a stored run from the terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from framework.cli.exporting import exporting
from framework.cli.location import Location, store_url
from framework.cli.records import find_run
from framework.cli.session import answer, view_of_run
from framework.cli.startup_problems import StartupProblems
from framework.engine.runtime.runtime import Runtime
from framework.types.state import Confirmation, Decision, RunResult


@asynccontextmanager
async def open_runtime(location: Location, *, quiet: bool = True) -> AsyncIterator[Runtime]:
    """Open a project's runtime on its store; print its startup problems unless `quiet`."""
    with exporting(location.settings()):
        url = store_url(location)
        opened = Runtime.open(location.root, store=url, watch=False, single_user=True, gate_start=False)
        async with opened as runtime:
            StartupProblems().show(() if quiet else runtime.catalog.current.startup_problems)
            yield runtime


async def resume_run(
    location: Location,
    run: str,
    decide: Callable[[Sequence[Confirmation]], Awaitable[Mapping[str, Decision]]],
    *,
    user: str | None = None,
    quiet: bool,
) -> RunResult:
    """Resume a run until it ends or waits again.

    Args:
        location: the project.
        run: the id of a run, a prefix of one, or `last`.
        decide: returns the decisions on pending confirmations.
        user: the user who decides.
        quiet: show no progress.

    Raises:
        RunNotFound: no such run is stored.
        RequestError: the run cannot be resumed, or a decision does not match.
    """
    async with open_runtime(location, quiet=quiet) as runtime:
        state = await find_run(runtime.store, run)
        decisions = await decide(state.pending)
        resumed = runtime.resume_stream(state.run_id, decisions, user=user)
        return await answer(runtime, resumed, None if quiet else view_of_run(f"● {state.agent} (resumed)"))
