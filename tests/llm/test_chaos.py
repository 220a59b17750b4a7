"""Complete runs on servers that often fail, in every way: they succeed, and no incomplete call is executed."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from framework import RunResult, Runtime, Tool, events, tool
from tests.support import wire
from tests.support.cases import FACTOR
from tests.support.projects import agent, write
from tests.support.wire import Answer, calls, failed, piece, raw, says, wire_server

RUNS = min(200, 20 * FACTOR)
STEPS = 10
FAULTS = 0.3
POISON = -1
"""The argument of calls that are always incomplete; it must never reach a tool."""
UNPROVEN = "truncated_stream_accepted"
"""Findings of llmock that are not errors: it mistakes a quick retry, or one with another model, for a new call."""
RULES = "backoff: 1ms, max_backoff: 5ms, cooldown: 5ms"


class Counted:
    """A tool that counts its calls by run and number."""

    def __init__(self) -> None:
        self.made: Counter[int] = Counter()

    def tool(self) -> Tool:
        @tool(risk="low")
        async def count(n: int) -> str:
            """Count."""
            self.made[n] += 1
            return f"counted {n}"

        return count


def faulty(chance: random.Random, *, stream: bool) -> Answer:
    """Return one kind of provider failure; a call in it must not be executed."""
    poison = {"name": "count", "arguments": json.dumps({"n": POISON})}
    begun = piece(tool_calls=[{"index": 0, "id": "x", "type": "function", "function": poison}])
    ways = [
        failed(429, "slow down", retry_after="0.001"),
        failed(429, "slow down"),
        failed(500, "oops"),
        raw(502, b"<html>bad gateway</html>", "text/html"),
        raw(200, b"<html>please log in</html>", "text/html"),
        raw(200, b'{"id": "x", "choices": [{"message": {"tool_ca'),
    ]
    if stream:
        ways += [
            wire.events(begun, ending="cut"),
            wire.events(begun, ending="clean"),
            wire.events(piece(content="I will"), begun, ending="cut"),
            wire.events(begun, '{"id": "x", "cho', piece("tool_calls")),
            wire.events(begun, {"error": {"message": "overloaded", "code": "server_error"}}),
            wire.events(piece(content="half an "), ending="clean"),
        ]
    return chance.choice(ways)


class Provider:
    """A provider that answers a run's ten turns, depending on the conversation, or fails."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.faults = 0

    def answer(self, body: dict[str, Any]) -> Answer:
        if self._chance.random() < FAULTS:
            self.faults += 1
            return faulty(self._chance, stream=bool(body.get("stream")))
        asked = int(body["messages"][1]["content"])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return says(f"end of {asked}") if turn == STEPS - 1 else calls(("count", {"n": asked * STEPS + turn}))


def project(root: Path, url: str, rules: str = RULES, **keys: str) -> Path:
    aliases = [f"{name}: {{model: openai/{name}, base_url: '{url}', api_key: k}}" for name in ("first", "second")]
    text = agent("one", model="first", **keys)
    settings = f"models: {{{', '.join(aliases)}}}\nmodel_calls: {{{rules}}}\n"
    return write(root, {"agents.d/one.yaml": text, "agentsd.yaml": settings})


async def streamed(runtime: Runtime, message: str, **options: Any) -> tuple[RunResult, str]:
    """Return a run's result, and its answer as a stream shows it, without void messages."""
    shown: dict[str, str] = {}
    async with runtime.stream(message, **options) as stream:
        async for event in stream:
            if isinstance(event, events.ContentReceived):
                shown[event.message_id] = shown.get(event.message_id, "") + event.text
            elif isinstance(event, events.Warned) and event.message_id:
                shown.pop(event.message_id, None)
        result = await stream.result()
    return result, "".join(shown.values())


