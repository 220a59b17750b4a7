"""Replays of stored runs over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Annotated, Literal

from fastapi import Request
from fastapi.responses import Response

from framework.config.generations.generation import Blueprints, Generation
from framework.config.templates.prompts import PROMPTS_FOLDER
from framework.engine.plan.executor import EXECUTORS
from framework.evals.suite import case_file, export_case
from framework.replay import Difference, DifferenceKind, replay
from framework.server.errors import ReplayTimeout, TooManyReplays
from framework.server.event_stream import until_client_leaves
from framework.server.identity import Reader, require
from framework.server.request_handling import (
    IdempotencyHeader,
    Keyed,
    MessageRoute,
    ServedRuns,
    api_router,
    error_responses,
    json_response,
    shared,
    verbatim_response,
)
from framework.server.schemas import ResponseModel
from framework.store.types import StoredRun
from framework.types.redact import redact
from framework.types.state import RunState


class RunFile(ResponseModel):
    """A file that a run ran on, compared with the live one."""

    path: str
    """Relative to the project's folder."""
    kind: Literal["agent", "template"]
    change: Literal["same", "changed", "removed", "added"]
    """What has happened to the file since the run started."""
    text: str | None = None
    """The file as the run used it; missing if it was added since."""
    live: str | None = None
    """The live file, if it differs."""

    @classmethod
    def of(cls, path: str, text: str | None, live: str | None) -> RunFile:
        """Compare a file of a run with the live one; None stands for a file that does not exist."""
        change: Literal["same", "changed", "removed", "added"] = "same"
        if text != live:
            change = "added" if text is None else "removed" if live is None else "changed"
        kind: Literal["agent", "template"] = "template" if path.startswith(f"{PROMPTS_FOLDER}/") else "agent"
        return cls(path=path, kind=kind, change=change, text=text, live=live if change != "same" else None)


class RunFiles(ResponseModel):
    """The files of a run's agent and of its sub-agents, with their templates."""

    run_id: str
    generation: int
    digest: str
    """Digest of the configuration that the run used."""
    live_generation: int
    live_digest: str
    stored: bool
    """Whether the run's files are known. A store in memory keeps none, so they are known while they are live."""
    files: tuple[RunFile, ...]

    @classmethod
    def of(
        cls, state: RunState, own: Mapping[str, str] | None, live: Mapping[str, str], current: Generation
    ) -> RunFiles:
        """Compare the files of a run, if they are stored, with the live ones."""
        paths = sorted({*own, *live}) if own is not None else ()
        return cls.of_parts(
            state,
            live_generation=current.number,
            live_digest=current.digest,
            stored=own is not None,
            files=tuple(RunFile.of(path, (own or {}).get(path), live.get(path)) for path in paths),
        )


class RunTestCase(ResponseModel):
    """A run as a test case, as `agentsd runs export --as-test` writes it."""

    run_id: str
    path: str
    """File of the agent's cases, relative to the project's folder. It may exist, with other cases."""
    text: str
    """YAML of a file with this case."""


class ReplayDifference(ResponseModel):
    """One difference between a run and its replay."""

    what: DifferenceKind
    subject: str
    """The agent, call or question that differs; empty for the run as a whole."""
    before: str
    """The recorded value; empty if there was none."""
    after: str
    """The value under the live files; empty if there is none."""

    @classmethod
    def of(cls, found: Difference) -> ReplayDifference:
        """Return a difference. Prompts are configuration, so secrets in them are redacted."""
        before, after = found.before, found.after
        if found.what == "prompt":
            before, after = redact(before), redact(after)
        return cls(what=found.what, subject=found.subject, before=before, after=after)


class ReplayResult(ResponseModel):
    """What would be different if a run took place under the live files."""

    run_id: str
    generation: int
    """The live generation."""
    digest: str
    differences: tuple[ReplayDifference, ...]

    @classmethod
    def of(cls, state: RunState, current: Generation, found: Sequence[Difference]) -> ReplayResult:
        """Return the differences of a run under the files of a generation."""
        return cls(
            run_id=state.run_id,
            generation=current.number,
            digest=current.digest,
            differences=tuple(map(ReplayDifference.of, found)),
        )


MAX_REPLAYS = 2
"""Replays at a time: each takes a CPU as long as it lasts."""
MAX_REPLAY_SECONDS = 20.0
"""Time limit of a replay. A server that stops waits for it."""
_POLL_SECONDS = 0.05
_RETRY_SECONDS = 5


