"""One run in progress: everything an executor may do goes through it, and it records how the executor ends.

Model calls, tool calls, questions to people and sub-runs are made here, so that budget, policy, events, spans,
timeouts and checkpoints always apply. A run never waits for a person inside the process: calls that need a
decision are collected until the other calls of the turn have finished, and then raised as `Paused`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from framework.config.agents.compile import Agent
from framework.config.templates.prompts import PromptError
from framework.engine.context.run_context import Confirmations, NamedClient, RunContext, Services
from framework.engine.model_call import turn as turns
from framework.engine.model_call.compaction import fit_history, shorten_conversation
from framework.engine.model_call.turn import (
    complete_reply,
    prepare_run,
    stop_if_truncated,
    typed_reply,
    warn_if_full,
)
from framework.engine.run_report import AgentTrace, open_step_span, record_reply
from framework.engine.tool_call import call as tool_calls
from framework.engine.tool_call import results, run_tools
from framework.engine.tool_call.results import partial_output
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.json_protocol import strip_fence
from framework.telemetry.redact import safe_traceback
from framework.telemetry.spans import NOOP_SPAN, TraceSpan
from framework.tools.arguments import ArgumentsError, SchemaArguments, bounded_model
from framework.types.errors import (
    AgentsdError,
    ConfigError,
    ConversationMoved,
    LimitExceeded,
    ModelError,
    Paused,
    Refused,
    is_scarcity,
)
from framework.types.events import ContentReceived
from framework.types.messages import Message, ToolCall, late_guidance
from framework.types.report import LimitUse
from framework.types.state import RunState
from framework.types.text import fix_surrogates, read_json

log = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)
_R = TypeVar("_R")
_INSTRUCTION = "Repeat your complete answer as the arguments of {name}. Use only what the conversation contains."


class Run(RunContext):
    """A root run or a sub-run, as executors see it: its state, and methods to call models, tools and sub-agents."""

    def __init__(
        self, state: RunState, agent: Agent, services: Services, executors: Executors, parent: RunContext | None = None
    ) -> None:
        super().__init__(state, agent, services, parent)
        self._executors = executors
        self.step_span: TraceSpan = NOOP_SPAN
        """The current model turn, with the tool calls that it requested."""
        self._step_started: float | None = None
        """When the current model turn started, by `perf_counter`."""

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
        self._start_step(len(self.state.replies) + 1)

        async def send() -> tuple[ModelRequest, ModelReply]:
            request = turns.build_turn_request(self, instructions, definitions)
            return request, await self._call_model(request)

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
            LimitExceeded, ConversationMoved: a limit is reached; or another agent continues the run.
        """
        if self._step_started is None:  # the turn was requested before a pause or a crash
            self._start_step(len(self.state.replies))
        requested = tool_calls.reserve_calls(self, requested)
        jobs = (tool_calls.run_call(self, call) for call in requested)
        with self.step_span.activate():
            await run_as_ready(lambda: next(jobs, None), limit=self.budget.limits.max_parallel_tools)
        results.append_tool_messages(self, requested)
        if self.agent.spec.handoffs and (target := run_tools.target_of(self, requested)) is not None:
            await run_tools.move(self, target)
            raise ConversationMoved

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
        return Run(self.state.children[key], agent, self.services, self._executors, parent=self)

    async def drive(self, executor: Executor | None = None) -> Confirmations:
        """Run `executor`, by default the agent's own, to its end or a pause; record in the state how the run ended.

        A root run is driven by the runtime, a sub-run by the tool call or plan step that started it.

        Returns:
            The confirmations that the run waits for; empty once it has ended.
        """
        if self.parent is not None and self.state.status not in ("running", "paused"):
            return ()  # it ended before a crash, and only its caller had not recorded that yet
        while True:
            own = executor or self.agent.executor or self._executors[self.agent.spec.executor]
            with AgentTrace(self) as trace, self._in_progress(), suppress(ConversationMoved):
                pending = await _execute(self, own)
                trace.set_pending(pending, self.step_span)
                if not pending and self.is_guarded:
                    await guard_output(self, self.output_message_id)
                return pending
            self.bind(self.services.generation.agents[self.state.answering])

    async def delegate(
        self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any]
    ) -> tuple[Confirmations, RunState]:
        """Run a sub-agent, or resume its run: see `RunContext.delegate`."""
        child = self.child(key, agent, message, inputs)
        return await child.drive(), child.state

    # --- inside

    @contextmanager
    def _in_progress(self) -> Iterator[None]:
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

    async def _call_model(self, request: ModelRequest, *, primary: NamedClient | None = None) -> ModelReply:
        try:
            reply = await turns.call_model(self, request, primary=primary)
        except ModelError as error:
            self.last_message_id = error.message_id or self.last_message_id
            raise
        self.last_message_id = reply.message_id
        return reply

    def _start_step(self, index: int) -> None:
        self._end_step()
        self.step_span, self._step_started = open_step_span(self, index), perf_counter()

    def _end_step(self) -> None:
        if self._step_started is not None and (meters := self.services.meters):
            meters.record_step(self.agent.name, "turn", perf_counter() - self._step_started)
        self._step_started = None
        self.step_span.end()
        self.step_span = NOOP_SPAN


