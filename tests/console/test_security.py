"""Text of models, tools, users and files never becomes markup on any page, and keys never reach a URL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from framework import Tool, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message, Reasoning
from tests.support.api_keys import KEY, key_entry
from tests.support.console import open_page, run_in_browser, serve_console, settle
from tests.support.projects import agent

EVIL = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><svg onload='window.hacked = 3'>"
    "<iframe srcdoc='<script>parent.hacked = 4</script>'></iframe></textarea></title><style>body{display:none}</style>"
    "<img src='http://evil.example/a.png'> ![picture](http://evil.example/b.png) [link](javascript:window.hacked=5) "
    "[data](data:text/html,<script>window.hacked=6</script>) <javascript:window.hacked=7> [x](http://evil.example/c) "
    "`` ` ``` [](<> *_** | a | \u202egnp.exe\u202c \u200b\u2066\ufeff\u0000".replace("\u0000", "\u0007")
)
LINE = "<b>" + "x" * 1_000_000
ASKING = '{ask: [{tool: pay, reason: "<script>window.hacked = 8</script>"}], allow: ["*"]}'
QUOTED = json.dumps(EVIL)
FILES = {
    "agents.d/one.yaml": agent("one", description=QUOTED, instructions=QUOTED, skill_policy=ASKING),
    "agents.d/broken.yaml": agent("broken", description=QUOTED, nonsense=QUOTED),
}
MISSING = ("404 .*agents/broken",)
"""An agent whose first version is broken has a page with its problems, but does not exist."""
SCRIPTS = "document.querySelectorAll('script, style, iframe, object, embed, img, base, meta[http-equiv]').length"
_FOUND = f"""() => ({{
    hacked: window.hacked ?? null,
    elements: {SCRIPTS},
    links: [...document.links].map(link => link.getAttribute("href")).filter(to => !/^(#|https?:|mailto:)/.test(to)),
    attributes: [...document.querySelectorAll("*")].flatMap(element => [...element.attributes])
        .map(attribute => attribute.name).filter(name => name.startsWith("on") || name === "srcdoc"),
    characters: document.body.textContent.length,
}})"""


def hostile_tools() -> list[Tool]:
    @tool(risk="low")
    async def pay(to: str) -> str:
        """Pay."""
        return EVIL

    @tool(risk="low")
    async def read(name: str) -> str:
        """Read."""
        return f"{LINE}\n{EVIL}"

    return [pay, read]


def script(request: ModelRequest) -> Turn:
    if any(message.role == "tool" for message in request.messages):
        return Message(role="assistant", content=f"# {EVIL}\n\n{EVIL}", reasoning=Reasoning(text=EVIL))
    name = "pay" if "pay" in request.messages[-1].content else "read"
    argument = {"pay": "to", "read": "name"}[name]
    asked = calls((name, {argument: EVIL}))
    return Message(role="assistant", content=EVIL, reasoning=Reasoning(text=EVIL), tool_calls=asked)


async def check_inert(page: Page) -> None:
    """Fail unless the page consists of its own elements only."""
    found = await page.evaluate(_FOUND)
    assert found["hacked"] is None
    assert found["links"] == []
    assert found["attributes"] == []
    assert found["elements"] <= 1, "main.js"
    assert found["characters"] < 300_000, "long lines are cut"


def paths(runs: Sequence[Any]) -> list[str]:
    """Return the addresses of all pages."""
    of_runs = [
        f"#/runs/{run.run_id}?tab={tab}" for run in runs for tab in ("waterfall", "tree", "events", "messages", "files")
    ]
    chats = [f"#/chat/{run.conversation_id}" for run in runs]
    approvals = [f"#/approvals/{run.run_id}" for run in runs if run.status == "paused"]
    rest = ["#/runs", "#/approvals", "#/agents/one", "#/agents/broken", "#/config", "#/usage", "#/nothing"]
    return [*of_runs, *chats, *approvals, *rest, "#/config/files/agents.d/one.yaml"]


def test_text_never_becomes_markup(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(script=script)
        async with serve_console(tmp_path, FILES, model, tools=hostile_tools()) as server:
            for message in (f"read {EVIL}", f"pay {EVIL}"):
                submitted = await server.runtime.submit(message, agent="one")
                await server.runtime.result(submitted.run_id)
            runs = await server.runtime.store.runs()
            assert [run.status for run in runs] == ["completed", "paused"]
            async with open_page(server, "#/runs", allowed=MISSING) as page:
                for path in paths(runs):
                    await page.goto(f"{server.url}/{path}")
                    await settle(page)
                    await check_inert(page)

    run_in_browser(main())


def test_a_key_is_sent_in_a_header_only(tmp_path: Path) -> None:
    keys = [key_entry("ann", KEY, user="ann", roles=["chat", "read", "decide", "admin"])]
    files = {**FILES, "agentsd.yaml": f"server: {{api_keys: {json.dumps(keys)}}}\n"}

    async def main() -> None:
        model = ScriptedModel(script=script)
        sent: list[tuple[str, str | None]] = []
        async with (
            serve_console(tmp_path, files, model, tools=hostile_tools()) as server,
            open_page(server, "#/runs", key=KEY, allowed=MISSING) as page,
        ):
            page.on("request", lambda request: sent.append((request.url, request.headers.get("authorization"))))
            for path in paths([]):
                await page.goto(f"{server.url}/{path}")
                await settle(page)
            assert {key for url, key in sent if "/agent/" in url} == {f"Bearer {KEY}"}
            assert {key for url, key in sent if "/agent/" not in url} <= {None}

    run_in_browser(main())