class Replays:
    """The replays in progress. Each has a thread, because its models and tools answer without waiting."""

    def __init__(self, seconds: float = MAX_REPLAY_SECONDS) -> None:
        self._seconds = seconds
        self._threads: set[asyncio.Future[Sequence[Difference]]] = set()

    async def differences(self, root: Path, run: StoredRun, current: Generation) -> Sequence[Difference]:
        """Return the differences between a run and its replay. If this is cancelled, the replay ends too.

        Raises:
            AgentNotFound: the run's agent does not exist in `current`.
            TooManyReplays: the server replays as many runs as it may.
            ReplayTimeout: the replay took too long.
        """
        if len(self._threads) >= MAX_REPLAYS:
            raise TooManyReplays("the server replays other runs: retry in a few seconds", _RETRY_SECONDS)
        stopped = ThreadEvent()
        limit = self._seconds
        thread = asyncio.ensure_future(
            asyncio.to_thread(lambda: asyncio.run(_replay_until(stopped, limit, root, run, current)))
        )
        self._threads.add(thread)  # until the thread has ended, even if nobody waits for it
        thread.add_done_callback(self._ended)
        try:
            return await asyncio.shield(thread)
        finally:
            stopped.set()

    def _ended(self, thread: asyncio.Future[Sequence[Difference]]) -> None:
        self._threads.discard(thread)
        if not thread.cancelled():
            thread.exception()  # read, because after a cancellation nobody else does


async def _replay_until(
    stopped: ThreadEvent, seconds: float, root: Path, run: StoredRun, current: Generation
) -> Sequence[Difference]:
    """Replay a run in the event loop of a thread, until it is stopped or out of time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    work = asyncio.ensure_future(replay(root, run, current))
    while not work.done() and not stopped.is_set() and loop.time() < deadline:
        await asyncio.wait([work], timeout=_POLL_SECONDS)
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
    if work.cancelled():
        raise ReplayTimeout(
            f"the replay of run {run.state.run_id} took longer than {seconds:g} s: use agentsd runs replay"
        )
    return work.result()


_CLIENT_LEFT = 499
"""Status of a response that nobody receives, as proxies log it."""
routes = api_router("runs", MessageRoute)
"""They read and change nothing, so all of them need the role `read` only.

A replay calls no model, tool or server: it repeats their recorded answers.
"""
_Blueprints = Annotated[Blueprints, shared(lambda _: Blueprints(EXECUTORS))]
_Replays = Annotated[Replays, shared(lambda _: Replays())]


@routes.get("/runs/{run_id}/files", response_model=RunFiles, responses=error_responses(404))
async def list_run_files(identity: Reader, service: ServedRuns, blueprints: _Blueprints, run_id: str) -> Response:
    """Return the files that a run ran on, and how they differ from the live ones.

    As for `/config`, the key must not be limited to some agents: the files of sub-agents are included.
    """
    _, state = await service.load(identity, run_id)
    require(identity, "read", all_agents=True)
    current = service.runtime.catalog.current
    stored = await service.runtime.store.blueprint(state.blueprint) if state.blueprint else None
    live = blueprints.of(current, state.agent).files if state.agent in current.agents else {}
    own = stored.files if stored else live if state.digest == current.digest else None
    body = RunFiles.of(state, own, {**_agent_files(current, own or {}), **live}, current)
    return await asyncio.to_thread(json_response, body)  # redacting long files takes time


def _agent_files(current: Generation, own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the live agent files with the paths of a run's files, also of agents that its agent calls no longer."""
    agents = (agent for agent in current.agents.values() if agent.path in own)
    return {agent.path: agent.document.source.decode("utf-8-sig") for agent in agents}


@routes.get("/runs/{run_id}/test-case", response_model=RunTestCase, responses=error_responses(404))
async def show_test_case(identity: Reader, service: ServedRuns, run_id: str) -> Response:
    """Return a run as a test case for `agentsd test`, with the recorded answers of models and tools."""
    run, state = await service.load(identity, run_id)
    stored = await service.runtime.store.stored_run(state)
    text = await asyncio.to_thread(lambda: case_file(export_case(stored.state, stored.events, stored.rating)))
    body = RunTestCase(run_id=run_id, path=_case_path(state, service.runtime.catalog.current), text=text)
    return verbatim_response(body, headers=run.headers)


def _case_path(state: RunState, current: Generation) -> str:
    """Return the path of the cases of a run's agent: beside its file, if it still exists."""
    agent = current.agents.get(state.agent)
    path = agent.path if agent else f"agents.d/{state.agent}.yaml"
    return f"{path.rpartition('.')[0]}.test.yaml"


@routes.post("/runs/{run_id}/replay", response_model=ReplayResult, responses=error_responses(404, 503))
async def replay_run(
    request: Request,
    identity: Reader,
    service: ServedRuns,
    replays: _Replays,
    keyed: Keyed,
    run_id: str,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Replay a run under the live files, and return what would be different.

    Models and tools return their recorded answers, and the run is not changed. The differences contain prompts of
    all agents that the run reaches, so the key must not be limited to some. It ends when the client leaves.
    """

    async def replayed() -> Response:
        run, state = await service.load(identity, run_id)
        require(identity, "read", all_agents=True)
        service.limits.check_rate(identity)
        stored = await service.runtime.store.stored_run(state)
        current = service.runtime.catalog.current
        replaying = asyncio.ensure_future(replays.differences(service.runtime.root, stored, current))
        leaving = asyncio.ensure_future(until_client_leaves(request.receive))
        try:
            await asyncio.wait((replaying, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not replaying.done():
                return Response(status_code=_CLIENT_LEFT)
            body = ReplayResult.of(state, current, replaying.result())
            return verbatim_response(body, headers=run.headers)
        finally:
            leaving.cancel()
            replaying.cancel()

    return await keyed.once(request, idempotency_key, replayed)
