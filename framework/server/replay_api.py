"""`/runs/{run_id}/files`, `/test-case` and `/replay`: what a run ran on, and how to repeat it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.config.generations.blueprint import Blueprints
from framework.config.generations.generation import Generation
from framework.engine.drive import EXECUTORS
from framework.evals.export import export_case
from framework.evals.suite import case_file
from framework.replay.player import load_stored_run
from framework.server.event_stream import until_client_leaves
from framework.server.identity import identity_of
from framework.server.keyed_responses import IdempotencyHeader, KeyedResponses
from framework.server.openapi import error_responses
from framework.server.replay_schemas import ReplayResult, RunFiles, RunTestCase
from framework.server.replays import Replays
from framework.server.request_handling import json_response, verbatim_response
from framework.server.roles import require, requires
from framework.server.run_service import RunService
from framework.types.state import RunState

_CLIENT_LEFT = 499
"""Status of a response that nobody receives, as proxies log it."""


def add_replay_routes(routes: APIRouter, service: RunService, keyed: KeyedResponses) -> None:
    """Add the routes. They read and change nothing, so all of them need the role `read` only.

    A replay calls no model, tool or server: it repeats their recorded answers.
    """
    _add_files_route(routes, service)
    _add_case_route(routes, service)
    _add_replay_route(routes, service, keyed)


def _add_files_route(routes: APIRouter, service: RunService) -> None:
    blueprints = Blueprints(EXECUTORS)

    @routes.get(
        "/runs/{run_id}/files",
        response_model=RunFiles,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def list_run_files(request: Request, run_id: str) -> Response:
        """Return the files that a run ran on, and how they differ from the live ones.

        As for `/config`, the key must not be limited to some agents: the files of sub-agents are included.
        """
        _, state = await service.load(identity_of(request), run_id)
        require(identity_of(request), "read", all_agents=True)
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


def _add_case_route(routes: APIRouter, service: RunService) -> None:
    @routes.get(
        "/runs/{run_id}/test-case",
        response_model=RunTestCase,
        dependencies=[requires("read")],
        responses=error_responses(404),
    )
    async def show_test_case(request: Request, run_id: str) -> Response:
        """Return a run as a test case for `agentsd test`, with the recorded answers of models and tools."""
        run, state = await service.load(identity_of(request), run_id)
        stored = await load_stored_run(service.runtime.store, state)
        text = await asyncio.to_thread(lambda: case_file(export_case(stored.state, stored.events, stored.rating)))
        body = RunTestCase(run_id=run_id, path=_case_path(state, service.runtime.catalog.current), text=text)
        return verbatim_response(body, headers=run.headers)


def _case_path(state: RunState, current: Generation) -> str:
    """Return the path of the cases of a run's agent: beside its file, if it still exists."""
    agent = current.agents.get(state.agent)
    path = agent.path if agent else f"agents.d/{state.agent}.yaml"
    return f"{path.rpartition('.')[0]}.test.yaml"


def _add_replay_route(routes: APIRouter, service: RunService, keyed: KeyedResponses) -> None:
    replays = Replays()

    @routes.post(
        "/runs/{run_id}/replay",
        response_model=ReplayResult,
        dependencies=[requires("read")],
        responses=error_responses(404, 503),
    )
    async def replay_run(request: Request, run_id: str, idempotency_key: IdempotencyHeader = None) -> Response:
        """Replay a run under the live files, and return what would be different.

        Models and tools return their recorded answers, and the run is not changed. The differences contain prompts of
        all agents that the run reaches, so the key must not be limited to some. It ends when the client leaves.
        """
        return await keyed.once(request, idempotency_key, lambda: replayed(request, run_id))

    async def replayed(request: Request, run_id: str) -> Response:
        identity = identity_of(request)
        run, state = await service.load(identity, run_id)
        require(identity, "read", all_agents=True)
        service.limits.check_rate(identity)
        stored = await load_stored_run(service.runtime.store, state)
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
