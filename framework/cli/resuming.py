"""Going on with a run from the terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from framework.cli.exporting import exporting
from framework.cli.location import Location, show_problem, store_url
from framework.cli.records import find_run
from framework.cli.session import answer
from framework.engine.runtime.runtime import Runtime
from framework.types.state import Confirmation, Decision, RunResult


@asynccontextmanager
async def opened(location: Location, *, quiet: bool = True) -> AsyncIterator[Runtime]:
    """The project's runtime, on the store that its settings name; files that cannot be used are told unless `quiet`."""
    with exporting(location.settings()):
        async with Runtime.open(location.root, store=store_url(location), watch=False, single_user=True) as runtime:
            for problem in () if quiet else runtime.catalog.current.startup_problems:
                show_problem(problem)
            yield runtime


async def go_on(
    location: Location,
    run: str,
    decide: Callable[[Sequence[Confirmation]], Awaitable[Mapping[str, Decision]]],
    *,
    user: str | None = None,
    quiet: bool,
) -> RunResult:
    """Go on with a run until it ends or asks again.

    Args:
        location: the project.
        run: a run's id, the beginning of one, or `last`.
        decide: what is decided of what it asks.
        user: who decides.
        quiet: show nothing while it goes on.

    Raises:
        RunNotFound: there is no such run.
        RequestError: it cannot go on, or not like that.
    """
    async with opened(location, quiet=quiet) as runtime:
        state = await find_run(runtime.store, run)
        decisions = await decide(state.pending)
        going_on = runtime.resume_stream(state.run_id, decisions, user=user)
        return await answer(runtime, going_on, quiet=quiet, title=f"● {state.agent} (goes on)")