Executor = Callable[[Run], Awaitable[str]]
"""A coroutine function that works on a run through its methods, and returns the text of the answer."""

Executors = Mapping[str, Executor]
"""The built-in executors by name; passed in, because executors call the run."""


async def react(run: Run) -> str:
    """Call the model and the tools it requests, turn by turn, until it answers without a tool call."""
    while True:
        reply = run.state.last_reply or await run.ask_model()  # a reply may be left from before a pause or a crash
        if not reply.tool_calls:
            return reply.content
        await run.call_tools(reply.tool_calls)


async def guard_output(run: RunContext, message_id: str) -> None:
    """Pass the output through the hooks, and replace it with what they return.

    While the hooks run, the state is that of a run in progress: a checkpoint does not contain the unchecked output, and
    a run that is suspended here is guarded when it resumes.

    Args:
        run: a run that has just ended.
        message_id: id, in events, of the message that contains the output.
    """
    state = run.state
    final = (state.status, state.finish_reason, state.output, state.data, state.error, state.stopped_by)
    state.status, state.finish_reason, state.output = "running", "", ""
    state.data = state.error = state.stopped_by = None
    output = final[2]
    try:
        visible = await results.after_run(run, output) if output else ""
    except Refused as refusal:
        run.end("refused", refusal.message)
    except asyncio.CancelledError:
        if not run.services.journal.is_suspended:
            run.end("cancelled")
            discard_output(run)
        raise
    else:
        state.status, state.finish_reason, _, data, state.error, state.stopped_by = final
        state.output, state.data = visible, data if visible == output else None
    results.replace_answer(run, state.output)
    if output:
        await run.emit(ContentReceived, message_id=message_id, text=state.output)


def discard_output(run: RunContext) -> None:
    """Clear the output of a run that ended before its hooks could check it."""
    if run.is_guarded:
        run.state.output, run.state.data = "", None
        results.replace_answer(run, "")


async def _prepare(run: Run) -> None:
    """Call the hooks of a run that starts or resumes, load what its model needs, and shorten a long history."""
    await results.before_run(run)
    await prepare_run(run)
    if run.parent is None and run.state.history and not run.state.steps:
        await fit_history(run)


