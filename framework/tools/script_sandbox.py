"""Runs one script in an interpreter of its own: pydantic-monty, in a process without files, network and environment.

A script sees the same time and the same random numbers each time it is run with the same `began` and `seed`, so that
it asks for the same calls when it is run again from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pydantic_monty as monty

_SECONDS = 10.0
"""Time that a script may compute, in seconds, without the time of its calls."""
_KILLED_AFTER = 20.0
"""Seconds after which an interpreter that does not answer is killed."""
_MEMORY_BYTES = 128 * 1024 * 1024
_RECURSION = 400
MAX_CALLS = 5_000
"""Maximum number of calls of one script; the limits of the run are usually lower."""
MAX_SCRIPT_OUTPUT = 1_000_000
"""Maximum number of characters that a script prints, and of the value of its last line."""
_MAX_ERROR_CHARS = 4_000
_SCRIPT_NAME = "script"
_SHOWN_AS = "<python-input-0>"
"""Name of the script in the interpreter's messages."""


class ScriptError(Exception):
    """The script is invalid, raised an exception or reached a limit: a text for the model."""

    def __init__(self, message: str, *, kind: str, last_line: str = "") -> None:
        super().__init__(message)
        self.message, self.kind, self.last_line = message, kind, last_line


class SnapshotError(Exception):
    """A snapshot cannot be restored by this version of the interpreter."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The script calls a function, and waits for its result."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """The script has ended."""

    value: Any
    """Value of its last line, if that is an expression."""


def interpreter_version() -> str:
    """Return the version of the interpreter, to which snapshots belong."""
    import pydantic_monty as monty

    return monty.__version__


class Interpreter:
    """One script in progress."""

    def __init__(self, session: monty.AsyncMontySession, functions: Collection[str]) -> None:
        self._session = session
        self._functions = dict.fromkeys(functions, _never_called)
        self._call: monty.AsyncFunctionSnapshot | None = None
        self.printed = ""
        """What the script has printed."""

    async def start(self, code: str, *, check: bool) -> FunctionCall | Finished:
        """Run the script up to its first call or its end, after a check of its types unless `check` is False.

        Raises:
            ScriptError: it is invalid, raised an exception or reached a limit.
        """
        begin = self._session.feed_start(
            code, external_lookup=self._functions, print_callback=self._print, skip_type_check=not check
        )
        return await self._next(begin)

    async def restore(self, snapshot: bytes, printed: str) -> FunctionCall | Finished:
        """Continue at the call for which the script waited; raise SnapshotError if that is impossible."""
        import pydantic_monty as monty

        self.printed = printed
        try:
            progress = await self._session.load_snapshot(
                snapshot, external_lookup=self._functions, print_callback=self._print
            )
        except (monty.MontyError, ValueError, OSError) as error:
            raise SnapshotError(str(error)) from None
        return await self._next(_done(progress))

    async def answer(self, value: Any) -> FunctionCall | Finished:
        """Return a value from the call; raises like `start`."""
        assert self._call is not None
        return await self._next(self._call.resume({"return_value": value}))

    async def fail(self, kind: monty.ExcType, message: str) -> FunctionCall | Finished:
        """Raise an exception from the call; raises like `start`."""
        assert self._call is not None
        return await self._next(self._call.resume({"exc_type": kind, "message": message}))

    def snapshot(self) -> bytes:
        """Return the state of the script, which waits for the result of a call."""
        assert self._call is not None
        return self._call.dump()

    async def _next(self, begun: Awaitable[monty.AsyncSnapshot]) -> FunctionCall | Finished:
        import pydantic_monty as monty

        try:
            progress = await begun
            while True:
                if isinstance(progress, monty.MontyComplete):
                    return Finished(progress.output)
                if isinstance(progress, monty.AsyncFutureSnapshot):
                    raise ScriptError("functions return their results: do not await them", kind="script_error")
                if isinstance(progress, monty.AsyncNameLookupSnapshot):
                    progress = await progress.resume_auto()
                elif progress.is_os_function:
                    progress = await progress.resume_not_handled()
                else:
                    self._call = progress
                    return FunctionCall(str(progress.function_name), progress.args, progress.kwargs)
        except monty.MontyTypingError as error:
            raise ScriptError(_readable(error.display()), kind="invalid_script") from None
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            text, last = _readable(error.display()), error.display("type-msg")
            raise ScriptError(text, kind="script_error", last_line=last) from None
        except monty.MontyCrashedError as error:
            reason = "the script took too long" if error.timed_out else f"the interpreter ended: {error}"
            raise ScriptError(reason, kind="script_error") from None
        except (monty.MontyError, ValueError, OSError) as error:
            raise ScriptError(f"the script could not be run: {error}", kind="script_error") from None

    def _print(self, _stream: str, text: str) -> None:
        self.printed += text[: MAX_SCRIPT_OUTPUT - len(self.printed)]
        if len(self.printed) >= MAX_SCRIPT_OUTPUT:
            raise RuntimeError(f"the script prints more than {MAX_SCRIPT_OUTPUT} characters")


@asynccontextmanager
async def open_interpreter(
    functions: Collection[str], stubs: str, *, began: float, seed: str
) -> AsyncIterator[Interpreter]:
    """Start an interpreter for one script; it ends with the block, whatever the script does.

    Args:
        functions: names of the functions that the script may pass around as values.
        stubs: signatures that it is checked against.
        began: the time that it sees, in Unix seconds.
        seed: seed of its random numbers.
    """
    import pydantic_monty as monty

    limits = monty.ResourceLimits(
        max_feed_duration_secs=_SECONDS,
        max_memory=_MEMORY_BYTES,
        max_recursion_depth=_RECURSION,
        max_suspensions=MAX_CALLS,
    )
    fixed = monty.OSPolicy(sleep="zero", datetime=datetime.fromtimestamp(began, UTC), random_start={"seed": seed})
    async with (
        monty.AsyncMonty(min_processes=1, max_processes=1, request_timeout=_KILLED_AFTER) as pool,
        pool.checkout(
            script_name=_SCRIPT_NAME,
            limits=limits,
            type_check=True,
            type_check_stubs=stubs,
            type_check_format="concise",
            os_policy=fixed,
        ) as session,
    ):
        yield Interpreter(session, functions)


def json_text(value: Any, limit: int, *, strict: bool) -> str:
    """Return a value of a script as JSON, built in pieces, because a small value can have a very long text.

    Args:
        value: the value.
        limit: maximum number of characters.
        strict: accept JSON data only; otherwise sets, dates and bytes are converted, too.

    Raises:
        ValueError: the value is not JSON data, or its text is too long.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=not strict, default=_refuse if strict else _plain)
    pieces, length = list[str](), 0
    try:
        for piece in encoder.iterencode(value):
            pieces.append(piece)
            if (length := length + len(piece)) > limit:
                raise ValueError(f"it has more than {limit} characters as JSON")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return "".join(pieces)


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON data: pass dict, list, str, int, float, bool or None")


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def _readable(text: str) -> str:
    """Return the interpreter's message with the name of the script; of a long one the end, where the cause is."""
    return text.replace(_SHOWN_AS, _SCRIPT_NAME).replace(f"{_SCRIPT_NAME}:", "line ").strip()[-_MAX_ERROR_CHARS:]


def _never_called(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("the engine executes the calls of a script")


async def _done(progress: monty.AsyncSnapshot) -> monty.AsyncSnapshot:
    return progress
