"""One call of an agent's tool: runs the agent, reports its progress, and has a person decide where it pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeGuard

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.types import CallToolRequestParams, CallToolResult, ElicitRequest, ElicitResult, InputRequiredResult
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from framework.server.identity import Identity
from framework.server.mcp.forms import decision_from, form_of
from framework.server.mcp.results import progress_text, tool_result
from framework.server.run_service import OwnedRun, RunService
from framework.server.wording import where_to_decide
from framework.types.errors import RunNotFound, RunSuspended
from framework.types.events import StreamEnd
from framework.types.state import Confirmation, Decision, RunResult

_PROGRESS_SECONDS = 10.0
"""Interval of progress notifications during which nothing else is reported: clients end calls that are silent."""

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class McpCaller:
    """The client of an MCP server."""

    identity: Identity
    how_to_decide: str
    """What to do about a run that waits for a decision, with `{run_id}` for its id and `{where}` for the address."""
    pages: str = ""
    """Base address of the pages of runs, if a web server serves them."""

    @property
    def can_decide(self) -> bool:
        """Whether it may answer confirmations. Otherwise, a paused run is reported as an error."""
        return "decide" in self.identity.roles


class AgentCall:
    """A call in progress. Its run is stored: it survives the call, and can be decided elsewhere."""

    def __init__(self, service: RunService, caller: McpCaller, context: Context) -> None:
        self._service, self._caller, self._context = service, caller, context
        self._seen = 0
        """Number of the last event."""
        self._reported = 0
        """Number of progress notifications."""

    async def follow(self, run: OwnedRun) -> CallToolResult | InputRequiredResult:
        """Follow a run to its end; have the person at the client decide where it pauses.

        Raises:
            RequestError: a decision does not fit.
            RunSuspended: the runtime was closed.
        """
        while True:
            result = await self._read(run)
            if not result.pending or not self._can_ask:
                return self._result(result)
            if self._is_modern:
                requests = {asked.id: ElicitRequest(params=self._form(asked)) for asked in result.pending}
                return InputRequiredResult(input_requests=requests, request_state=run.run_id)
            decisions = await self._ask(result.pending)
            if not decisions:
                return self._result(result)
            await self._service.decide(self._caller.identity, run, decisions)

    async def resume(self, run: OwnedRun, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Continue the run of an earlier call with the answers to its questions, as clients since 2026-07-28 do."""
        result = await self._service.result(run)
        if result.agent != params.name:
            raise RunNotFound(f"there is no run {run.run_id!r} of {params.name!r}")
        if result.pending and self._caller.can_decide:
            answers = params.input_responses or {}
            decisions = _decisions(result.pending, answers)
            if not decisions:
                return self._result(result)
            self._seen = (await self._service.load(self._caller.identity, run.run_id))[1].seq
            await self._service.decide(self._caller.identity, run, decisions)
        return await self.follow(run)

    async def _read(self, run: OwnedRun) -> RunResult:
        """Report the progress of a run until it ends or pauses, and return its result."""
        ticking = asyncio.ensure_future(self._tick())
        finished = False
        try:
            async for event in self._service.follow(run, self._seen):
                self._seen = max(self._seen, event.seq)
                finished = isinstance(event, StreamEnd)
                if event.seq and not event.path and (text := progress_text(event)):
                    await self._report(text)
        finally:
            ticking.cancel()
        if not finished:
            raise RunSuspended(f"the server stopped; the run {run.run_id} continues elsewhere")
        return await self._service.result(run)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            await self._report("working")

    async def _report(self, text: str) -> None:
        """Send a progress notification, if the client asked for them."""
        self._reported += 1
        await self._context.session.report_progress(self._reported, message=text)

    # --- decisions

    @property
    def _is_modern(self) -> bool:
        """Whether the client sends its answers with another call instead of answering a request."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def _can_ask(self) -> bool:
        """Whether the client shows forms to a person who may decide."""
        capabilities = self._context.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        if elicitation is None or not self._caller.can_decide:
            return False
        has_forms = elicitation.form is not None or elicitation.url is None  # clients of 2025-06-18 declare {}
        return has_forms and (self._is_modern or self._context.session.can_send_request)

    async def _ask(self, pending: Sequence[Confirmation]) -> dict[str, Decision]:
        """Ask for all decisions, one after the other; empty if the person closes a form without a decision."""
        ticking = asyncio.ensure_future(self._tick())
        decisions: dict[str, Decision] = {}
        try:
            for asked in pending:
                form = self._form(asked)
                with suppress(MCPError):  # the client has no person at hand, or is gone
                    answer = await self._context.session.elicit_form(
                        form.message, form.requested_schema, self._context.request_id
                    )
                    if decision := decision_from(asked, answer):
                        decisions[asked.id] = decision
                        continue
                return {}
        finally:
            ticking.cancel()
        return decisions

    def _form(self, asked: Confirmation) -> Any:
        agent = self._service.runtime.catalog.current.agents.get(asked.agent)
        tool = agent.toolset.tools.get(asked.tool) if agent else None
        return form_of(asked, tool.definition.parameters if tool else None)

    def _result(self, result: RunResult) -> CallToolResult:
        where = where_to_decide(self._caller.pages, result.run_id, result.pending)
        return tool_result(result, self._caller.how_to_decide.format(run_id=result.run_id, where=where))


def _decisions(pending: Sequence[Confirmation], answers: Mapping[str, object]) -> dict[str, Decision]:
    """Return the decisions made in forms; the others remain pending."""
    made = ((asked.id, decision_from(asked, found)) for asked in pending if _is_form(found := answers.get(asked.id)))
    return {key: decision for key, decision in made if decision is not None}


def _is_form(answer: object) -> TypeGuard[ElicitResult]:
    return isinstance(answer, ElicitResult)
