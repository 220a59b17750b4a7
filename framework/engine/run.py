"""One run in progress: the gateway that all work passes through.

Whatever an executor does (asks a model, calls tools, asks a human, starts a sub-run) it does here, so that budget,
policy, events, spans, timeouts and checkpoints are in one place. A run never waits for a human inside the process: what
needs an answer is collected until its siblings have finished, and then leaves as `Paused`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.templates.prompts import PromptError
from framework.engine.agent_trace import AgentTrace, record_reply, step_span
from framework.engine.context.concurrency import Confirmations, gather_calls
from framework.engine.context.run_context import RunContext
from framework.engine.context.services import Services
from framework.engine.model_call import turn as turns
from framework.engine.model_call import typed
from framework.engine.model_call.attempt import message_id
from framework.engine.model_call.compaction import fit_history
from framework.engine.model_call.context_window import record_token_count
from framework.engine.model_call.mcp_context import load_mcp_context
from framework.engine.model_call.structured_output import check_output, final_data
from framework.engine.output_guard import discard_output, guard_output
from framework.engine.tool_call import call as tool_calls
from framework.engine.tool_call import hooks, results
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.json_protocol.client import ask_valid
from framework.telemetry.redact import places
from framework.telemetry.span import NO_SPAN, OpenSpan
from framework.types.errors import AgentsdError, ConfigError, LimitExceeded, ModelError, Paused, Refused
from framework.types.messages import Message, ToolCall
from framework.types.report import LimitUse
from framework.types.state import RunState

log = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)


class Run(RunContext):
    """A root run or a sub-run: an agent, its state, and everything it may do."""

    def __init__(
        self,
        state: RunState,
        agent: Agent,
        services: Services,
        executors: Mapping[str, Executor],
        parent: RunContext | None = None,
    ) -> None:
        super().__init__(state, agent, services, parent)
        self._executors = executors
        self._step_span: OpenSpan = NO_SPAN
        self._message_id = ""
        """Of the last model call in this process."""

    # --- the executor's side

    async def ask_model(self, *instructions: Message, tools: bool = True) -> Message:
        """One turn: ask with the whole conversation, record the answer.

        Args:
            *instructions: messages put at the end of this request only, never stored.
            tools: offer the agent's tools.

        Raises:
            ModelError: the provider failed.
            LimitExceeded: a limit is used up.
        """
        definitions = self.agent.toolset.definitions if tools else ()
        self._begin_step(len(self.state.replies) + 1)
        with self._step_span.inside():
            request = turns.build_turn_request(self, instructions, definitions)
            reply = await ask_valid(self._call_model, request)
        record_token_count(self, reply)
        self.state.truncated = reply.finish_reason == "length"
        message = tool_calls.normalize_message(reply.message, self.state, self.agent.toolset)
        record_reply(self, self._step_span, message)
        self.state.replies.append(len(self.state.messages))
        self.state.messages.append(message)
        self.services.journal.schedule_flush()  # together with the start of the calls it requests
        await turns.emit_reply(self, message, reply.message_id)
        return message

    async def ask_typed(self, output: type[T], *instructions: Message, model: str | None = None) -> T:
        """Ask for an answer of a type; it is returned, not recorded.

        Args:
            output: the type.
            *instructions: as of `ask_model`.
            model: the one to ask instead of the agent's own; the agent's fallbacks stay.

        Raises:
            ModelError: the provider failed, or the answer does not fit the type.
            LimitExceeded: a limit is used up.
        """
        request = turns.build_request(self, instructions, tools=self.agent.toolset.definitions, output=output)
        answer = await typed.typed_reply(self, partial(self._call_model, model=model), request, output, model)
        self.state.typed.append(answer.model_dump_json(by_alias=True))
        return answer

    async def call_tools(self, requested: Sequence[ToolCall]) -> None:
        """Carry out one turn's calls side by side, and answer them in the order they were asked for.

        Raises:
            Paused: some need a human; the others have finished.
            LimitExceeded: a limit is used up.
        """
        if self._step_span is NO_SPAN:
            self._begin_step(len(self.state.replies))
        requested = tool_calls.reserve_calls(self, requested)
        gate = asyncio.Semaphore(self.budget.limits.max_parallel_tools)

        async def run_one(call: ToolCall) -> Confirmations:
            async with gate:
                return await tool_calls.run_call(self, call)

        with self._step_span.inside():
            await gather_calls(run_one(call) for call in requested)
        results.append_tool_messages(self, requested)

    async def call_tool(
        self, call: ToolCall, *, is_retry: bool = False, may_have_run: bool = False, contract: str = ""
    ) -> Confirmations:
        """Carry out one call that no message asked for, such as a plan's; its result stays in `state.calls`.

        Args:
            call: what to call.
            is_retry: it is another attempt at a call that has failed.
            may_have_run: the same call may have taken effect before: a human must say whether to make it again.
            contract: of its tool as a human was shown this very call; if it is another one now, they are asked again.
        """
        is_new = call.id not in self.state.calls
        (call,) = tool_calls.reserve_calls(self, [call], is_retry=is_retry)
        if is_new:
            update = {"started": int(may_have_run), "contract": contract}
            self.state.calls[call.id] = self.state.calls[call.id].model_copy(update=update)
        return await tool_calls.run_call(self, call)

    def child(self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any] | None = None) -> Run:
        """The sub-run of that key: a new one, or the one that a pause or a crash has left."""
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
            )
        return Run(self.state.children[key], agent, self.services, self._executors, parent=self)

    async def delegate(
        self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any]
    ) -> tuple[Confirmations, RunState]:
        """Run a sub-agent, or continue its run: see `RunContext.delegate`."""
        child = self.child(key, agent, message, inputs)
        return await child.drive(), child.state

    # --- the runtime's side

    async def drive(self, executor: Executor | None = None) -> Confirmations:
        """Run the executor to its end, and put down in the state how it ended.

        Returns:
            What a human must confirm before it can go on; nothing when it has ended.
        """
        if self.parent is not None and self.state.status not in ("running", "paused"):
            return ()  # it ended before a crash: only its caller had not put that down yet
        executor = executor or self.agent.executor or self._executors[self.agent.spec.executor]
        self._counted_at = perf_counter()
        self.state.status = "running"
        with AgentTrace(self) as trace:
            try:
                pending = await self._execute(executor)
                trace.set_pending(pending, self._step_span)
                if not pending and self.is_guarded:
                    await guard_output(self, self.message_id)
            finally:
                self._count_time()
                if self.state.status in ("stopped", "cancelled", "failed"):
                    results.answer_open_calls(self)
                self._end_step()
        return pending

    @property
    def message_id(self) -> str:
        """Id, in events, of the message that the run's output is: the last model call's."""
        return self._message_id or message_id(self.state)

    # --- inside

    async def _call_model(self, request: ModelRequest, *, model: str | None = None) -> ModelReply:
        try:
            reply = await turns.call_model(self, request, model=model)
        except ModelError as error:
            self._message_id = error.message_id or self._message_id
            raise
        self._message_id = reply.message_id
        return reply

    async def _execute(self, executor: Executor) -> Confirmations:
        try:
            async with asyncio.timeout(self.budget.time_left()) as self.deadline:
                self.services.journal.check()
                await hooks.before_run(self)
                await load_mcp_context(self)
                await fit_history(self)
                output = check_output(await executor(self), self.agent.spec.executor)
                self.state.data = await final_data(self, output, self.ask_typed)
                self.end("final", output)
        except Paused as paused:
            self.end("confirmation")
            return paused.confirmations
        except LimitExceeded as limit:
            self._stop_at_limit(limit)
        except Refused as refusal:
            self.end("refused", refusal.message)
        except TimeoutError as error:
            if self.deadline and self.deadline.expired():
                self._stop_at_limit(self.budget.timeout_error())
            else:
                self.end("internal_error", results.partial_output(self.state), error)
        except asyncio.CancelledError:
            if self.services.journal.is_suspended:
                raise  # it has not ended: it is left as it is
            self.end("cancelled", results.partial_output(self.state))
            discard_output(self)
            raise
        except (AgentsdError, PromptError) as error:
            self.end(getattr(error, "code", ConfigError.code), results.partial_output(self.state), error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an executor may be a plugin's: it ends this run only
            log.error("run %s: the executor %r failed: %s", self.state.run_id, self.agent.spec.executor, places(error))
            self.end("internal_error", results.partial_output(self.state), error)
        return ()

    def _begin_step(self, index: int) -> None:
        self._end_step()
        self._step_span = step_span(self, index)

    def _end_step(self) -> None:
        self._step_span.end()
        self._step_span = NO_SPAN

    def _stop_at_limit(self, limit: LimitExceeded) -> None:
        self.end(limit.limit, results.partial_output(self.state))
        self.state.stopped_by = LimitUse(limit=limit.limit, used=limit.used, allowed=limit.allowed, place=limit.place)


Executor = Callable[[Run], Awaitable[str]]
"""A coroutine function over a run that returns the answer's text; all its work goes through the run."""
