"""The tools that the engine executes itself: handoffs, scripts, `tool_search`, and searches of long results."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError

from framework.config.agents.compile import HANDOFF
from framework.engine.context.run_context import Confirmations, RunContext
from framework.engine.tool_call.results import DROPPED, INVALID_CALL, whole_text
from framework.tools.builtin.notes import RESULT_READ, RESULT_SEARCH, read_lines, search_lines
from framework.tools.scripts import (
    MAX_CODE_CHARS,
    MAX_SCRIPT_OUTPUT,
    Finished,
    FunctionCall,
    Interpreter,
    ScriptError,
    ScriptFunction,
    SnapshotError,
    checked_stubs,
    interpreter_version,
    json_text,
    open_interpreter,
)
from framework.tools.tool import Tool
from framework.tools.toolset import TOOL_SEARCH
from framework.types.errors import ToolError
from framework.types.events import HandedOff
from framework.types.media import MediaPart
from framework.types.messages import ToolCall, ToolResult
from framework.types.state import CallRecord, ScriptRecord
from framework.types.text import MAX_OBJECT_CHARS, did_you_mean, read_object, repetition_key, shorten

# Tools that are found stay in the requests of the run, after the others. Results are read by the id of their call,
# those of this run only: a step of a plan also reads the results of the run that it is part of, whose starts it has
# received; a sub-agent reads only its own.


_INLINE_CHARS = 100_000
"""Length from which on a text is divided in a thread, which takes about 1 ms for each 100,000 characters."""
_SHOWN_ID_CHARS, _SHOWN_WORDS_CHARS = 80, 200
_MAX_FOUND_CHARS = 40_000
"""Maximum size of the definitions that one search adds to requests, but for the first: about 10,000 tokens."""
_LEFT_OUT = " (its definition is not shown, for lack of room; it can be called)"


async def _read(run: RunContext, id: str, start: int, lines: int) -> str:
    text, limit = _result_text(run, id), run.budget.limits.max_observation_chars
    return await _off_loop(text, partial(read_lines, text, start, lines, limit))


async def _search(run: RunContext, id: str, text: str) -> str:
    whole, limit = _result_text(run, id), run.budget.limits.max_observation_chars
    return await _off_loop(whole, partial(search_lines, whole, text, limit))


async def _off_loop(text: str, function: Callable[[], str]) -> str:
    return await asyncio.to_thread(function) if len(text) > _INLINE_CHARS else function()


def _result_text(run: RunContext, call_id: str) -> str:
    """Return the whole result of a call of this run, as text; raise ToolError if there is none."""
    holder: RunContext | None = run
    while holder is not None and holder.agent.name == run.agent.name:
        record = holder.state.calls.get(call_id)
        if record is not None and record.result is not None:
            return whole_text(holder, record.call.tool, record.result)
        holder = holder.parent
    message = f"this run has no result {shorten(call_id, _SHOWN_ID_CHARS)!r}"
    raise ToolError(f"{message}: results of earlier runs and of other agents cannot be read; call their tool again")


async def _search_tools(run: RunContext, call_id: str, words: str) -> str:
    toolset, searchable = run.agent.toolset, run.searchable_tools()
    found = await asyncio.to_thread(toolset.find_deferred, words, searchable)
    if not found:
        return f"no tool fits {shorten(words, _SHOWN_WORDS_CHARS)!r}: try other words, such as a verb and a thing"
    definitions, chars, fitting = [toolset.tools[name].definition for name in found], 0, list[str]()
    for definition in definitions:
        chars += len(definition.canonical_json)
        if not fitting or chars <= _MAX_FOUND_CHARS:
            fitting.append(definition.name)
    new = run.add_tools(fitting)
    there = {*run.state.added_tools, *(definition.name for definition in run.tool_definitions())}
    if toolset.in_code_mode:
        shown = [function.text() for function in toolset.functions.values() if function.tool in {*found} & there]
        return "\n\n".join(("Scripts can call these functions now:", *shown))
    if new and there.issuperset(found):  # otherwise the model must read the text
        run.state.found_tools[call_id] = new
    lines = [f"- {one.wire_name}: {one.summary}{'' if one.name in there else _LEFT_OUT}" for one in definitions]
    return "\n".join(("You can call these tools now:", *lines))


_RUN_TOOLS: Mapping[str, Callable[..., Awaitable[str]]] = {
    RESULT_READ: _read,
    RESULT_SEARCH: _search,
}
"""What executes the other tools whose source is `run`, by name: called with the run and the arguments."""


async def call_run_tool(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Call a tool that works on the run itself."""
    try:
        if tool.name == TOOL_SEARCH:
            return (), ToolResult(status="success", output=await _search_tools(run, call.id, **bound))
        return (), ToolResult(status="success", output=await _RUN_TOOLS[tool.name](run, **bound))
    except ToolError as error:
        return (), ToolResult(status="error", error=error.message, metadata={"error_type": error.code})


