"""The functions of plugins that look on before and after a run and each of its calls, and may refuse.

What a hook raises is a refusal, whatever it is: a guard that is broken lets nothing through.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.plugin_errors import is_failure
from framework.engine.tool_call.results import plain
from framework.engine.tool_call.tool_context import context_of
from framework.llm.openai_format import repair
from framework.telemetry.redact import places
from framework.tools.extension import Extension
from framework.types.errors import Refused
from framework.types.messages import ToolCall, ToolResult

log = logging.getLogger(__name__)

HOOK_SECONDS = 10.0
_NO_CALL = ToolCall(id="", tool="")


async def before_run(run: RunContext) -> None:
    """Once for each run, before its executor begins; raises Refused."""
    if run.state.admitted:
        return
    for hook in run.hooks("before_run"):
        await _call(run, hook, _NO_CALL, run.state.messages[0].content)
    run.state.admitted = True


async def after_run(run: RunContext, output: str) -> str:
    """What the caller gets to see of an output; raises Refused."""
    for hook in run.hooks("after_run"):
        changed = await _call(run, hook, _NO_CALL, output)
        output = output if changed is None else repair(str(changed))
    return output


async def before_tool(run: RunContext, call: ToolCall) -> ToolResult | None:
    """The answer to a call that a hook refuses."""
    for hook in run.hooks("before_tool"):
        try:
            await _call(run, hook, call, call)
        except Refused as refusal:
            metadata = {"error_type": "policy_denied", "rule": f"hook {hook.name}"}
            return ToolResult(status="denied", error=refusal.message, metadata=metadata)
    return None


async def after_tool(run: RunContext, call: ToolCall, result: ToolResult) -> ToolResult:
    """What is recorded, and told to the model, of a call that was made."""
    for hook in run.hooks("after_tool"):
        try:
            result = _instead(hook, result, await _call(run, hook, call, call, result))
        except Refused as refusal:
            error = f"it was carried out, but its result is withheld: {refusal.message}"
            return ToolResult(status="error", error=error, metadata={"error_type": "withheld", "hook": hook.name})
    return result


def _instead(hook: Extension, result: ToolResult, given: Any) -> ToolResult:
    """What is taken for a result, in a form that can be kept; raises Refused if it is none."""
    if given is None:
        return result
    if not isinstance(given, ToolResult):
        raise Refused(f"the hook {hook.name} gave {type(given).__name__} instead of a ToolResult")
    return given.model_copy(update={"output": plain(given.output)})


async def _call(run: RunContext, hook: Extension, call: ToolCall, *arguments: Any) -> Any:
    """Call a hook in its time; raises Refused, for whatever reason."""
    context = replace(context_of(run, call), ask_human=_ask_nobody)
    try:
        if inspect.iscoroutinefunction(hook.function):
            async with asyncio.timeout(HOOK_SECONDS):
                return await hook.function(context, *arguments)
        async with (
            run.services.threads.turn(run.services.root.run_id, f"hook {hook.name}") as thread,
            asyncio.timeout(HOOK_SECONDS),
        ):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, hook.function, context, *arguments)
    except Refused:
        raise
    except BaseException as error:  # whatever it is, it is a refusal
        if not is_failure(error):
            raise
        log.error("run %s: the hook %s failed: %s", run.state.run_id, hook.name, places(error))
        raise Refused(f"the hook {hook.name} failed: {type(error).__name__}") from None


async def _ask_nobody(question: str, choices: Sequence[str] = ()) -> str:  # noqa: ARG001 - the signature is AskHuman's
    raise Refused("a hook cannot ask a human: a rule can, or the tool itself")
