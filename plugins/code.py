"""Python for agents, in a sandbox without access to this machine. Needs the extra `code` of agentsd.

The code runs on pydantic-monty in a separate process: no files, no network, no environment variables, no packages, and
with limits of time, memory, recursion and output. If pydantic-monty is not installed, no code is executed.
"""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from agentsd import ToolError, tool

SECONDS = 3.0
KILLED_AFTER = 5.0
"""Seconds after which an interpreter that does not stop is killed."""
MEMORY_BYTES = 128 * 1024 * 1024
RECURSION = 400
MAX_CODE = 50_000
MAX_OUTPUT = 20_000
"""Maximum characters of the printed text, and of the value."""


@tool(risk="medium", idempotent=True, needs={"pydantic_monty": "agentsd[code]"})
def code_execute(code: str) -> str:
    """Run Python code in a sandbox; return the printed text, and the value of its last line as JSON.

    A part of Python: functions, loops, comprehensions, f-strings and the modules math, json, re, datetime. No files, no
    network, no input, no other packages, no inheritance, no generators. Nothing is kept between calls.

    Args:
        code: The program, complete with its data.
    """
    if len(code) > MAX_CODE:
        raise ToolError(f"the code has {len(code)} characters; the limit is {MAX_CODE}")
    printed = StringIO()
    value = _run(code, printed)
    lines = [text] if (text := printed.getvalue().rstrip("\n")) else []
    if value is not None:
        lines.append(f"value: {_json(value)}")
    return "\n".join(lines) or "the code ran; it printed nothing, and its last line has no value"


def _run(code: str, printed: StringIO) -> Any:
    import pydantic_monty as monty

    def keep(_stream: str, text: str) -> None:
        printed.write(text[: MAX_OUTPUT - printed.tell()])
        if printed.tell() >= MAX_OUTPUT:
            raise RuntimeError(f"the code prints more than {MAX_OUTPUT} characters")

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
        raise ToolError(_error_text(error.display(), printed.getvalue().rstrip("\n"))) from None
    except monty.MontyCrashedError as error:
        reason = "the code took too long" if error.timed_out else f"the interpreter crashed: {error}"
        raise ToolError(reason) from None
    except (monty.MontyError, ValueError, OSError) as error:
        raise ToolError(f"the code could not be run: {error}") from None


def _error_text(traceback: str, printed: str) -> str:
    end = traceback[-MAX_OUTPUT:]
    return f"{end}\nprinted before the error:\n{printed}" if printed else end


def _json(value: Any) -> str:
    """Return the value as JSON, built in pieces, because a small value can have a very long text."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=_plain).iterencode(value):
            text += piece
            if len(text) > MAX_OUTPUT:
                return f"{text[:MAX_OUTPUT]}… (truncated: select a part of it)"
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the value of the last line is not JSON ({error}): print what you need") from None
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"its type is {type(value).__name__}")
