"""A conversation that is handed over: another agent answers, with no more rights until the user's next message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Decision, RunResult, Runtime, Tool
from framework.config.agents.compile import Agent
from framework.engine.context.policy import Policy
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.events import Event, HandedOff, ToolFinished
from tests.support.cases import cases
from tests.support.policy_rules import ORDER, ORDERS, RULES, TOOLS, Rules
from tests.support.projects import agent, write
from tests.support.serving import serving

FRONT = agent("front", handoffs="[billing, refunds]", skill_policy="{allow: [orders.look]}")
BILLING = agent("billing", handoffs="[front, refunds]", skill_policy="{allow: ['orders.*', bank.pay]}")
REFUNDS = agent("refunds", handoffs="[front, sales]", skill_policy="{allow: ['orders.*']}")
SALES = agent("sales", handoffs="[audit]")
AUDIT = agent("audit")


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def project(root: Path, **files: str) -> Path:
    texts = {"front": FRONT, "billing": BILLING, "refunds": REFUNDS, "sales": SALES, "audit": AUDIT} | files
    return write(root, {f"agents.d/{name}.yaml": text for name, text in texts.items()})


class Desk:
    """A runtime whose models answer by script; keeps which tools each request of an agent offered."""

    def __init__(self, runtime: Runtime, requests: list[ModelRequest]) -> None:
        self.runtime, self.requests = runtime, requests
        self.events: list[Event] = []
        """Events of the last message."""

    async def say(self, text: str, **options: Any) -> RunResult:
        async with self.runtime.stream(text, **{"agent": "front", "conversation": "c", **options}) as stream:
            self.events = [event async for event in stream]
            return await stream.result()

    @property
    def offered(self) -> list[tuple[str, set[str]]]:
        """The agent of each request, with the tools that it was offered."""
        return [
            (r.messages[0].content.split("You are ")[1].split(".")[0], {t.name for t in r.tools}) for r in self.requests
        ]


@asynccontextmanager
async def desk(root: Path, *turns: Turn, tools: Sequence[Tool] = ORDERS, **options: Any) -> AsyncIterator[Desk]:
    requests: list[ModelRequest] = []
    left = list(turns)

    def script(request: ModelRequest) -> Turn:
        requests.append(request)
        return left.pop(0)

    models = {"scripted": ScriptedModel(script=script)}
    async with Runtime.open(root, tools=tools, models=models, watch=False, **options) as runtime:
        yield Desk(runtime, requests)


def results_of(result: RunResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


@in_a_loop
async def test_the_conversation_goes_on_with_the_other_agent(tmp_path: Path) -> None:
    hand_over = calls(("handoff.billing", {"reason": "It is about money."}))
    turns = (hand_over, "Billing here.", calls(("bank.pay", {"order": "7"})), "Paid.", "I am back.")
    async with desk(project(tmp_path), *turns) as one:
        first = await one.say("I want to pay.")
        moves = [(event.origin, event.agent) for event in one.events if isinstance(event, HandedOff)]
        second = await one.say("Order 7.")
        stored = await one.runtime.store.conversation("c", None, None)
        back = await one.say("Thanks.", reroute=True)

    assert (first.status, first.agent, first.output) == ("completed", "billing", "Billing here.")
    assert moves == [("front", "billing")]
    assert "Its reason: It is about money." in results_of(first)[0]
    assert (second.agent, second.tool_stats["bank.pay"].count) == ("billing", 1)
    assert (stored.agent, stored.handed_to) == ("front", "billing")
    assert back.agent == "front", "the caller can choose again"
    assert (
        one.offered
        == [
            ("front", {"orders.look", "handoff.billing", "handoff.refunds"}),
            ("billing", {"orders.look", "handoff.front", "handoff.refunds"}),  # until the next message: what both have
            ("billing", {*(tool.name for tool in ORDERS[:2]), "bank.pay", "handoff.front", "handoff.refunds"}),
            ("billing", {*(tool.name for tool in ORDERS[:2]), "bank.pay", "handoff.front", "handoff.refunds"}),
            ("front", {"orders.look", "handoff.billing", "handoff.refunds"}),
        ]
    )


@in_a_loop
async def test_a_tool_of_the_second_agent_alone_is_denied_until_the_next_message(tmp_path: Path) -> None:
    async with desk(project(tmp_path), calls(("handoff.billing", {})), calls(("bank.pay", {})), "No.") as one:
        result = await one.say("Pay!")

    assert "not among the tools of front, which handed the conversation over" in results_of(result)[1]
    assert result.tool_stats["bank.pay"].count == 1
    assert [call.status for call in result.tool_calls] == ["success", "denied"]


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([calls(("handoff.billing", {}), ("orders.look", {})), "ok"], "must be the only call of its turn"),
        ([calls(("handoff.billing", {}), ("handoff.refunds", {})), "ok"], "must be the only call of its turn"),
        ([calls(("handoff.billing", {})), calls(("handoff.front", {})), "ok"], "'front' has worked on this message"),
        (
            [calls((f"handoff.{name}", {})) for name in ("billing", "refunds", "sales", "audit")] + ["ok"],
            "handed over 3 times, the maximum",
        ),
    ],
)
@in_a_loop
async def test_what_is_no_single_step_forward_is_refused(tmp_path: Path, turns: list[Turn], why: str) -> None:
    async with desk(project(tmp_path), *turns) as one:
        result = await one.say("go")

    refused = [text for text in results_of(result) if why in text]
    assert refused
    assert result.output == "ok"
    others = [call for call in result.tool_calls if call.tool == "orders.look"]
    assert all(call.status == "success" for call in others), "a call beside it keeps its result"


@in_a_loop
async def test_budgets_continue_and_the_lower_limit_applies(tmp_path: Path) -> None:
    frugal = BILLING + "runtime_policy: {max_steps: 3, max_tool_calls: 9}\n"
    look = [calls(("orders.look", {"order": str(n)})) for n in range(9)]
    front = FRONT + "runtime_policy: {max_steps: 9, max_tool_calls: 2}\n"
    async with desk(project(tmp_path, front=front, billing=frugal), calls(("handoff.billing", {})), *look) as one:
        result = await one.say("go")

    assert result.stopped_by is not None
    assert (result.stopped_by.limit, result.steps) == ("max_tool_calls", 3)


@in_a_loop
async def test_calls_beyond_the_number_of_the_first_agent_are_denied(tmp_path: Path) -> None:
    front = FRONT.replace("{allow:", "{deny: [{tool: orders.look, at_most: 1/month}], allow:")
    look = [calls(("orders.look", {"order": str(n)})) for n in range(2)]
    async with desk(project(tmp_path, front=front), calls(("handoff.billing", {})), *look, "ok") as one:
        result = await one.say("go")

    assert [call.status for call in result.tool_calls] == ["success", "success", "denied"]


@in_a_loop
async def test_a_person_can_be_asked_first_and_decides_elsewhere(tmp_path: Path) -> None:
    asking = FRONT.replace("{allow:", "{ask: ['handoff.*'], allow:")
    url = f"sqlite:///{tmp_path}/runs.db"
    store = await Store.open(url, tmp_path)
    async with desk(project(tmp_path, front=asking), calls(("handoff.billing", {})), store=store) as one:
        paused = await one.say("go", user="u", tenant="t")
        (asked,) = paused.pending
        assert asked.tool == "handoff.billing"
    async with desk(tmp_path, "Billing here.", store=store) as two:
        decisions: Mapping[str, Decision] = {asked.id: Approve()}
        result = await two.runtime.resume(paused.run_id, decisions, user="u", tenant="t")
        state = await store.load_run(paused.run_id)

    assert (result.agent, result.output) == ("billing", "Billing here.")
    assert (state.agent, state.user, state.tenant, state.handled_by) == ("front", "u", "t", ["front", "billing"])
    await store.close()


@in_a_loop
async def test_a_run_that_ends_between_handoff_and_answer_is_answered_once(tmp_path: Path) -> None:
    """The runtime closes after each event in turn; another one continues the run."""
    stops = 0
    for at in range(1, 12):
        root = project(tmp_path / str(at))
        store = await Store.open(f"sqlite:///{root}/runs.db", root)
        requests: list[str] = []

        def script(request: ModelRequest, seen: list[str] = requests) -> Turn:
            name = request.messages[0].content.split("You are ")[1].split(".")[0]
            seen.append(name)
            return calls(("handoff.billing", {})) if name == "front" else "Billing here."

        models, seen = {"scripted": ScriptedModel(script=script)}, 0
        options: dict[str, Any] = {"tools": ORDERS, "models": models, "store": store, "watch": False}
        async with Runtime.open(root, **options) as runtime:
            run_id = (await runtime.submit("go", agent="front", conversation="c")).run_id
            async for _ in runtime.follow(run_id):
                seen += 1
                if seen == at:
                    break
        stops += (await store.load_run(run_id)).status == "running"
        async with Runtime.open(root, **options) as runtime:
            await runtime.sweep()
            async for _ in runtime.follow(run_id):
                pass
        state, events = await store.load_run(run_id), await store.events(run_id)
        assert (state.status, state.output, state.handled_by) == ("completed", "Billing here.", ["front", "billing"])
        assert [event["event"] for event in events].count("handoff") == 1, at
        assert [event["event"] for event in events].count("tool_result") == 1, at
        assert requests.count("billing") in (1, 2)
        await store.close()
    assert stops >= 3


@cases(25)
@given(first=RULES, second=RULES, live=RULES, tools=TOOLS, order=ORDER, names=st.data())
def test_a_handoff_never_gains_a_tool(
    first: Rules, second: Rules, live: Rules, tools: list[Tool], order: str, names: st.DataObject
) -> None:
    def front(rules: Rules) -> Agent:
        own = rules.agent(tools)
        return replace(own, spec=own.spec.model_copy(update={"name": "front", "handoffs": ("clerk",)}))

    before, after = front(first), second.agent(tools)
    now = {"front": names.draw(st.sampled_from([before, front(live)])), "clerk": after}
    strictness = ("allow", "ask", "deny").index
    for candidate in tools:
        alone = [Policy(one, now.get).evaluate(candidate, {"order": order}).kind for one in (before, after)]
        both = Policy(after, now.get, (), (before,))
        assert both.evaluate(candidate, {"order": order}).kind == max(alone, key=strictness)
        if not both.may_allow(candidate):
            assert both.evaluate(candidate, {"order": order}).kind == "deny"


@in_a_loop
async def test_hooks_of_the_first_agent_still_apply(tmp_path: Path) -> None:
    plugin = """
        from agentsd import Refused, ToolContext, hook

        @hook
        async def masked(context: ToolContext, output: str) -> str:
            return output.replace("4111", "****")

        @hook
        async def admits(context: ToolContext, message: str) -> None:
            if "secret" in message:
                raise Refused("billing takes no secrets")
    """
    files = {
        "front": FRONT + "hooks: {after_run: guard.masked}\n",
        "billing": BILLING + "hooks: {before_run: guard.admits}\n",
    }
    root = write(project(tmp_path, **files), {"plugins/guard.py": plugin})
    turns = (calls(("handoff.billing", {})), "Card 4111.", calls(("handoff.billing", {})))
    async with desk(root, *turns) as one:
        masked = await one.say("hello")
        refused = await one.say("a secret", conversation="d")

    assert masked.output == "Card ****."
    assert (refused.status, refused.output) == ("stopped", "billing takes no secrets")


@in_a_loop
async def test_inputs_that_the_other_agent_needs_come_along(tmp_path: Path) -> None:
    front = FRONT + "inputs: {customer: {type: string, required: true}, mood: {type: string, default: calm}}\n"
    prompt = {"instructions": "{template: b.j2}", "inputs": "{customer: {required: true}, desk: {default: '4'}}"}
    billing = agent("billing", **prompt)
    root = write(
        project(tmp_path, front=front, billing=billing), {"prompts/b.j2": "You are billing. {{customer}} {{desk}}"}
    )
    async with desk(root, calls(("handoff.billing", {})), "one", "two") as one:
        await one.say("go", inputs={"customer": "Ada"})
        await one.say("on", inputs={"customer": "Bob", "mood": "angry"})

    assert "Ada 4" in one.requests[1].messages[0].content
    assert "Bob 4" in one.requests[2].messages[0].content


@in_a_loop
async def test_an_edit_that_removes_the_handoff_takes_the_conversation_back(tmp_path: Path) -> None:
    root = project(tmp_path)
    async with desk(root, calls(("handoff.billing", {})), "Billing.", "Front.") as one:
        await one.say("go")
        write(
            root, {"agents.d/front.yaml": FRONT.replace("[billing, refunds]", "[refunds]").replace("refunds", "sales")}
        )
        await one.runtime.catalog.reload()
        back = await one.say("again")

    assert back.agent == "front"


@in_a_loop
async def test_a_sub_agent_cannot_move_the_conversation(tmp_path: Path) -> None:
    root = project(tmp_path, boss=agent("boss", sub_agents="[front]"))
    turns = (calls(("agent.front", {"message": "help"})), calls(("handoff.billing", {})), "no", "done")
    async with desk(root, *turns) as one:
        result = await one.say("go", agent="boss")

    assert one.offered[1] == ("front", {"orders.look"})
    assert (result.agent, result.output) == ("boss", "done")
    tried = [e for e in one.events if isinstance(e, ToolFinished) and e.path]
    assert [(e.tool, e.status) for e in tried] == [("handoff.billing", "error")]


@in_a_loop
async def test_settings_of_the_caller_stay_and_those_of_the_files_change(tmp_path: Path) -> None:
    def settings(**keys: float) -> dict[str, str]:
        return {"model_settings": str(keys).replace("'", ""), "handoffs": "[billing, refunds]"}

    files = {
        "front": agent("front", **settings(temperature=0.1, top_p=0.2)),
        "billing": agent("billing", **settings(temperature=0.3)).replace("[billing, refunds]", "[refunds]"),
        "refunds": agent("refunds", inputs="{desk: {default: '4'}}", model_settings="{top_p: 0.9}"),
    }
    turns = (calls(("handoff.billing", {})), calls(("handoff.refunds", {})), "done")
    async with desk(project(tmp_path, **files), *turns) as one:
        await one.say("go", model_settings={"seed": 7})

    found = [(r.settings.temperature, r.settings.top_p, r.settings.seed) for r in one.requests]
    assert found == [(0.1, 0.2, 7), (0.3, None, 7), (None, 0.9, 7)]


@in_a_loop
async def test_clients_that_name_the_first_agent_continue_with_the_second(tmp_path: Path) -> None:
    turns: list[Turn] = [calls(("handoff.billing", {})), "Billing here.", "Still billing."]
    options: dict[str, Any] = {"tools": ORDERS, "models": {"scripted": ScriptedModel(*turns * 4)}}
    async with serving(project(tmp_path), **options) as server, httpx.AsyncClient(base_url=server.url) as client:
        said: dict[str, list[str]] = {"chat": [], "responses": [], "agui": [], "agent": []}
        previous: dict[str, str] = {}
        for text in ("go", "on"):
            chat = {"model": "front", "messages": [{"role": "user", "content": text}]}
            answer = await client.post("/v1/chat/completions", json=chat, headers={"X-Conversation-Id": "chat"})
            said["chat"].append(answer.json()["choices"][0]["message"]["content"])
        for text in ("go", "on"):
            answer = await client.post(
                "/v1/responses", json={"model": "front", "input": text, "store": True, **previous}
            )
            assert answer.status_code == 200, answer.text
            previous = {"previous_response_id": answer.json()["id"]}
            said["responses"].append(answer.json()["output"][-1]["content"][0]["text"])
        for text in ("go", "on"):
            thread = {"threadId": "agui", "runId": text, "state": {}, "tools": [], "context": [], "forwardedProps": {}}
            body = {**thread, "messages": [{"id": text, "role": "user", "content": text}]}
            answer = await client.post("/agui/front", json=body)
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
            said["agui"].append("".join(e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT"))
            moved = [e["value"]["agent"] for e in events if e.get("name") == "agentsd.handoff"]
            assert moved == (["billing"] if text == "go" else [])
        for text in ("go", "on"):
            body = {"message": text, "agent": "front", "conversation_id": "agent"}
            run = (await client.post("/agent/chat", json=body)).json()["run_id"]
            await client.get(f"/agent/runs/{run}/events")
            said["agent"].append((await client.get(f"/agent/runs/{run}")).json()["output"])
        stored = (await client.get("/agent/conversations/agent")).json()

    assert said == {name: ["Billing here.", "Still billing."] for name in said}
    assert (stored["agent"], stored["handed_to"]) == ("front", "billing")


@in_a_loop
async def test_the_other_agent_does_not_get_what_the_first_one_has_found(tmp_path: Path) -> None:
    policy = "{allow: [orders.look, orders.refund], defer: [orders.refund]}"
    found = calls(("tool_search", {"words": "refund"}), prefix="s")
    files = {
        name: agent(name, handoffs=f"[{other}]", skill_policy=policy)
        for name, other in (("front", "billing"), ("billing", "front"))
    }
    async with desk(project(tmp_path, **files), found, calls(("handoff.billing", {"reason": "money"})), "Hi.") as one:
        await one.say("I want a refund.")
    before, after = one.requests[1:]
    assert before.found == {"s1": ["orders.refund"]}
    assert "orders.refund" in {tool.name for tool in before.tools}
    assert after.found == {}
    assert "orders.refund" not in {tool.name for tool in after.tools}