def test_runs_of_ten_steps_complete_on_a_provider_that_fails_three_of_ten_calls(tmp_path: Path) -> None:
    counted, provider = Counted(), Provider(seed=4711)

    async def main() -> list[tuple[RunResult, str | None]]:
        done: list[tuple[RunResult, str | None]] = []
        async with wire_server(provider.answer) as server:
            root = project(tmp_path, server.url, fallback_models="[second]")
            async with Runtime.open(root, tools=[counted.tool()], watch=False) as runtime:
                for number in range(RUNS):
                    if number % 2:
                        done.append((await runtime.run(str(number)), None))
                    else:
                        done.append(await streamed(runtime, str(number)))
        return done

    done = asyncio.run(main())

    completed = [number for number, (result, _) in enumerate(done) if result.status == "completed"]
    assert len(completed) >= 0.99 * RUNS, [result.error for result, _ in done if result.error]
    assert provider.faults > RUNS, "the provider did fail"
    assert all(done[number][0].output == f"end of {number}" for number in completed)
    assert all(done[number][1] in (None, f"end of {number}") for number in completed), "what was shown is the answer"
    assert all(done[number][0].steps == STEPS for number in completed)
    assert POISON not in counted.made, "a call that came in half is never made"
    assert set(counted.made.values()) == {1}, "no call was made twice"
    assert {number * STEPS + turn for number in completed for turn in range(STEPS - 1)} <= counted.made.keys()


# --- a third-party provider


def llmock() -> str | None:
    """Path of the program: the one `make test` installs, or one on PATH."""
    return shutil.which("llmock", path=str(Path(sys.prefix) / "llmock/bin")) or shutil.which("llmock")


@asynccontextmanager
async def llmock_server(*options: str) -> AsyncIterator[str]:
    """URL of a running llmock server, without `/v1`."""
    program = llmock()
    assert program is not None
    asked = (program, "serve", "--port", "0", "--log-level", "info", *options)
    process = await asyncio.create_subprocess_exec(*asked, stdout=DEVNULL, stderr=PIPE)
    assert process.stderr is not None
    url = None
    try:
        async with asyncio.timeout(60):
            while url is None:
                line = (await process.stderr.readline()).decode()
                assert line, "llmock ended before it served"
                url = re.search(r"running on (http://[\d.:]+)", line)
        drained = asyncio.create_task(process.stderr.read())
        yield url[1]
        process.terminate()
        await drained
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.skipif(llmock() is None, reason="no llmock: `make test` fetches it where it finds the package index")
def test_conversations_of_ten_steps_complete_on_llmock_without_protocol_errors(tmp_path: Path) -> None:
    counted = Counted()
    # Few 429s: each requests a wait of one second, which the client observes.
    faults = ["--error-rate-429", "0.03", "--error-rate-500", "0.06", "--error-rate-503", "0.06"]
    faults += [f"--stream-fault={kind}=0.05" for kind in ("truncate", "malformed", "disconnect")]

    async def main() -> tuple[list[RunResult], set[str]]:
        async with llmock_server(*faults) as url:
            # No fallback: it would be called immediately, and llmock mistakes it for the model that requested a wait.
            root = project(tmp_path, f"{url}/v1", f"{RULES}, max_retries: 20", skill_policy="{allow: [count]}")
            async with Runtime.open(root, tools=[counted.tool()], watch=False) as runtime:
                results = [
                    (await streamed(runtime, "count on", conversation=f"c{number}"))[0]
                    for number in range(RUNS // 4)
                    for _ in range(STEPS // 2)
                ]
            report = await asyncio.create_subprocess_exec(llmock() or "", "report", "--url", url, "--json", stdout=PIPE)
            said, _ = await report.communicate()
            findings = json.loads(said)["findings"]
            return results, {finding["code"] for finding in findings if finding["severity"] == "error"}

    results, complaints = asyncio.run(main())

    completed = [result for result in results if result.status == "completed"]
    errors = [result.error for result in results if result.error]
    assert len(completed) >= 0.8 * len(results), errors
    assert all(error.retryable for error in errors), "only answers that were cut twice: there is no fallback"
    assert all(result.steps == 2 for result in completed)
    assert counted.made.total() == sum(len(result.tool_calls) for result in results) >= len(completed)
    assert not complaints - {UNPROVEN}
