"""Runs and conversations of other tenants, users and agents do not exist for a key, on any route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from framework.llm.client import ScriptedModel, calls
from tests.support.api_keys import key_entry
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate

ALL = ["chat", "decide", "read", "admin"]
KEYS: dict[str, dict[str, Any]] = {
    "acme": {"tenant": "acme", "roles": ALL},
    "acme-ann": {"tenant": "acme", "user": "ann", "roles": ALL},
    "acme-bob": {"tenant": "acme", "user": "bob", "roles": ALL},
    "acme-b": {"tenant": "acme", "agents": ["b"], "roles": ALL},
    "other": {"tenant": "other", "roles": ALL},
    "none": {"roles": ALL},
    "chat": {"tenant": "acme", "roles": ["chat"]},
    "decide": {"tenant": "acme", "roles": ["decide"]},
    "read": {"tenant": "acme", "roles": ["read"]},
}
FULL = "full-access-0123456789"


def secret(name: str) -> str:
    return f"{name}-0123456789abcdef"


def as_key(client: RunClient, name: str) -> None:
    """Send the key with this name from now on."""
    client.http.headers["authorization"] = f"Bearer {FULL if name == 'full' else secret(name)}"


@asynccontextmanager
async def serving_keys(root: Path, gate: Gate, model: ScriptedModel) -> AsyncIterator[RunClient]:
    entries = [*(key_entry(name, secret(name), **rights) for name, rights in KEYS.items()), FULL]
    agents = {
        f"agents.d/{name}.yaml": agent(name, skill_policy='{allow: ["*"], ask: [{tool: pay, optional: true}]}')
        for name in "ab"
    }
    write(root, {**agents, "agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})
    async with client_of(root, model, gate, store=f"sqlite:///{root}/state.db") as client:
        yield client


def requests_about(run_id: str, conversation_id: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and options of every request about a run and its conversation."""
    decisions = {"decisions": {"c1": {"type": "approve"}}}
    yield "GET", f"runs/{run_id}", {}
    yield "GET", f"runs/{run_id}/trace", {}
    yield "GET", f"runs/{run_id}/events", {}
    yield "POST", f"runs/{run_id}/decisions", {"json": decisions}
    yield "POST", f"runs/{run_id}/cancel", {}
    yield "PUT", f"runs/{run_id}/rating", {"json": {"rating": "down", "comment": "not mine"}}
    yield "DELETE", f"runs/{run_id}/rating", {}
    yield "GET", f"conversations/{conversation_id}", {}
    yield "POST", f"conversations/{conversation_id}/fork", {"json": {"before": run_id}}
    yield "DELETE", f"conversations/{conversation_id}", {}


