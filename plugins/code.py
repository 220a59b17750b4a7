"""Python for agents, in an interpreter that reaches nothing of this machine. It needs `pip install agentsd[code]`.

The code runs on pydantic-monty, in a process of its own: no files, no network, no environment, no packages; with limits
of time, memory, recursion and output. Without it there is no code execution: nothing else takes its place.
"""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from framework import ToolError, tool

SECONDS = 3.0
KILLED_AFTER = 5.0
"""Seconds: an interpreter that does not stop by itself is killed."""
MEMORY_BYTES = 128 * 1024 * 1024
RECURSION = 400
MAX_CODE = 50_000
MAX_OUTPUT = 20_000
"""Characters of what is printed, and of the value."""


@tool(risk="medium", idempotent=True)
def code_execute(code: str) -> str:
    """Run Python code in a sandbox; returns what it prints, and the value of its last line as JSON.

    A part of Python: functions, loops, comprehensions, f-strings and the modules math, json, re, datetime. No files, no
    network, no input, no other packages, no inheritance, no generators. Nothing is kept from one call to the next.

    Args:
        code: The program, complete with its data.
    """
    if len(code) > MAX_CODE:
        raise ToolError(f"the code has {len(code)} characters; at most {MAX_CODE} are run")
    printed = StringIO()
    value = _run(code, printed)
    lines = [text] if (text := printed.getvalue().rstrip("\n")) else []
    if value is not None:
        lines.append(f"value: {_json(value)}")
    return "\n".join(lines) or "it ran; it printed nothing, and its last line has no value"


def _run(code: str, printed: StringIO) -> Any:
    try:
        import pydantic_monty as monty
    except ImportError:
        raise ToolError("code cannot be run here: the operator must `pip install agentsd[code]` first") from None

    def keep(_stream: str, text: str) -> None:
        printed.write(text[: MAX_OUTPUT - printed.tell()])
        if printed.tell() >= MAX_OUTPUT:
            raise RuntimeError(f"it prints more than {MAX_OUTPUT} characters")

    limits = monty.ResourceLimits(
        max_feed_duration_secs=SECONDS, max_memory=MEMORY_BYTES, max_recursion_depth=RECURSION, max_suspensions=1000
    )
    try:
        with (
            monty.Monty(min_processes=1, max_processes=1, request_timeout=KILLED_AFTER) as interpreters,
            interpreters.checkout(limits=limits, os_policy={"sleep": "zero"}) as session,
        ):
            return session.feed_run(code, print_callback=keep)
    except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
        raise ToolError(_told(error.display(), printed.getvalue().rstrip("\n"))) from None
    except monty.MontyCrashedError as error:
        raise ToolError("it took too long" if error.timed_out else f"the interpreter gave up: {error}") from None
    except (monty.MontyError, ValueError, OSError) as error:
        raise ToolError(f"the code could not be run: {error}") from None


def _told(traceback: str, printed: str) -> str:
    told = traceback[-MAX_OUTPUT:]
    return f"{told}\nprinted before that:\n{printed}" if printed else told


def _json(value: Any) -> str:
    """The value as JSON, piece by piece: a small value can have a text without end."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=_plain).iterencode(value):
            text += piece
            if len(text) > MAX_OUTPUT:
                return f"{text[:MAX_OUTPUT]}… (cut here: choose less of it)"
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the value of the last line cannot be shown as JSON ({error}): print what you need") from None
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"it is of type {type(value).__name__}")
