"""Logins at tool servers with a browser, through the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2

from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.logins import account_at
from framework.tools.mcp.login import BegunLogin, Login
from tests.support.api_keys import key_entry
from tests.support.mcp_oauth import Accounts, browse, guarded_server
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving
from tests.support.submitted_runs import PATIENCE

ANN, BOB, OPS = "ann-key-0123456789", "bob-key-0123456789", "ops-key-0123456789"
ENTRIES = [
    key_entry("ann", ANN, tenant="t", user="ann", roles=["chat", "read"]),
    key_entry("bob", BOB, tenant="t", user="bob", roles=["chat", "read"]),
    key_entry("ops", OPS, roles=["chat", "admin"]),
]


def script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    return calls(("mcp.air.whoami", {})) if last.role == "user" else f"answer: {last.content}"


def project(root: Path, url: str, per: str) -> Path:
    server = f"version: 1\nmcp_servers:\n  air: {{url: '{url}', auth: {{oauth: {{per: {per}}}}}}}\n"
    keys = {"agentsd.yaml": f"server: {{api_keys: {ENTRIES}}}\n"}
    return write(root, {"plugins/servers.yaml": server, "agents.d/a.yaml": agent("a"), **keys})


def client(server: Serving, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE)


async def begin(http: httpx2.AsyncClient) -> dict[str, Any]:
    response = await http.post("/agent/logins/air")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def come_back(http: httpx2.AsyncClient, begun: dict[str, Any], **changes: str) -> httpx2.Response:
    """Log in at the address, and return to the server with the cookies of this client."""
    back = await browse(begun["url"])
    return await http.get(f"/oauth/callback?{urlencode({**back, **changes})}")


async def ended(http: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    async with http.stream("GET", f"/agent/runs/{run_id}/events", params={"wait": True}) as events:
        await events.aread()
    found: dict[str, Any] = (await http.get(f"/agent/runs/{run_id}")).json()
    return found


def test_a_run_continues_when_its_user_has_logged_in(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts(subject="operator")
        async with guarded_server(accounts) as url:
            root = project(tmp_path, url, "user")
            model = ScriptedModel(script=script)
            async with serving(root, models={"scripted": model}, single_user=False) as server:
                await list_tools(server)
                async with client(server, ANN) as ann, client(server, BOB) as bob:
                    runs = {}
                    for name, http in (("ann", ann), ("bob", bob)):
                        asked = (await http.post("/agent/chat", json={"message": "who?"})).json()
                        (pending,) = asked["pending"]
                        assert (asked["status"], pending["kind"], pending["url"]) == ("paused", "login", url)
                        runs[name] = asked["run_id"]
                    accounts.subject = "ann"
                    begun = await begin(ann)
                    assert (begun["host"], begun["user"], begun["tenant"]) == ("127.0.0.1", "ann", "t")
                    other = await come_back(bob, begun)
                    assert (other.status_code, "not begun in this browser" in other.text) == (400, True)
                    done = await come_back(ann, begun)
                    assert (done.status_code, "Logged in at air for ann of t" in done.text) == (200, True)
                    result = await ended(ann, runs["ann"])
                    assert result["output"] == 'answer: {"result": "ann"}'
                    assert (await bob.get(f"/agent/runs/{runs['bob']}")).json()["status"] == "paused"
                    again = await come_back(ann, begun)
                    assert again.status_code == 400

    asyncio.run(main())


async def list_tools(server: Serving) -> None:
    """Log in as the operator does, and wait for the tools of the server."""
    published = asyncio.Event()
    unsubscribe = server.runtime.catalog.subscribe(lambda _: published.set())
    catalog = server.runtime.catalog
    account, oauth = account_at(catalog.current.external.configs, "air", None, None)
    begun = BegunLogin(Login(catalog.logins, account, oauth), "http://127.0.0.1:8976/callback")
    begun.answer(await browse(await begun.address()))
    await begun.finish(PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while "mcp.air.whoami" not in catalog.current.tools:
            await published.wait()
            published.clear()
    unsubscribe()


def test_the_login_of_all_runs_needs_the_role_admin(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as url:
            root = project(tmp_path, url, "server")
            async with serving(root, models={"scripted": ScriptedModel()}, single_user=False) as server:
                async with client(server, ANN) as ann, client(server, OPS) as ops:
                    refused = await ann.post("/agent/logins/air")
                    assert (refused.status_code, "lacks the role 'admin'" in refused.text) == (403, True)
                    unknown = await ops.post("/agent/logins/fog")
                    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "server")
                    begun = await begin(ops)
                    denied = await come_back(ops, begun, error="access_denied")
                    assert (denied.status_code, "access_denied" in denied.text) == (400, True)
                    done = await come_back(ops, await begin(ops))
                    assert (done.status_code, "Logged in at air." in done.text) == (200, True)
                async with httpx2.AsyncClient(base_url=server.url) as nobody:
                    assert (await nobody.post("/agent/logins/air")).status_code == 401
                    assert (await nobody.get("/oauth/callback?state=x&code=y")).status_code == 400

    asyncio.run(main())
