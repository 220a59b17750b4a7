"""Runs plugin hooks before and after a run and each of its tool calls, and classifies what plugins raise.

Any exception in a hook is a refusal: a hook that fails lets nothing through.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.results import to_json
from framework.telemetry import names, plugin_span
from framework.telemetry.plugin_span import PluginSpan
from framework.telemetry.redact import places
from framework.tools.builtin.notes import ASK_USER
from framework.tools.declaration import Extension
from framework.tools.tool import Session, ToolContext, ToolSpan, idempotency_key
from framework.types.errors import Paused, Refused, ToolError
from framework.types.events import ToolStarted
from framework.types.messages import ToolCall, ToolResult
from framework.types.redact import redact_data
from framework.types.state import Approve, Confirmation, Edit, Reject, Respond
from framework.types.strict_json import call_digest
from framework.types.text import fix_surrogates


def build_tool_context(run: RunContext, call: ToolCall) -> ToolContext:
    """Return the context object for one call; hooks receive the same."""

    async def progress(fraction: float, message: str) -> None:
        head = {"id": call.id, "tool": call.tool, "arguments": redact_data(call.arguments)}
        await run.emit(ToolStarted, **head, progress=fraction, message=message)

    question_numbers = count(1)

    async def ask_human(question: str, choices: Sequence[str] = ()) -> str:
        return _human_answer(run, _question(run, call, question, choices, next(question_numbers)))

    def span(
        name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        extra_attributes = plugin_span.attributes(attributes or {})
        return PluginSpan(run.span(name, "CHAIN", {names.TOOL_NAME: call.tool, **extra_attributes}, client=client))

    tools = run.services.tools()
    return ToolContext(
        run_id=run.state.run_id,
        call_id="/".join((*run.state.path, call.id)),
        agent=run.agent.name,
        base_path=run.services.base_path,
        unprotected=tools.unprotected,
        write_below=tools.write_below,
        denied_files=run.policy.denied_files(),
        reserved_files=run.services.reserved_files,
        deps=run.services.deps,
        http=tools.http,
        locale=run.state.locale,
        user=run.state.user,
        tenant=run.state.tenant,
        metadata=run.services.root.metadata,
        progress=progress,
        session=Session(run.services.root.session),
        ask_human=ask_human,
        span=span,
    )


def _question(run: RunContext, call: ToolCall, question: str, choices: Sequence[str], number: int) -> Confirmation:
    call_id = "/".join((*run.state.path, call.id))
    return Confirmation(
        id=f"{call_id}?{number}",
        call_id=call_id,
        idempotency_key=idempotency_key(run.state.run_id, call_id),
        kind="ask_user" if call.tool == ASK_USER else "question",
        agent=run.agent.name,
        tool=call.tool,
        arguments=call.arguments,
        hash=call_digest(call.tool, {"question": question, **({"choices": list(choices)} if choices else {})}),
        reason=question,
        rule="the model asks" if call.tool == ASK_USER else "the tool asks",
        choices=tuple(choices),
    )


def _human_answer(run: RunContext, question: Confirmation) -> str:
    """Return a person's answer; raise Paused until they answer, ToolError if they declined."""
    match run.decision(question.id):
        case None:
            raise Paused([question])
        case Respond(text=text):
            return text
        case Approve():
            return "yes"
        case Reject(reason=reason):
            raise ToolError(f"a human did not answer the question{': ' + reason if reason else ''}")
        case Edit():
            raise ToolError("a human edited the call instead of answering the question")


log = logging.getLogger(__name__)

_HOOK_SECONDS = 10.0
_NO_CALL = ToolCall(id="", tool="")
_RAISE = dis.opmap["RAISE_VARARGS"]


async def before_run(run: RunContext) -> None:
    """Call the `before_run` hooks once per run, before its executor starts; raise Refused if one refuses."""
    if run.state.admitted:
        return
    for hook in run.hooks("before_run"):
        await _call(run, hook, _NO_CALL, run.state.messages[0].description)
    run.state.admitted = True


