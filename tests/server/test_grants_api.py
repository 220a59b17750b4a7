"""`/agent/grants`: who sees and ends remembered approvals, and what they would have covered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework import Tool, tool
from framework.llm.client import ScriptedModel, calls
from tests.support.api_keys import key_entry
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate

FINANCE, OTHER, CHAT = "finance-key-0123456789", "other-key-0123456789", "chat-key-0123456789"
ROLES = ("chat", "decide", "read")
REMEMBER = {"width": "arguments", "for": "user", "ttl": "7d", "when": {"amount": "<= 100"}, "at_most": "5/week"}


class Shop(Gate):
    """A tool that needs approval."""

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def refund(order: str, amount: float) -> str:
            """Pay an order back."""
            return f"refunded {amount:g} for {order}"

        return [refund]


def project(root: Path, entries: list[dict[str, Any]]) -> Path:
    desk = agent("a", skill_policy='{allow: ["*"], ask: [refund]}')
    settings = f"server: {{api_keys: {json.dumps(entries)}}}\n"
    return write(root, {"agents.d/a.yaml": desk, "agentsd.yaml": settings})


def entries(roles: Sequence[str] = ROLES) -> list[dict[str, Any]]:
    return [
        key_entry("finance", FINANCE, tenant="acme", roles=roles),
        key_entry("other", OTHER, tenant="rival", roles=ROLES),
        key_entry("chat", CHAT, tenant="acme", roles=["chat"]),
    ]


def refund(amount: float) -> Any:
    return calls(("refund", {"order": "10482", "amount": amount}))


async def ask(client: RunClient, user: str | None = "ann") -> Mapping[str, Any]:
    """Send a message, and return the answer, or what the run waits for."""
    response = await client.http.post("/agent/chat", json={"message": "refund", **({"user": user} if user else {})})
    found: Mapping[str, Any] = response.json()
    return found


async def decide(client: RunClient, run: Mapping[str, Any], decision: Mapping[str, Any], status: int = 202) -> Any:
    path, (asked,) = f"runs/{run['run_id']}", run["pending"]
    found = await client.post(f"{path}/decisions", {"decisions": {asked["id"]: decision}}, status)
    if status == 202:
        await client.events(f"{path}/events", params={"wait": True})
    return found


def test_a_remembered_approval_belongs_to_tenant_user_and_key(tmp_path: Path) -> None:

    async def main() -> None:
        model = ScriptedModel(
            script=lambda request: "done" if request.messages[-1].role == "tool" else refund(next(amounts))
        )
        async with client_of(project(tmp_path, entries()), model, Shop(), key=FINANCE) as client:
            other, chat = RunClient(client.serving, OTHER), RunClient(client.serving, CHAT)
            async with other.http, chat.http:
                first = await ask(client)
                offer = first["pending"][0]["remember"]
                assert ([one["width"] for one in offer["widths"]], offer["scopes"]) == (
                    ["call", "arguments", "tool"],
                    ["run", "conversation", "user"],
                )
                assert (await ask(client, None))["pending"][0]["remember"]["scopes"] == ["run", "conversation"], (
                    "nobody is no user"
                )
                await decide(client, first, {"type": "reject"})
                second = await ask(client)
                preview = {"confirmation_id": second["pending"][0]["id"], "remember": REMEMBER}
                found = await client.post(f"runs/{second['run_id']}/grant-preview", preview)
                assert found == {"days": 30, "calls": 2, "matched": 2, "rejected": 1, "is_complete": True}
                error = await decide(client, second, {"type": "approve", "remember": {"ttl": "31d"}}, 400)
                assert error["error"]["message"].endswith("cannot be remembered for 2678400 s: at most 2592000 s")
                await decide(client, second, {"type": "approve", "remember": REMEMBER})
                (grant,) = (await client.get("grants"))["grants"]
                about = ("tool", "covers", "user", "tenant", "by", "at_most", "state", "uses")
                assert [grant[name] for name in about] == [
                    *("refund", "refund when amount <= 100", "ann", "acme", "finance", "5/week", "active", 0)
                ]
                assert (await ask(client))["status"] == "completed"
                assert (await ask(client, "ben"))["status"] == "paused"
                assert (await ask(other))["status"] == "paused"
                assert (await other.get("grants"))["grants"] == []
                await other.delete(f"grants/{grant['id']}", 404)
                await chat.delete(f"grants/{grant['id']}", 403)
                project(tmp_path, entries([*ROLES, "admin"]))
                await client.serving.runtime.reload()
                assert (await ask(client))["status"] == "paused", "the granter has another role"
                (void,) = (await client.get("grants"))["grants"]
                assert (void["state"], void["reason"]) == ("void", "the key 'finance' has other rights now")
                project(tmp_path, entries())
                await client.serving.runtime.reload()
                assert (await ask(client))["status"] == "paused", "the key has its old roles, but the grant is gone"
                revoked = await client.delete(f"grants/{grant['id']}")
                assert (revoked["state"], revoked["revoked_by"], revoked["uses"]) == ("revoked", "finance", 1)
                assert (await client.get("grants"))["grants"] == []

    amounts = iter([89, 89, 40, 60, 70, 80, 20, 20, 20])
    asyncio.run(main())
