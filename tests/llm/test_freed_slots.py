"""A call that is given up frees its slot of a real llama.cpp server long before its answer would have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import httpx2
import pytest

from framework import Runtime
from tests.support.llama_cpp import LlamaCpp, is_installed
from tests.support.projects import agent, write

if not is_installed():
    pytest.skip("no llama.cpp: `make test` installs it where it finds the package index", allow_module_level=True)

ENDLESS = "go <endless>"
"""A message whose answer the model does not end."""
MAX_TOKENS = 8000
SHARE = 0.25
"""Of the time that a whole answer takes; a slot must be free sooner."""
GiveUp = Callable[[Runtime, "Slots"], Awaitable[object]]


class Slots:
    """The slots of a server, as it reports them."""

    def __init__(self, address: str, http: httpx2.AsyncClient) -> None:
        self._url, self._http = f"{address}/slots", http

    async def busy(self) -> bool:
        slots = (await self._http.get(self._url)).json()
        return any(slot["is_processing"] for slot in slots)

    async def wait(self, *, busy: bool) -> float:
        """Wait until a slot is busy, or none is; return the seconds."""
        started = perf_counter()
        async with asyncio.timeout(50):
            while await self.busy() is not busy:
                pass
        return perf_counter() - started


@pytest.fixture(scope="module")
def whole_answer(llama_cpp: LlamaCpp) -> float:
    """Seconds that a long answer takes which nobody cuts."""
    body = {"messages": [{"role": "user", "content": ENDLESS}], "max_tokens": MAX_TOKENS}
    started = perf_counter()
    reply = httpx2.post(f"{llama_cpp.url}/chat/completions", json=body, timeout=50).json()
    assert reply["usage"]["completion_tokens"] == MAX_TOKENS
    return perf_counter() - started


@asynccontextmanager
async def opened(root: Path, server: LlamaCpp, **keys: str) -> AsyncIterator[tuple[Runtime, Slots]]:
    alias = f"{{model: openai/tiny, base_url: '{server.url}', api_key: k, capabilities: {{json_schema: true}}}}"
    settings = f"models: {{local: {alias}}}\nmodel_calls: {{max_retries: 0}}\n"
    options = {
        "skill_policy": "{allow: []}",
        "model_settings": f"{{max_tokens: {MAX_TOKENS}}}",
        **keys,
    }
    files = {"agents.d/one.yaml": agent("one", model="local", **options), "agentsd.yaml": settings}
    async with Runtime.open(write(root, files), watch=False) as runtime, httpx2.AsyncClient(timeout=50) as http:
        yield runtime, Slots(server.address, http)


async def cancel_run(runtime: Runtime, slots: Slots) -> None:
    task = asyncio.create_task(runtime.run(ENDLESS))
    await slots.wait(busy=True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_stream(runtime: Runtime, slots: Slots) -> None:
    async with runtime.stream(ENDLESS):
        await slots.wait(busy=True)


async def time_out(runtime: Runtime, _slots: Slots) -> None:
    result = await runtime.run(ENDLESS)
    assert result.status != "completed"


async def abandon_next_event(runtime: Runtime, slots: Slots) -> None:
    """Cancel a task that reads a stream."""

    async def read() -> None:
        async with runtime.stream(ENDLESS) as stream:
            async for _ in stream:
                pass

    task = asyncio.create_task(read())
    await slots.wait(busy=True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


MODES: dict[str, tuple[GiveUp, dict[str, str]]] = {
    "cancelled run": (cancel_run, {}),
    "stream left": (leave_stream, {}),
    "cancelled reader of a stream": (abandon_next_event, {}),
    "first_token_timeout": (time_out, {"runtime_policy": "{first_token_timeout: 1ms}"}),
    "model_timeout": (time_out, {"runtime_policy": "{model_timeout: 1ms}"}),
    "plan": (cancel_run, {"executor": "plan"}),
    "protocol json": (cancel_run, {"protocol": "json"}),
    "timeout of the run": (time_out, {"runtime_policy": "{timeout: 200ms}"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_given_up_frees_its_slot(
    mode: str, llama_cpp: LlamaCpp, whole_answer: float, tmp_path: Path
) -> None:
    give_up, keys = MODES[mode]

    async def main() -> float:
        async with opened(tmp_path, llama_cpp, **keys) as (runtime, slots):
            await give_up(runtime, slots)
            return await slots.wait(busy=False)

    freed = whole_answer
    for _ in range(3):  # the machine may pause once
        freed = min(freed, asyncio.run(main()))
        if freed < SHARE * whole_answer:
            break

    assert freed < SHARE * whole_answer, f"free after {freed:.3f} s; a whole answer takes {whole_answer:.3f} s"
