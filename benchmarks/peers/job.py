"""The job that every peer does: an agent with tools answers after a number of tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Protocol, get_type_hints

INSTRUCTIONS = "Call the tool, then answer."
PROMPT = "go"
ANSWER = "done"
MODEL = "m"
KEY = "k"
DURABLE_STEPS = 10
"""Tool calls of a run with checkpoints."""
_WORDS = "Some words of an earlier conversation, long enough to look like chat, with a few more words. " * 2

ToolFunction = Callable[..., Awaitable[str]]
History = Sequence[tuple[str, str]]
"""The role and the text of each earlier message."""
Run = Callable[[], Awaitable[str]]
"""Executes the job once, and returns the final text."""


@dataclass(frozen=True, slots=True)
class Job:
    """Runs that a worker executes on one agent."""

    url: str
    """A model server that requests the tool in its first `steps` answers after the history."""
    steps: int
    tools: int = 1
    history: int = 0
    runs: int = 1
    at_once: int = 1
    """How many runs are in progress at a time."""

    @property
    def calls(self) -> int:
        """Model calls of all runs."""
        return self.runs * (self.steps + 1)


@dataclass(frozen=True, slots=True)
class Done:
    """What a job took."""

    seconds: float
    cpu_seconds: float
    latencies: Sequence[float]
    """Seconds of each run, sorted."""
    errors: Mapping[str, int]
    """How often each error ended a run."""
    memory_mb: float
    """Resident memory of the worker after the job."""


@dataclass(frozen=True, slots=True)
class Durable:
    """An agent whose runs have checkpoints in a database."""

    run: Callable[[str], Awaitable[str]]
    """Executes a run with this key."""
    resume: Callable[[str], Awaitable[str]]
    """Continues the run with this key, which was in progress when its process was killed."""


class Peer(Protocol):
    """What the module of a peer defines. Its functions import the framework, so that every environment can read it."""

    TITLE: str
    PACKAGES: tuple[str, ...]
    """The pinned requirements of its environment; empty for the environment of the project itself."""

    def opened(self, url: str, tools: Sequence[ToolFunction], history: History) -> AbstractAsyncContextManager[Run]:
        """Create an agent once, with defaults of the framework and without tracing, and return what executes it."""


def job_tools(number: int, called: Callable[[int], object]) -> list[ToolFunction]:
    """Return the tool that the model calls, which reports its argument, and `number` - 1 others."""

    async def note(n: int) -> str:
        """Return a note of the number.

        Args:
            n: a number
        """
        called(n)
        return f"noted {n}"

    return [note, *(_look_up(f"look_up_{n}") for n in range(number - 1))]


def _look_up(name: str) -> ToolFunction:
    async def look_up(query: str, limit: int = 10, exact: bool = False) -> str:
        """Look up records in the company store and return them as text.

        Args:
            query: The search terms.
            limit: Maximum number of records.
            exact: Whether to match exactly.
        """
        return f"{limit} of {query}, {exact}"

    look_up.__name__ = look_up.__qualname__ = name
    return look_up


def blocking(function: ToolFunction) -> Callable[..., str]:
    """Return a tool as a function that is described alike. It waits for nothing, so its coroutine ends at once."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> str:
        try:
            function(*arguments, **named).send(None)  # type: ignore[attr-defined]
        except StopIteration as end:
            return str(end.value)
        raise RuntimeError(f"{function.__name__} has waited")

    del call.__wrapped__  # a framework may read the source, which must not be a coroutine's
    call.__annotations__ = get_type_hints(function)
    call.__signature__ = signature(function)  # type: ignore[attr-defined]
    return call


def earlier_messages(number: int) -> History:
    """Return a conversation of `number` messages of about 200 characters."""
    return [(("user", "assistant")[n % 2], f"{n}: {_WORDS}") for n in range(number)]


class DurablePeer(Protocol):
    """What the module of a peer with checkpoints also defines."""

    DURABLE_TITLE: str

    def durable(
        self, database: str, tool: ToolFunction, asked: Callable[[], object]
    ) -> AbstractAsyncContextManager[Durable]:
        """Create an agent whose scripted model calls the tool `DURABLE_STEPS` times, and reports each of its calls.

        Every model call and every tool call is a step with a checkpoint. `database` is the URL of SQLite or PostgreSQL.
        """
