"""Addresses for people, in the answers of every protocol: they open the console, also from a page of another site."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from framework import tool
from framework.testing import ScriptedModel, calls
from framework.types.errors import ModelError
from tests.support.loopback import LOOPBACK
from tests.support.mcp_client import http_user, text_of
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving, serving_everything

CLICK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document",
         "referer": "https://chat.example.com/"}  # fmt: skip
MESSAGE = {"model": "one", "messages": [{"role": "user", "content": "send it"}]}
AGUI = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "1", "role": "user", "content": "send it"}]}  # fmt: skip


@tool(risk="medium", name="mail.send")
async def send() -> str:
    """Send mail."""
    return "sent"


async def over_chat(server: Serving, http: httpx2.AsyncClient) -> str:
    answer = (await http.post("/v1/chat/completions", json=MESSAGE)).json()
    return str(answer["choices"][0]["message"]["content"])


async def over_responses(server: Serving, http: httpx2.AsyncClient) -> str:
    answer = (await http.post("/v1/responses", json={"model": "one", "input": "send it"})).json()
    return str(answer["output"][0]["content"][0]["text"])


async def over_agui(server: Serving, http: httpx2.AsyncClient) -> str:
    events = (await http.post("/agui/one", json=AGUI)).text.strip().split("\n\n")
    finished = json.loads(events[-1].removeprefix("data: "))
    return str(finished["outcome"]["interrupts"][0]["metadata"]["agentsd"]["url"])


async def over_mcp(server: Serving, http: httpx2.AsyncClient) -> str:
    async with http_user(server.url, "auto", None, {}) as user:
        return text_of(await user.call("one", "send it"))


Ask = Callable[[Serving, httpx2.AsyncClient], Awaitable[str]]


def serve(root: Path, *script: Any, use: Callable[[Serving, httpx2.AsyncClient], Awaitable[Any]]) -> Any:
    write(root, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["mail.*"], ask: ["mail.*"]}')})

    async def main() -> Any:
        async with (
            serving_everything(root, models={"scripted": ScriptedModel(*script)}, tools=[send]) as server,
            httpx2.AsyncClient(base_url=server.url, **LOOPBACK, timeout=20) as http,
        ):
            return await use(server, http)

    return asyncio.run(main())


@pytest.mark.parametrize("ask", [over_chat, over_responses, over_agui, over_mcp])
def test_a_run_that_waits_names_the_page_of_its_approval(tmp_path: Path, ask: Ask) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> Any:
        text = await ask(server, http)
        (run,) = await server.runs()
        state = await server.runtime.store.load_run(run.run_id)
        page = f"{server.url}/#/approvals/{run.run_id}/{state.pending[0].id}"
        return text, page, await http.get(page, headers=CLICK)

    text, page, clicked = serve(tmp_path, calls(("mail.send", {})), use=use)
    assert page in text
    assert "/agent/runs" not in text
    assert (clicked.status_code, clicked.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_error_of_a_run_names_its_page(tmp_path: Path) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> Any:
        error = (await http.post("/v1/chat/completions", json=MESSAGE)).json()["error"]["message"]
        (run,) = await server.runs()
        return error, f"(run {run.run_id}: {server.url}/#/runs/{run.run_id})"

    error, named = serve(tmp_path, ModelError("the provider is down"), use=use)
    assert error.endswith(named)


def test_an_app_without_the_console_names_its_routes(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["mail.*"], ask: ["mail.*"]}')})

    async def main() -> Any:
        models = {"scripted": ScriptedModel(*[calls(("mail.send", {}))] * 2)}
        async with (
            serving(tmp_path, models=models, tools=[send]) as server,
            httpx2.AsyncClient(base_url=server.url, **LOOPBACK, timeout=20) as http,
        ):
            texts = [await over_chat(server, http), await over_mcp(server, http)]
            return texts, server.url, [run.run_id for run in await server.runs()]

    (chat, mcp), url, runs = asyncio.run(main())
    assert any(f"{url}/agent/runs/{run}\n" in chat for run in runs)
    assert any(f"POST /agent/runs/{run}/decisions" in mcp for run in runs)
