"""One run in progress: everything an executor may do goes through it.

Model calls, tool calls, questions to people and sub-runs are made here, so that budget, policy, events, spans,
timeouts and checkpoints always apply. A run never waits for a person inside the process: calls that need a
decision are collected until the other calls of the turn have finished, and then raised as `Paused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.engine.context.concurrency import Confirmations, gather_calls
from framework.engine.context.model_clients import NamedClient
from framework.engine.context.run_context import RunContext, Services
from framework.engine.model_call import turn as turns
from framework.engine.model_call.preparation import shorten_conversation, warn_if_full
from framework.engine.model_call.turn import complete_reply, typed_reply
from framework.engine.run_trace import open_step_span, record_reply
from framework.engine.tool_call import call as tool_calls
from framework.engine.tool_call import results
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.json_protocol import request_valid_reply
from framework.telemetry.spans import NOOP_SPAN, TraceSpan
from framework.types.errors import LimitExceeded, ModelError
from framework.types.messages import Message, ToolCall
from framework.types.state import RunState

T = TypeVar("T", bound=BaseModel)
_R = TypeVar("_R")


class Run(RunContext):
    """A root run or a sub-run, as executors see it: its state, and methods to call models, tools and sub-agents."""

    def __init__(
        self, state: RunState, agent: Agent, services: Services, drive: Driver, parent: RunContext | None = None
    ) -> None:
        super().__init__(state, agent, services, parent)
        self._drive = drive
        self.step_span: TraceSpan = NOOP_SPAN
        """The current model turn, with the tool calls that it requested."""
        self._step_began: float | None = None
        """When the current model turn began, by `perf_counter`."""
        self._message_id = ""
        """Id of the last model call in this process."""

    # --- for executors

    async def ask_model(self, *instructions: Message, tools: bool = True) -> Message:
        """Call the model with the whole conversation, and append its reply.

        Args:
            *instructions: messages appended to this request only; they are not stored.
            tools: offer the agent's tools.

        Raises:
            ModelError: the provider failed.
            LimitExceeded: a limit is reached.
        """
        definitions = self.tool_definitions() if tools else ()
        self._begin_step(len(self.state.replies) + 1)

        async def send() -> tuple[ModelRequest, ModelReply]:
            request = turns.build_turn_request(self, instructions, definitions)
            return request, await request_valid_reply(self._call_model, request)

        with self._fails_with_its_model(), self.step_span.activate():
            request, reply = await self._call_fitting(send)
            if reply.finish_reason == "length":
                reply = await complete_reply(self, self._call_model, request, reply)
        turns.record_token_count(self, reply)
        self.state.truncated = reply.finish_reason == "length"
        message = tool_calls.normalize_message(reply.message, self.state, self.agent.toolset)
        record_reply(self, self.step_span, message)
        self.state.replies.append(len(self.state.messages))
        self.state.messages.append(message)
        self.services.journal.schedule_flush()  # in one write with the start of the requested calls, if they start now
        await turns.emit_reply(self, message, reply.message_id)
        return message

    async def _call_fitting(self, send: Callable[[], Awaitable[_R]], model: str | None = None) -> _R:
        """Await `send`. If its request does not fit the model's context window, shorten the conversation, and repeat.

        If that is not enough, the request is repeated with a fallback whose window is larger.

        Args:
            send: builds a request from the conversation, and sends it.
            model: the model that it is for, if not the agent's own.

        Raises:
            LimitExceeded: `context_full`, as a warning says with advice, if nothing can be shortened, or too little.
        """
        is_shortened = False
        while True:
            try:
                return await send()
            except LimitExceeded as limit:
                if limit.limit == "context_full":
                    if not is_shortened and (is_shortened := await shorten_conversation(self)):
                        continue
                    if await turns.use_larger_model(self, limit, model):
                        continue
                await warn_if_full(self, limit)
                raise

    @contextmanager
    def _fails_with_its_model(self) -> Iterator[None]:
        """Mark the span of the turn as failed if its model call fails for good, which ends the run."""
        try:
            yield
        except ModelError as error:
            self.step_span.fail(error.error_type)
            raise

    async def ask_typed(self, output: type[T], *instructions: Message, model: str | None = None) -> T:
        """Return an instance of `output`, generated by the model from the conversation; it is not appended.

        Args:
            output: a pydantic model class.
            *instructions: messages appended to this request only; they are not stored.
            model: the model to call instead of the agent's own; the agent's fallbacks still apply.

        Raises:
            ModelError: the provider failed, or the answer does not fit `output`.
            LimitExceeded: a limit is reached.
        """
        await self.model_caller.probe(model)
        primary = self.model_caller.primary(model)
        call = partial(self._call_model, primary=primary)

        async def send() -> T:
            request = turns.build_request(self, instructions, tools=self.tool_definitions(), output=output)
            return await typed_reply(primary.info, call, request, output)

        answer = await self._call_fitting(send, model)
        self.state.typed.append(answer.model_dump_json(by_alias=True))
        return answer

    async def call_tools(self, requested: Sequence[ToolCall]) -> None:
        """Execute the calls of one turn concurrently, and append their results in the order of the calls.

        Raises:
            Paused: some calls need a person's decision; the other calls have finished.
            LimitExceeded: a limit is reached.
        """
        if self._step_began is None:  # the turn was requested before a pause or a crash
            self._begin_step(len(self.state.replies))
        requested = tool_calls.reserve_calls(self, requested)
        calls = [partial(tool_calls.run_call, self, call) for call in requested]
        with self.step_span.activate():
            await gather_calls(calls, limit=self.budget.limits.max_parallel_tools)
        results.append_tool_messages(self, requested)

    async def call_tool(
        self, call: ToolCall, *, is_retry: bool = False, may_have_run: bool = False, contract: str = ""
    ) -> Confirmations:
        """Execute a call that no model message requested, such as a plan step's; its result is in `state.calls`.

        Args:
            call: the call to execute.
            is_retry: this is another attempt at a call that failed.
            may_have_run: the same call may have taken effect before, so a person must confirm it.
            contract: digest of the tool's definition that a person approved; if the current definition differs,
                approval is requested again.
        """
        is_new = call.id not in self.state.calls
        (call,) = tool_calls.reserve_calls(self, [call], is_retry=is_retry)
        if is_new:
            update = {"started": int(may_have_run), "contract": contract}
            self.state.calls[call.id] = self.state.calls[call.id].model_copy(update=update)
        return await tool_calls.run_call(self, call)

    def child(self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any] | None = None) -> Run:
        """Return the sub-run with this key: the one in the state, after a pause or a crash, or a new one."""
        if key not in self.state.children:
            self.state.children[key] = RunState(
                run_id=self.state.run_id,
                path=(*self.state.path, key),
                agent=agent.name,
                generation=self.state.generation,
                digest=self.state.digest,
                conversation_id=self.state.conversation_id,
                user=self.state.user,
                tenant=self.state.tenant,
                locale=self.state.locale,
                inputs=dict(inputs or {}),
                limits=agent.spec.runtime_policy,
                output_schema=agent.spec.output_schema,
                model_settings=agent.spec.model_settings,
                messages=[Message(role="user", content=message)],
                added_tools=list(self.state.added_tools) if agent.name == self.agent.name else [],
            )
        return Run(self.state.children[key], agent, self.services, self._drive, parent=self)

    async def drive(self, executor: Executor | None = None) -> Confirmations:
        """Run a sub-run to its end, or until it pauses: see `framework.engine.drive.drive`."""
        return await self._drive(self, executor)

    async def delegate(
        self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any]
    ) -> tuple[Confirmations, RunState]:
        """Run a sub-agent, or resume its run: see `RunContext.delegate`."""
        child = self.child(key, agent, message, inputs)
        return await child.drive(), child.state

    # --- for the driver

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Count the time that the run takes; at its end, close the current turn and answer the calls it left open."""
        self._counted_at = perf_counter()
        self.state.status = "running"
        try:
            yield
        finally:
            self._count_time()
            if self.state.status in ("stopped", "cancelled", "failed"):
                results.answer_open_calls(self)
            self._end_step()

    def new_deadline(self) -> asyncio.Timeout:
        """Return the timeout of this part of the run, to be entered immediately; `keep_time` can bring it forward."""
        self.deadline = asyncio.timeout(self.budget.time_left())
        return self.deadline

    @property
    def output_message_id(self) -> str:
        """Id, in events, of the message with the run's output: that of the last model call."""
        return self._message_id or self.message_id()

    # --- inside

    async def _call_model(self, request: ModelRequest, *, primary: NamedClient | None = None) -> ModelReply:
        try:
            reply = await turns.call_model(self, request, primary=primary)
        except ModelError as error:
            self._message_id = error.message_id or self._message_id
            raise
        self._message_id = reply.message_id
        return reply

    def _begin_step(self, index: int) -> None:
        self._end_step()
        self.step_span, self._step_began = open_step_span(self, index), perf_counter()

    def _end_step(self) -> None:
        if self._step_began is not None and (meters := self.services.meters):
            meters.record_step(self.agent.name, "turn", perf_counter() - self._step_began)
        self._step_began = None
        self.step_span.end()
        self.step_span = NOOP_SPAN


Executor = Callable[[Run], Awaitable[str]]
"""A coroutine function that works on a run through its methods, and returns the text of the answer."""

Driver = Callable[[Run, Executor | None], Awaitable[Confirmations]]
"""Runs an executor on a run until it ends or pauses; passed in, because it calls the executors, which call the run."""


async def react(run: Run) -> str:
    """Call the model and the tools it requests, turn by turn, until it answers without a tool call."""
    while True:
        reply = run.state.last_reply or await run.ask_model()  # a reply may be left from before a pause or a crash
        if not reply.tool_calls:
            return reply.content
        await run.call_tools(reply.tool_calls)