async def _execute(run: Run, executor: Executor) -> Confirmations:
    """Call the executor, and turn each way it can end into the run's final state.

    Raises:
        ConversationMoved: another agent continues the run.
    """
    state = run.state
    deadline = run.new_deadline()
    try:
        async with deadline:
            run.services.journal.check()
            await _prepare(run)
            output = await _answer(run, executor)
            state.data = await final_data(run, output)
            run.end("final", output)
    except Paused as paused:
        run.end("confirmation")
        return paused.confirmations
    except LimitExceeded as limit:
        _stop_at_limit(run, limit)
    except Refused as refusal:
        run.end("refused", refusal.message)
    except TimeoutError as error:
        if deadline.expired():
            _stop_at_limit(run, run.budget.timeout_error())
        else:
            run.end("internal_error", partial_output(state), error)
    except asyncio.CancelledError:
        if run.services.journal.is_suspended:
            raise  # the runtime is closing: the run has not ended, and its state stays resumable
        run.end("cancelled", partial_output(state))
        discard_output(run)
        raise
    except (AgentsdError, PromptError) as error:
        _release_if_scarce(run, error)
        run.end(getattr(error, "code", ConfigError.code), partial_output(state), error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's executor may raise anything: only its run ends
        _release_if_scarce(run, error)
        log.error("run %s: executor %r failed: %s", state.run_id, run.agent.spec.executor, safe_traceback(error))
        run.end("internal_error", partial_output(state), error)
    return ()


async def _answer(run: Run, executor: Executor) -> str:
    """Return the executor's answer as valid Unicode.

    Raises:
        ConfigError: it is not a text.
        LimitExceeded: it is cut, and the agent does not accept that.
    """
    output: object = await executor(run)
    if not isinstance(output, str):
        kind, name = type(output).__name__, run.agent.spec.executor
        raise ConfigError(f"executor {name} returned {kind}; expected str, the answer's text")
    output = fix_surrogates(output)
    if run.state.truncated:
        stop_if_truncated(run, output)
    return output


async def final_data(run: Run, text: str) -> Any:
    """Return the answer as JSON data of the requested type, or None if no type is requested.

    If the text is not such data, the model is asked for it.

    Args:
        run: the run that ends with the answer.
        text: the answer.

    Raises:
        ModelError: the model did not return such data.
        LimitExceeded: a limit is used up.
    """
    output = _output_type(run)
    if output is None:
        return _any_object(text) if run.state.model_settings.response_format == "json" else None
    try:
        answer: BaseModel = output.model_validate_json(strip_fence(text.strip()))
    except ValidationError:
        instruction = late_guidance(_INSTRUCTION.format(name=output.__name__))
        answer = await run.ask_typed(output, instruction)
    run.keep_answer(answer)
    return answer.model_dump(mode="json", by_alias=True)  # so that it fits the schema that was requested


def _any_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that an answer consists of, or None if it is something else."""
    try:
        value = read_json(strip_fence(text.strip()))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _output_type(run: RunContext) -> type[BaseModel] | None:
    requested = run.services.output_type
    if requested is not None and run.parent is None:
        return bounded_model(requested)
    schema = run.state.output_schema
    return None if schema is None else _model_of(schema)


def _model_of(schema: dict[str, Any]) -> type[BaseModel]:
    """Return a model that accepts what an object's JSON Schema accepts; raises ConfigError for an invalid schema."""
    arguments = SchemaArguments(schema)

    class Answer(BaseModel):
        """The answer."""

        model_config = ConfigDict(extra="allow")

        @model_validator(mode="before")
        @classmethod
        def _fits(cls, data: Any) -> Any:
            if not isinstance(data, dict):
                raise ValueError("an object is expected")
            try:
                return arguments.bind(data)
            except ArgumentsError as error:
                raise ValueError(error.message) from None

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return {**deepcopy(arguments.schema), "title": cls.__name__}  # the name of the tool

    return Answer


def _release_if_scarce(run: Run, error: BaseException) -> None:
    """Raise CancelledError, and suspend the run, if the error is a lack of open files or memory: nothing is wrong."""
    if is_scarcity(error) and run.services.journal.mark_scarce():
        log.warning("run %s is released: this process has no open files or memory left", run.state.run_id)
        raise asyncio.CancelledError


def _stop_at_limit(run: Run, limit: LimitExceeded) -> None:
    run.end(limit.limit, partial_output(run.state))
    run.state.stopped_by = LimitUse(
        limit=limit.limit, used=limit.used, allowed=limit.allowed, place=limit.place, budget=limit.budget
    )


Job = Coroutine[Any, Any, Confirmations]


async def run_as_ready(next_job: Callable[[], Job | None], *, limit: int) -> None:
    """Run jobs concurrently; start each job when it is ready and fewer than `limit` are running.

    Once a job has exceeded a limit of the run, no further job starts.

    Args:
        next_job: returns a job that can start now, or None; called at first, and whenever a job has ended.
        limit: the number of jobs that may run at the same time.

    Raises:
        Paused: jobs need confirmations; the exception carries those of all jobs, in the order in which they started.
        LimitExceeded: raised by the first job that exceeded a limit.
    """
    group = _Group()
    running: set[asyncio.Task[Confirmations]] = set()
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                while not group.limits and len(running) < limit and (job := next_job()) is not None:
                    running.add(group.add(tasks, job))
                if not running:
                    break
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    group.raise_deferred()


class _Group:
    """The jobs of a group; collects the limits that they exceeded."""

    def __init__(self) -> None:
        self.limits: list[LimitExceeded] = []
        self._tasks: list[asyncio.Task[Confirmations]] = []

    def add(self, tasks: asyncio.TaskGroup, job: Job) -> asyncio.Task[Confirmations]:
        self._tasks.append(tasks.create_task(self._guarded(job)))
        return self._tasks[-1]

    def raise_deferred(self) -> None:
        """Raise the first exceeded limit, or else Paused, after all jobs have finished."""
        if self.limits:
            raise self.limits[0]
        if confirmations := [confirmation for task in self._tasks for confirmation in task.result()]:
            raise Paused(confirmations)

    async def _guarded(self, job: Job) -> Confirmations:
        try:
            return await job
        except LimitExceeded as limit:
            self.limits.append(limit)
            return ()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