def test_the_runs_and_conversations_of_others_are_404_and_missing_in_lists(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with serving_keys(tmp_path, gate, ScriptedModel(script=lambda _: calls(("pay", {})))) as client:
            as_key(client, "acme-ann")
            run = await client.post("chat", {"message": "go", "agent": "a", "conversation_id": "c"}, 202)
            for stranger in ("acme-bob", "acme-b", "other", "none"):
                as_key(client, stranger)
                for method, path, options in requests_about(run["run_id"], "c"):
                    error = await client.error(method, path, 404, **options)
                    assert error["code"] in ("run_not_found", "conversation_not_found"), (stranger, path)
                    assert error["message"] == (await _unknown(client, method, path, options))["message"].replace(
                        "unknown", "c" if "conversations" in path else run["run_id"]
                    )
                for query in ("", "?q=go"):
                    assert (await client.get(f"runs{query}"))["runs"] == [], stranger
                    assert (await client.get(f"conversations{query}"))["conversations"] == [], stranger
                assert (await client.get("approvals"))["approvals"] == [], stranger
            for owner in ("acme-ann", "acme", "full"):
                as_key(client, owner)
                assert (await client.get(f"runs/{run['run_id']}"))["status"] == "paused", owner
                for query, count in (("", 1), ("?q=GO", 1), (f"?q={run['run_id'][-9:]}", 1), ("?q=gone", 0)):
                    assert len((await client.get(f"runs{query}"))["runs"]) == count, query
                for query, count in (("?q=GO", 1), ("?q=c", 1), ("?q=gone", 0)):
                    assert len((await client.get(f"conversations{query}"))["conversations"]) == count, query
                await client.error("GET", f"conversations?q={'x' * 201}", 400)
                assert len((await client.get("approvals"))["approvals"]) == 1
                assert (await client.get("conversations/c"))["conversation_id"] == "c"
            assert gate.paid == 0
            for stranger in ("acme-bob", "acme-b", "other", "none"):
                as_key(client, stranger)
                await client.post("runs", {"message": "go", "agent": "b", "conversation_id": "c"}, 202)
            as_key(client, "acme-b")  # acts for every user of its tenant: a conversation of another agent is refused
            body = {"message": "go", "agent": "b", "conversation_id": "c", "user": "ann"}
            error = await client.error("POST", "runs", 404, json=body)
            assert error["code"] == "conversation_not_found"

    asyncio.run(main())


async def _unknown(client: RunClient, method: str, path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the error for the same request about an id that nobody uses."""
    resource, _, rest = path.partition("/")
    _, slash, action = rest.partition("/")
    return await client.error(method, f"{resource}/unknown{slash}{action}", 404, **options)


def test_equal_conversation_ids_of_two_tenants_are_two_conversations(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_keys(tmp_path, Gate(), ScriptedModel(script=lambda _: "ok")) as client:
            for name in ("acme", "other"):
                as_key(client, name)
                await client.post("chat", {"message": f"I am {name}", "agent": "a", "conversation_id": "c"})
            for name in ("acme", "other"):
                as_key(client, name)
                found = await client.get("conversations/c")
                assert [m["content"] for m in found["messages"] if m["role"] == "user"] == [f"I am {name}"]
            as_key(client, "full")
            error = await client.error("GET", "conversations/c", 400)
            assert error["param"] == "tenant"
            assert (await client.get("conversations/c?tenant=other"))["tenant"] == "other"
            as_key(client, "acme")
            await client.error("GET", "conversations/c?tenant=other", 404)
            assert (await client.delete("conversations/c"))["runs"] == 1
            as_key(client, "other")
            assert (await client.get("conversations/c"))["turns"] == 1

    asyncio.run(main())


def test_lists_of_a_key_that_is_limited_to_agents_are_filled_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_keys(tmp_path, Gate(), ScriptedModel(script=lambda _: "ok")) as client:
            as_key(client, "acme")
            for number in range(9):
                body = {"message": str(number), "agent": "abb"[number % 3], "conversation_id": f"c{number}"}
                await client.post("chat", body)
            as_key(client, "acme-b")
            seen: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = await client.get("runs", params={"limit": 4, **cursor})
                seen += [run["message"] for run in page["runs"]]
                if page["next"] is None:
                    break
                assert len(page["runs"]) == 4
                cursor = {"before": page["next"]}
            assert seen == ["8", "7", "5", "4", "2", "1"]
            found = (await client.get("conversations"))["conversations"]
            assert [one["conversation_id"] for one in found] == ["c8", "c7", "c5", "c4", "c2", "c1"]

    asyncio.run(main())


def test_who_chats_can_neither_decide_nor_list_nor_delete(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with serving_keys(tmp_path, gate, ScriptedModel(calls(("pay", {})), "thanks")) as client:
            as_key(client, "chat")
            run = await client.post("chat", {"message": "go", "agent": "a", "conversation_id": "c"}, 202)
            decisions = {"decisions": {run["pending"][0]["id"]: {"type": "approve"}}}
            for method, path, options in (
                ("POST", f"runs/{run['run_id']}/decisions", {"json": decisions}),
                ("GET", "approvals", {}),
                ("GET", "runs", {}),
                ("GET", f"runs/{run['run_id']}/trace", {}),
                ("GET", "conversations", {}),
                ("DELETE", "conversations/c", {}),
            ):
                error = await client.error(method, path, 403, **options)
                assert (error["code"], error["type"]) == ("access_denied", "permission_error")
            assert (await client.get(f"runs/{run['run_id']}"))["status"] == "paused"
            as_key(client, "read")
            await client.error("POST", "chat", 403, json={"message": "go"})
            await client.error("POST", f"runs/{run['run_id']}/cancel", 403)
            assert (await client.get("conversations/c"))["open_run"] == run["run_id"]
            as_key(client, "decide")
            await client.post(f"runs/{run['run_id']}/decisions", decisions, 202)
            as_key(client, "chat")
            assert (await client.events(f"runs/{run['run_id']}/events?wait=true"))[-1].data["output"] == "thanks"
            assert gate.paid == 1

    asyncio.run(main())