async def after_run(run: RunContext, output: str) -> str:
    """Return the output as changed by the `after_run` hooks; raise Refused if one refuses."""
    for hook in run.hooks("after_run"):
        changed = await _call(run, hook, _NO_CALL, output)
        output = output if changed is None else fix_surrogates(str(changed))
    return output


async def before_tool(run: RunContext, call: ToolCall) -> ToolResult | None:
    """Return the result of a call that a `before_tool` hook refuses, or None if all hooks allow it."""
    for hook in run.hooks("before_tool"):
        try:
            await _call(run, hook, call, call)
        except Refused as refusal:
            metadata = {"error_type": "policy_denied", "rule": f"hook {hook.name}"}
            return ToolResult(status="denied", error=refusal.message, metadata=metadata)
    return None


async def after_tool(run: RunContext, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of a call as changed by the `after_tool` hooks; it is recorded and sent to the model."""
    for hook in run.hooks("after_tool"):
        try:
            result = _replacement(hook, result, await _call(run, hook, call, call, result))
        except Refused as refusal:
            error = f"the call was executed, but its result is withheld: {refusal.message}"
            return ToolResult(status="error", error=error, metadata={"error_type": "withheld", "hook": hook.name})
    return result


def _replacement(hook: Extension, result: ToolResult, returned: Any) -> ToolResult:
    """Return the result that a hook returned, with its output as JSON data; raise Refused for any other type."""
    if returned is None:
        return result
    if not isinstance(returned, ToolResult):
        raise Refused(f"hook {hook.name} returned {type(returned).__name__}; expected ToolResult or None")
    return returned.model_copy(update={"output": to_json(returned.output)})


async def _call(run: RunContext, hook: Extension, call: ToolCall, *arguments: Any) -> Any:
    """Call a hook within its timeout; raise Refused if it fails for any reason."""
    context = replace(build_tool_context(run, call), ask_human=_reject_question)
    try:
        if inspect.iscoroutinefunction(hook.function):
            async with asyncio.timeout(_HOOK_SECONDS):
                return await hook.function(context, *arguments)
        async with (
            run.services.threads.turn(run.services.root.run_id, f"hook {hook.name}") as thread,
            asyncio.timeout(_HOOK_SECONDS),
        ):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, hook.function, context, *arguments)
    except Refused:
        raise
    except BaseException as error:  # any failure of a hook is a refusal
        if not is_plugin_failure(error):
            raise
        log.error("run %s: hook %s failed: %s", run.state.run_id, hook.name, places(error))
        raise Refused(f"hook {hook.name} failed: {type(error).__name__}") from None


async def _reject_question(question: str, choices: Sequence[str] = ()) -> str:  # noqa: ARG001 - the signature is AskHuman's
    raise Refused("hooks cannot ask a human: use an `ask` rule, or ask in the tool")


def is_plugin_failure(error: BaseException) -> bool:
    """Return whether the plugin itself failed, as opposed to the run or the process ending.

    SystemExit and the panic of a native library count as failures: they must not end a process that has other runs. A
    CancelledError counts if this task is not being cancelled: it came from something that the plugin awaited.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return _is_raised_by_statement(error)
    return not isinstance(error, Paused)


def _is_raised_by_statement(error: BaseException) -> bool:
    """Return whether a `raise` statement of the plugin raised the error.

    A real Ctrl-C and the closing of a coroutine can occur between any two instructions, or inside asyncio, which raises
    KeyboardInterrupt at the second Ctrl-C. Both must propagate.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("asyncio", "signal"):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def confirmations_in(error: BaseException) -> Iterator[Confirmation]:
    """Yield the confirmations that a plugin requests, also from tasks that it started in a task group."""
    if isinstance(error, Paused):
        yield from error.confirmations
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from confirmations_in(inner)
