"""`/agent/approvals`: what runs wait for, with what is needed to decide it, and what was decided."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from framework import Tool, tool
from framework.llm.client import ScriptedModel, calls
from tests.support.api_keys import key_entry
from tests.support.plans import draft, tool_step
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate

STORES = pytest.mark.parametrize("store", [None, "sqlite:///{root}/state.db"], ids=["memory", "sqlite"])


class Shop(Gate):
    """A tool with arguments that needs approval."""

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def refund(order: str, amount: float) -> str:
            """Pay an order back.

            Args:
                order: Number of the order.
                amount: Amount in euros.
            """
            return f"refunded {amount:g} for {order}"

        return [refund]


REFUND = calls(("refund", {"order": "10482", "amount": 89.0}))


def project(root: Path, entries: list[dict[str, Any]] | None = None, **keys: str) -> Path:
    policy = '{allow: ["*"], ask: [{tool: refund, reason: money leaves}]}'
    settings = {"agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"} if entries else {}
    return write(root, {"agents.d/a.yaml": agent("a", skill_policy=policy, **keys), **settings})


def store_at(root: Path, store: str | None) -> dict[str, str]:
    return {"store": store.format(root=root)} if store else {}


async def ask(client: RunClient, message: str = "refund", **fields: Any) -> str:
    """Start a run that pauses, and return its id."""
    found = await client.post("chat", {"message": message, **fields}, 202)
    return str(found["run_id"])


async def decide(client: RunClient, run_id: str, **decision: Any) -> None:
    """Decide the only confirmation of a run, and wait until the run has ended."""
    (pending,) = (await client.get(f"runs/{run_id}"))["pending"]
    await client.post(f"runs/{run_id}/decisions", {"decisions": {pending["id"]: decision}}, 202)
    await client.events(f"runs/{run_id}/events", params={"wait": True})


@STORES
def test_waiting_runs_are_counted_beyond_the_page(tmp_path: Path, store: str | None) -> None:
    async def main() -> None:
        model = ScriptedModel(script=lambda _: REFUND)
        async with client_of(project(tmp_path), model, Shop(), **store_at(tmp_path, store)) as client:
            runs = [await ask(client, user=user) for user in ("ann", "ann", "ben")]
            whole = await client.get("approvals")
            assert ([one["run_id"] for one in whole["approvals"]], whole["waiting"]) == (runs[::-1], 3)
            page = await client.get("approvals", params={"limit": 1})
            assert (len(page["approvals"]), page["waiting"], page["next"]) == (1, 3, runs[2])
            last = await client.get("approvals", params={"limit": 2, "before": runs[1]})
            assert ([one["run_id"] for one in last["approvals"]], last["waiting"]) == ([runs[0]], 3)
            of_ann = await client.get("approvals", params={"user": "ann", "limit": 1})
            assert (of_ann["approvals"][0]["user"], of_ann["waiting"]) == ("ann", 2)

    asyncio.run(main())


def test_a_pending_call_has_the_schema_of_its_arguments_until_its_tool_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        store = f"sqlite:///{tmp_path}/state.db"
        async with client_of(project(tmp_path), ScriptedModel(REFUND), Shop(), store=store) as client:
            run_id = await ask(client)
            (entry,) = (await client.get("approvals"))["approvals"]
            shown = await client.get(f"runs/{run_id}")
            assert shown["pending"] == entry["pending"]
            assert shown["paused_at"] == entry["paused_at"] is not None
            assert shown["seq"] == (await client.events(f"runs/{run_id}/events"))[-1].id
            schema = entry["pending"][0]["schemas"]["refund"]
            assert schema["properties"]["amount"] == {"type": "number", "description": "Amount in euros."}
            assert schema["required"] == ["order", "amount"]
        async with client_of(tmp_path, ScriptedModel(), store=store) as client:
            assert (await client.get(f"runs/{run_id}"))["pending"][0]["schemas"] == {}

    asyncio.run(main())


def test_a_pending_plan_has_the_schemas_of_the_tools_that_its_steps_name(tmp_path: Path) -> None:
    plan = draft(
        tool_step("s1", "calculator", expression="1+1"), tool_step("s2", "refund", "s1", order="1", amount=2.0)
    )

    async def main() -> None:
        root = project(tmp_path, executor="plan", plan="{approval: always}")
        answer = plan.model_dump_json(exclude_defaults=True)
        async with client_of(root, ScriptedModel(answer), Shop()) as client:
            await ask(client)
            ((pending,),) = [one["pending"] for one in (await client.get("approvals"))["approvals"]]
            assert (pending["kind"], sorted(pending["schemas"])) == ("plan", ["calculator", "refund"])

    asyncio.run(main())


@STORES
def test_what_was_decided_is_listed_with_who_decided_the_latest_first(tmp_path: Path, store: str | None) -> None:
    async def main() -> None:
        entries = [
            key_entry("web", "web-key-0123456789", roles=["chat", "decide"], user=None),
            key_entry("ben-key", "ben-key-0123456789", roles=["chat", "decide"], user="ben"),
        ]
        model = ScriptedModel(script=lambda request: REFUND if request.messages[-1].role == "user" else "done")
        options = {"key": "web-key-0123456789", **store_at(tmp_path, store)}
        async with client_of(project(tmp_path, entries), model, Shop(), **options) as client:
            first, second = await ask(client, "one", user="ann"), await ask(client, "two", user="ben")
            edited = {"order": "10482", "amount": 74.5}
            await decide(client, first, type="edit", arguments=edited)
            assert (await client.get(f"runs/{second}"))["decisions"] == []
            client.http.headers["authorization"] = "Bearer ben-key-0123456789"
            await decide(client, second, type="reject", reason="not today")
            (own,) = (await client.get("approvals/decided"))["decided"]
            assert (own["run_id"], own["by"], own["decision"]["reason"]) == (second, "ben", "not today")
            client.http.headers["authorization"] = "Bearer web-key-0123456789"
            latest, earlier = (await client.get("approvals/decided"))["decided"]
            assert latest == own
            assert (earlier["by"], earlier["expired"], earlier["message"]) == ("web", False, "one")
            assert earlier["decision"] == {"type": "edit", "arguments": edited}
            assert earlier["confirmation"]["arguments"] == {"order": "10482", "amount": 89.0}
            assert earlier["confirmation"]["rule"].startswith("ask refund (agents.d/a.yaml:")
            for query, runs in (({"limit": 1}, [second]), ({"user": "ann"}, [first]), ({"agent": "b"}, [])):
                found = await client.get("approvals/decided", params=query)
                assert [one["run_id"] for one in found["decided"]] == runs
            (made,) = (await client.get(f"runs/{first}"))["decisions"]
            assert (made["by"], made["at"], made["decision"]) == ("web", earlier["at"], earlier["decision"])

    asyncio.run(main())


@STORES
@pytest.mark.parametrize(("on_expiry", "status"), [("reject", "completed"), ("cancel", "cancelled")])
def test_an_expired_confirmation_was_decided_by_nobody(
    tmp_path: Path, store: str | None, on_expiry: str, status: str
) -> None:
    async def main() -> None:
        policy = f"{{confirm: {{from: never, expires: 50ms, on_expiry: {on_expiry}}}}}"
        root = project(tmp_path, runtime_policy=policy)
        async with client_of(root, ScriptedModel(REFUND, "done"), Shop(), **store_at(tmp_path, store)) as client:
            run_id = await ask(client)
            await client.events(f"runs/{run_id}/events", params={"wait": True})
            (made,) = (await client.get("approvals/decided"))["decided"]
            assert (made["run_id"], made["by"], made["expired"], made["status"]) == (run_id, None, True, status)
            assert made["confirmation"]["expires_at"] <= made["at"]
            assert (await client.get("approvals"))["waiting"] == 0

    asyncio.run(main())