# The calls of the script `c1` have the ids `c1@1`, `c1@2` and so on. If one of them waits for a person, the state of
# the interpreter becomes part of the run's state, and any process continues from there. After a crash, or with another
# version of the interpreter, the script runs again from its start: its finished calls are answered from their
# records. A script that then asks for another call than before ends with an error, and the call is not made.


_MAX_SNAPSHOT_BYTES = 1_000_000
"""A larger snapshot is not stored: the script runs again from its start."""
_SHOWN_CALLS, _SHOWN_CHARS, _SHOWN_FILES = 20, 160, 10
_WORD = re.compile(r"\w+")
_UNKNOWN_NAME = re.compile(r"Name `(\w{1,80})` used when not defined")
_NO_OUTPUT = "The script ran. It printed nothing, and its last line has no value: print what you need."


async def run_script(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Run a script, or continue it after a pause or a crash.

    Returns:
        The confirmations that it waits for, empty once it has ended; and its result.
    """
    if missing := tool.missing_packages:
        return (), ToolResult(status="error", error=f"{missing} (the operator must run it)")
    script = _Script(run, call.id, bound["code"])
    try:
        pending, value = await script.drive()
    except ScriptError as error:
        result = script.failure(error)
    else:
        if pending:
            return pending, ToolResult(status="cancelled")
        result = ToolResult(status="success", output=script.output(value))
    run.state.scripts.pop(call.id, None)
    return (), result.model_copy(update={"media": script.files()[-_SHOWN_FILES:]})


@dataclass(slots=True)
class _Script:
    """A script in progress."""

    run: RunContext
    id: str
    """Id of the call that runs it."""
    code: str
    printed: str = ""
    number: int = 0
    """Number of calls that it asked for so far."""
    tool_failures: set[str] = field(default_factory=set)
    """Exceptions that calls raised in the script, as its traceback ends with them."""

    async def drive(self) -> tuple[Confirmations, str]:
        """Run the script to a pause or its end; return the confirmations, and the value of its last line as JSON.

        Raises:
            ScriptError: the script is invalid, raised an exception or reached a limit.
        """
        state = self.run.state
        if len(self.code) > MAX_CODE_CHARS:
            raise ScriptError(f"it has {len(self.code)} characters; the limit is {MAX_CODE_CHARS}", kind="invalid")
        record = state.scripts.setdefault(self.id, ScriptRecord(started_at=self.run.services.now()))
        try:
            return await self._drive(check=not record.calls)
        except SnapshotError:  # it runs again from its start
            state.scripts[self.id] = state.scripts[self.id].model_copy(update={"snapshot": ""})
            return await self._drive(check=False)

    async def _drive(self, *, check: bool) -> tuple[Confirmations, str]:
        state, functions = self.run.state, self.run.agent.toolset.functions
        stubs = checked_stubs(self._callable()) if check else ""
        began, seed = state.scripts[self.id].started_at, f"{state.run_id}/{self.id}"
        async with open_interpreter(functions, stubs, started_at=began, seed=seed) as interpreter:
            try:
                progress = await self._start(interpreter, check=check)
                while isinstance(progress, FunctionCall):
                    pending, progress = await self._call(interpreter, progress)
                    if pending:
                        self._keep_snapshot(interpreter)
                        return pending, ""
                return (), await self._value(progress)
            finally:
                self.printed = interpreter.printed

    def output(self, value: str) -> str:
        """Return what the model gets of a script that ended."""
        lines = [self.printed.rstrip("\n"), f"value: {value}" if value else ""]
        if (more := len(self.files()) - _SHOWN_FILES) > 0:
            lines.append(f"({more} earlier files that its calls returned are not shown)")
        return "\n".join(line for line in lines if line) or _NO_OUTPUT

    def files(self) -> tuple[MediaPart, ...]:
        """Return the files of its calls. The script has only their descriptions: the model gets the last ones."""
        return tuple(part for record in self._ended_calls() if record.result for part in record.result.media)

    def failure(self, error: ScriptError) -> ToolResult:
        """Return what the model gets of a script that failed: why, and what it has done, so as not to repeat it.

        A script is to be corrected, unless a call failed and the script did not handle that.
        """
        parts = [f"{error.message}{self._hint(error.message)}"]
        if calls := list(self._made_calls()):
            parts.append("\n".join(("these calls were made before the error; do not repeat them:", *calls)))
        if self.printed:
            parts.append(f"printed before the error:\n{self.printed.rstrip()}")
        metadata: dict[str, Any] = {"error_type": error.kind}
        if error.last_line not in self.tool_failures:
            metadata[INVALID_CALL] = True
        return ToolResult(status="error", error="\n".join(parts), metadata=metadata)

    async def _start(self, interpreter: Interpreter, *, check: bool) -> FunctionCall | Finished:
        """Start or restore the script; return what it does next. Raises SnapshotError, too."""
        record, self.number = self.run.state.scripts[self.id], 0
        if record.snapshot and record.version == interpreter_version():
            self.number = record.at
            return await interpreter.restore(b64decode(record.snapshot), record.printed)
        return await interpreter.start(self.code, check=check)

    async def _call(
        self, interpreter: Interpreter, asked: FunctionCall
    ) -> tuple[Confirmations, FunctionCall | Finished]:
        """Make the call that the script asks for, or find its record, and continue the script with its result."""
        functions = self.run.agent.toolset.functions
        function = functions.get(asked.name)
        if function is None:
            known = did_you_mean(asked.name, sorted(one.name for one in self._callable()))
            return (), await interpreter.fail("NameError", f"name {asked.name!r} is not defined{known}")
        try:
            arguments = await asyncio.to_thread(_json_arguments, function, asked)
        except ValueError as error:
            return (), await interpreter.fail("TypeError", str(error))
        self.number += 1
        call = ToolCall(id=f"{self.id}@{self.number}", tool=function.tool, arguments=arguments)
        self._require_same(call)
        if pending := await self.run.call_tool(call):
            return pending, Finished(None)
        result = self.run.state.calls[call.id].result
        assert result is not None
        if result.status == "success" and DROPPED not in result.metadata:
            return (), await interpreter.answer(result.output)
        reason = result.error or "its result is too long to be kept whole"
        message = f"{asked.name} {'failed' if result.status in ('success', 'error') else result.status}: {reason}"
        self.tool_failures.add(f"RuntimeError: {message}")
        return (), await interpreter.fail("RuntimeError", message)

    def _require_same(self, call: ToolCall) -> None:
        """Record the call that the script asks for; raise ScriptError if it was another one before."""
        record, key = self.run.state.scripts[self.id], repetition_key(call.tool, call.arguments)
        if self.number > len(record.calls):
            self.run.state.scripts[self.id] = record.model_copy(update={"calls": (*record.calls, key)})
        elif record.calls[self.number - 1] != key:
            text = (
                f"the script was continued and does not ask for the same calls: call {self.number} is now {call.tool}"
            )
            raise ScriptError(f"{text}; it was not made", kind="script_diverged")

    def _keep_snapshot(self, interpreter: Interpreter) -> None:
        """Store the state of the interpreter, which waits for the result of the last call."""
        snapshot = interpreter.snapshot()
        if len(snapshot) <= _MAX_SNAPSHOT_BYTES:
            kept = {"snapshot": b64encode(snapshot).decode(), "version": interpreter_version()}
            update = {**kept, "at": self.number - 1, "printed": interpreter.printed}
            self.run.state.scripts[self.id] = self.run.state.scripts[self.id].model_copy(update=update)

    async def _value(self, ended: Finished) -> str:
        if ended.value is None:
            return ""
        try:
            return await asyncio.to_thread(json_text, ended.value, MAX_SCRIPT_OUTPUT, strict=False)
        except ValueError as error:
            text = f"the value of the last line cannot be shown ({error}): print what you need"
            raise ScriptError(text, kind="script_error") from None

    def _callable(self) -> list[ScriptFunction]:
        """Return the functions that the script may name: offered ones that no rule denies, pinned or live."""
        toolset, words = self.run.agent.toolset, set(_WORD.findall(self.code))
        offered = toolset.offered
        named = (one for one in toolset.functions.values() if one.name in words and one.tool in offered)
        return [one for one in named if self.run.policy.may_allow(offered[one.tool])]

    def _hint(self, message: str) -> str:
        """Return what unknown names of a script may mean."""
        toolset = self.run.agent.toolset
        names = sorted(one.name for one in toolset.functions.values() if one.tool in toolset.offered)
        unknown = dict.fromkeys(_UNKNOWN_NAME.findall(message))
        meant = {name: [one for one in names if one.startswith(f"{name}_")] or names for name in unknown}
        hints = [f"{name}{did_you_mean(name, known)}" for name, known in meant.items() if known]
        return "".join(f"\n{hint}" for hint in hints)

    def _ended_calls(self) -> list[CallRecord]:
        made = (record for id_, record in self.run.state.calls.items() if id_.startswith(f"{self.id}@"))
        return [record for record in made if record.result is not None]

    def _made_calls(self) -> Iterator[str]:
        """Yield a line about each call that has a result."""
        ended = self._ended_calls()
        if len(ended) > _SHOWN_CALLS:
            yield f"- {len(ended) - _SHOWN_CALLS} earlier ones"
        yield from (f"- {_described(record)}" for record in ended[-_SHOWN_CALLS:])


def _json_arguments(function: ScriptFunction, asked: FunctionCall) -> dict[str, Any]:
    """Return the arguments of a call as JSON data; raise ValueError if they are something else."""
    given = function.arguments(asked.args, asked.kwargs)
    try:
        return read_object(json_text(given, MAX_OBJECT_CHARS, strict=True))
    except ValueError as error:
        raise ValueError(f"the arguments of {function.name}: {error}") from None


def _described(record: CallRecord) -> str:
    assert record.result is not None
    arguments = shorten(json.dumps(record.call.arguments, ensure_ascii=False), _SHOWN_CHARS)
    result = record.result
    text = result.error or (result.output if isinstance(result.output, str) else json.dumps(result.output))
    return f"{record.call.tool} {arguments}: {result.status}: {shorten(text, _SHOWN_CHARS)}"


MAX_HANDOFFS = 3
"""Maximum number of times that a conversation is handed over for one message of the user."""


def refused_handoff(run: RunContext, call: ToolCall, tool: Tool) -> ToolResult | None:
    """Return the result of a call that cannot hand the conversation over; None if it can."""
    name, worked = tool.name.removeprefix(HANDOFF), run.state.handled_by or [run.state.agent]
    agent = run.services.generation.agents.get(name)
    why = ""
    if run.parent is not None:
        why = "only the agent that has the conversation can hand it over"
    elif [one.id for one in run.state.open_calls()] != [call.id]:
        why = "it must be the only call of its turn: call it again without others"
    elif name in worked:
        why = f"{name!r} has worked on this message before: answer it, or ask the user"
    elif len(worked) > MAX_HANDOFFS:
        why = f"this message has been handed over {MAX_HANDOFFS} times, the maximum: answer it, or ask the user"
    elif agent is None or run.services.current_agent(name) is None:
        why = f"there is no agent {name!r} any longer"
    else:
        try:
            agent.inputs_from(run.state.inputs)
        except ValidationError as error:
            detail = error.errors(include_url=False, include_input=False)[0]
            why = f"its input {'.'.join(map(str, detail['loc']))!r} cannot be set: {detail['msg']}"
    if not why:
        return None
    return ToolResult(status="error", error=f"not handed over: {why}", metadata={"error_type": "handoff_refused"})


async def call_handoff(
    run: RunContext,
    call: ToolCall,  # noqa: ARG001 - the signature is that of all that execute a tool in another way than calling it
    tool: Tool,
    bound: dict[str, Any],
) -> tuple[Confirmations, ToolResult]:
    """Return the result of a call that hands the conversation over; `move` follows once it is recorded."""
    name = tool.name.removeprefix(HANDOFF)
    because = f" Its reason: {bound['reason']}" if bound["reason"].strip() else ""
    text = (
        f"{run.agent.name} has handed this conversation over to {name}, which answers now.{because} Until the user's "
        "next message, it can use only tools that both may use."
    )
    return (), ToolResult(status="success", output=text)


def target_of(run: RunContext, requested: Sequence[ToolCall]) -> str | None:
    """Return the agent that the calls of a turn have handed the conversation over to, if any."""
    for call in requested:
        record, tool = run.state.calls[call.id], run.agent.toolset.tools.get(call.tool)
        is_done = record.started and record.result is not None and record.result.status == "success"
        if tool is not None and tool.source == "handoff" and is_done:
            return tool.name.removeprefix(HANDOFF)
    return None


async def move(run: RunContext, target: str) -> None:
    """Let another agent continue the run: it calls its own `before_run` hooks and reads its own context.

    The change is saved together with the result of the call, which is the last message.
    """
    state, origin = run.state, run.agent.name
    state.handled_by = [*(state.handled_by or [state.agent]), target]
    state.admitted, state.background, state.executor = False, None, ""
    state.added_tools, state.found_tools = [], {}
    state.recalled, state.counted = None, (0, 0)
    await run.emit(HandedOff, agent=target, origin=origin)
