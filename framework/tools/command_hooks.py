"""Hooks that are programs: each gets one JSON object and answers with a verdict. Every other outcome refuses.

The program is a file below `hooks/`, which file tools and edits over HTTP do not write: an agent cannot replace its
guard, and whoever edits an agent file cannot run another program.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from framework.tools.child_processes import child_environment
from framework.tools.declaration import Extension
from framework.tools.tool import ToolContext
from framework.types.errors import Refused
from framework.types.messages import ToolCall, ToolResult
from framework.types.spec import CommandHook, HookPlace
from framework.types.strict_json import read_json

FOLDER = "hooks"
_MAX_OUTPUT_BYTES = 1_000_000
_MAX_REASON_CHARS = 2000
_ASKED: Mapping[HookPlace, str] = {"before_run": "message", "after_run": "output"}
"""The name of the text that a hook is asked about, in its JSON object."""
_REPLACES: tuple[HookPlace, ...] = ("after_tool", "after_run")


def program_problem(root: Path, hook: CommandHook) -> str | None:
    """Return why the program of a hook cannot be executed; None if it can."""
    program = hook.command[0] if hook.command else ""
    parts = PurePosixPath(program).parts
    if len(parts) < 2 or parts[0] != FOLDER or ".." in parts:
        return f"the program must be a file below {FOLDER}/ of the project: {program!r}"
    try:
        status = (root / program).stat()
    except (OSError, ValueError) as error:
        return f"the program {program!r} cannot be executed: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(status.st_mode) or not os.access(root / program, os.X_OK):
        return f"the program {program!r} is not an executable file: chmod +x {program}"
    return None


def command_hook(place: HookPlace, hook: CommandHook, root: Path, where: str) -> Extension:
    """Return the hook that executes a program.

    Args:
        place: when it is called.
        hook: its program and arguments.
        root: the project's folder, in which it runs.
        where: `file:line` of its entry, which refusals name.
    """

    async def ask(context: ToolContext, *arguments: Any) -> str | ToolResult | None:
        question = {"hook": place, **_question(place, context, arguments)}
        said = await _execute(root, hook, where, json.dumps(question, ensure_ascii=False, default=str).encode())
        return _verdict(place, said, where, arguments)

    return Extension("hook", hook.name, ask)


def _question(place: HookPlace, context: ToolContext, arguments: tuple[Any, ...]) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "agent": context.agent,
        "run_id": context.run_id,
        "user": context.user,
        "tenant": context.tenant,
    }
    for one in arguments:
        match one:
            case ToolCall(id=key, tool=tool, arguments=given):
                asked["call"] = {"id": key, "tool": tool, "arguments": given}
            case ToolResult(status=status, output=output, error=error):
                asked["result"] = {"status": status, "output": output, "error": error}
            case _:
                asked[_ASKED[place]] = one
    return asked


async def _execute(root: Path, hook: CommandHook, where: str, question: bytes) -> bytes:
    """Return what the program printed; raise Refused unless it ends with 0. It ends with the caller."""
    try:
        process = await asyncio.create_subprocess_exec(
            root / hook.command[0],
            *hook.command[1:],
            cwd=root,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            limit=_MAX_OUTPUT_BYTES,
        )
    except OSError as error:
        raise Refused(f"{_named(hook, where)} does not start: {error.strerror}") from None
    try:
        assert process.stdin
        assert process.stdout
        with suppress(ConnectionError):  # it may decide without reading
            process.stdin.write(question)
            await process.stdin.drain()
            process.stdin.close()
        said = await process.stdout.read(_MAX_OUTPUT_BYTES + 1)
        while len(said) <= _MAX_OUTPUT_BYTES and (more := await process.stdout.read(_MAX_OUTPUT_BYTES)):
            said += more
        if len(said) > _MAX_OUTPUT_BYTES:
            raise Refused(f"{_named(hook, where)} printed more than {_MAX_OUTPUT_BYTES:,} bytes")
        if code := await process.wait():
            raise Refused(f"{_named(hook, where)} ended with exit code {code}")
        return said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including processes that it has started
        await process.wait()


def _verdict(place: HookPlace, said: bytes, where: str, arguments: tuple[Any, ...]) -> str | ToolResult | None:
    """Return the replacement that a program wants, or None; raise Refused if it denies, or says anything else."""
    try:
        found = read_json(said.decode())
    except ValueError:
        found = None
    match found:
        case {"verdict": "allow", **rest} if not rest:
            return None
        case {"verdict": "deny", "reason": str(reason), **rest} if not rest:
            raise Refused(f"{reason[:_MAX_REASON_CHARS]} ({where})")
        case {"verdict": "transform", "output": output, **rest} if not rest and place in _REPLACES:
            if place == "after_tool":
                return arguments[-1].model_copy(update={"output": output})  # type: ignore[no-any-return]  # a ToolResult
            if isinstance(output, str):
                return output
    raise Refused(f"the hook at {where} printed no verdict: its output must be one JSON object with a known `verdict`")


def _named(hook: CommandHook, where: str) -> str:
    return f"the hook {hook.command[0]} ({where})"
