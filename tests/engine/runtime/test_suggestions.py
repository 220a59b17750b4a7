"""Rules learned from decisions: what is proposed, what is not, and that no rejected call passes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.agents.compile import Agent, compile_agent
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import parse_agent
from framework.engine.runtime.project import Project
from framework.engine.runtime.suggestions import MAX_DECIDED_RUNS, Suggested, suggest
from framework.engine.tool_call.call import explain_call
from framework.store.schema import decisions, packed, runs
from framework.store.store import Store
from framework.store.types import DecidedCall, DecidedCalls, RunQuery
from framework.testing import ScriptedModel, calls
from framework.types.state import Approve, Edit, Reject
from framework.types.text import source_digest
from tests.support.cases import FACTOR, cases
from tests.support.commands import agentsd
from tests.support.projects import write

PLUGIN = '''
from framework import tool

@tool(risk="medium", paths=["path"])
def refund(amount: float, currency: str, path: str, loud: bool = False) -> str:
    """Refund."""
    return f"refunded {amount:g} {currency}"

@tool(risk="medium")
def close(order: str) -> str:
    """Close."""
    return "closed"

@tool(risk="critical")
def wipe(amount: float) -> str:
    """Wipe."""
    return "wiped"
'''
HEAD = "description: Helps customers.\nmodel: offline\ninstructions: Help.\n"
BLOCK = """tools:
  # what everyone may do
  allow: [echo]
  ask:
    # money
    - tool: shop.refund  # carefully
      reason: money leaves the shop
    - {tool: shop.close, when: {order: "x-*"}}
max_risk: high  # never more
approve_from: never
"""
FORMS = {
    "block": BLOCK,
    "flow": """tools: {ask: [shop.refund, {tool: shop.close, when: {order: "x-*"}}], allow: [echo]}
approve_from: never
""",
    "older": """skill_policy:
  ask:
  - {tool: shop.refund, reason: money}
  - tool: shop.close
    when: {order: "x-*"}
  allow:
  - echo
runtime_policy: {confirm: {from: never}, risk_level: high}
""",
    "allowed": """tools:
  ask: [{tool: shop.refund, when: {amount: "> 10"}}, {tool: shop.close, when: {order: "x-*"}}]
  allow: ["*"]
approve_from: never""",
}
PATH = "agents.d/clerk.yaml"


def project(root: Path, rules: str = BLOCK) -> Path:
    return write(root, {PATH: HEAD + rules, "plugins/shop.py": PLUGIN})


def call(decision: str, by: str | None = "ann", tool: str = "shop.refund", **arguments: Any) -> DecidedCall:
    values = {"amount": 5.0, "currency": "EUR", "path": "reports/a.txt"} | arguments
    values = values if tool == "shop.refund" else arguments
    return DecidedCall("clerk", tool, values, decision, by)  # type: ignore[arg-type]


def read(root: Path) -> tuple[Agent, Generation, Path]:
    found = asyncio.run(Project.read(root))
    assert not found.catalog.current.errors
    return found.catalog.current.agents["clerk"], found.catalog.current, found.base_path


def suggested(root: Path, decided: Sequence[DecidedCall], everyone: Sequence[DecidedCall] | None = None) -> Suggested:
    agent, generation, base = read(root)
    others = DecidedCalls(decided if everyone is None else everyone)
    return suggest(agent, generation, DecidedCalls(decided), others, base)


def verdict(agent: Agent, source: bytes, tool: str, arguments: Mapping[str, Any], base: Path) -> str:
    spec, document = parse_agent(PATH, source)
    edited = compile_agent(spec, document, source_digest(source), agent.context)[0]
    return explain_call(edited, edited.toolset.tools[tool], arguments, base)[0].verdict.kind


AMOUNTS = (3.0, 20.0, 7.5, 12.0, 4.0, 4.0)
APPROVED = [call("approve", "abc"[n % 3], amount=one, path=f"reports/{n}.txt") for n, one in enumerate(AMOUNTS)]


@pytest.mark.parametrize("form", FORMS)
def test_an_approved_range_becomes_a_narrower_rule_in_every_form_of_a_file(tmp_path: Path, form: str) -> None:
    root = project(tmp_path, FORMS[form])
    made = [*APPROVED, call("reject", amount=80.0), call("edit", amount=30.0), call("expired", None, amount=25.0)]
    if form == "allowed":
        made = [one for one in made if one.arguments["amount"] > 10] + [
            call("approve", amount=float(n)) for n in range(11, 15)
        ]
    done = suggested(root, made)
    [found] = [one for one in done.found.suggestions if one.kind == "narrow"]
    assert found.summary.endswith("and nothing that was rejected")
    assert f"asked {len(made)}" in found.summary
    agent, _, base = read(root)
    inside = {"amount": 20.0, "currency": "EUR", "path": "reports/b.txt"}
    assert verdict(agent, done.before, "shop.refund", inside, base) == "ask"
    assert verdict(agent, done.after, "shop.refund", inside, base) == "allow"
    for other in ({"amount": 80.0}, {"amount": 30.0}, {"currency": "eur"}, {"path": "reports/../keys"}):
        assert verdict(agent, done.after, "shop.refund", {**inside, **other}, base) == "ask"
    if form == "block":
        assert all(comment in done.after.decode() for comment in ("# what everyone may do", "# money", "# carefully"))
        assert found.people == 3
        assert (found.asked, found.approved, found.rejected, found.expired) == (9, 6, 2, 1)
    patch = tmp_path / "rules.patch"
    patch.write_text(done.found.diff)
    subprocess.run(["git", "apply", patch.name], cwd=tmp_path, check=True)
    assert (root / PATH).read_bytes() == done.after


def test_what_is_not_proposed_has_a_reason(tmp_path: Path) -> None:
    def reason(rules: str, decided: Sequence[DecidedCall]) -> str:
        done = suggested(project(tmp_path, rules), decided)
        assert done.after == done.before
        return next((one.summary for one in done.found.suggestions if one.kind == "kept"), "")

    mixed = [*APPROVED, *(call("reject", amount=one.arguments["amount"]) for one in APPROVED[:3])]
    assert "no range, prefix or value separates" in reason(BLOCK, mixed)
    assert "write one for shop.refund above it" in reason(
        BLOCK.replace("tool: shop.refund", "tool: shop.re*"), APPROVED
    )
    assert "approve_from medium would ask" in reason(BLOCK.replace("never\n", "medium\n"), APPROVED)
    wipes = [call("approve", tool="shop.wipe", amount=one.arguments["amount"]) for one in APPROVED]
    assert "above max_risk high" in reason(BLOCK.replace("shop.refund", "shop.wipe"), wipes)
    assert reason(BLOCK, APPROVED[:4]) == ""
    assert reason(BLOCK, []) == ""


def test_rejections_of_others_count_although_they_are_not_shown(tmp_path: Path) -> None:
    done = suggested(project(tmp_path), APPROVED, [*APPROVED, call("reject", "eve", amount=5.0)])
    [found] = [one for one in done.found.suggestions if one.kind in ("narrow", "kept")]
    assert (found.rejected, "eve" in found.model_dump_json()) == (0, False)
    agent, _, base = read(tmp_path)
    assert verdict(agent, done.after, "shop.refund", {**APPROVED[0].arguments, "amount": 5}, base) == "ask"


def test_calls_that_are_always_rejected_are_denied_and_unused_rules_are_named(tmp_path: Path) -> None:
    made = [call("reject", by, tool="shop.close", order=f"x-{n}") for n, by in enumerate("ababab")]
    done = suggested(project(tmp_path), made)
    kinds = {one.rule: one.kind for one in done.found.suggestions}
    assert kinds == {"shop.close when order: x-*": "deny", "shop.refund": "unused"}
    assert done.found.suggestions[0].summary == "asked 6, rejected 6 by 2 people; would have denied all of them"
    agent, _, base = read(tmp_path)
    assert verdict(agent, done.after, "shop.close", {"order": "x-9"}, base) == "deny"
    assert verdict(agent, done.after, "shop.close", {"order": "y-9"}, base) == verdict(
        agent, done.before, "shop.close", {"order": "y-9"}, base
    )


def spellings(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a call with its values as models write them."""
    found = [dict(arguments)]
    amount = arguments["amount"]
    found += [{**arguments, "amount": value} for value in (str(amount), f"{amount:e}", f" {amount} ", f"+{amount}")]
    found += [{**arguments, "amount": int(amount)}] if amount == int(amount) else []
    path = arguments["path"]
    found += [{**arguments, "path": value} for value in (f"./{path}", f"x/../{path}", path.replace("/", "//"))]
    return [*found, {**arguments, "loud": False}]


ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "amount": st.one_of(st.integers(-5, 40).map(float), st.sampled_from([1e9, 0.1, 20.5, 1e-7])),
        "currency": st.sampled_from(["EUR", "eur", "USD", "EUR*", "!= EUR"]),
        "path": st.sampled_from(["reports/a.txt", "reports/b.txt", "report", "keys/a", "reports/x/y"]),
    }
)
MADE = st.lists(st.tuples(ARGUMENTS, st.sampled_from(["approve"] * 6 + ["reject", "edit", "respond", "expired"])))


@given(st.data())
@cases(10)
def test_no_rejected_call_passes_a_proposed_rule_in_any_spelling(data: st.DataObject) -> None:
    made = [
        call(decision, "ann", **arguments) for arguments, decision in data.draw(MADE.filter(lambda one: len(one) > 4))
    ]
    common = data.draw(st.sampled_from([{}, {"currency": "EUR"}, {"currency": "EUR", "path": "reports/a.txt"}]))
    made = [
        call(one.decision, "ann", **{**one.arguments, **(common if one.decision == "approve" else {})}) for one in made
    ]
    with TemporaryDirectory() as folder:
        root = project(Path(folder), FORMS[data.draw(st.sampled_from(sorted(FORMS)))])
        done = suggested(root, made)
        agent, _, base = read(root)
        for one in made:
            if one.decision not in ("approve", "expired"):
                for arguments in spellings(one.arguments):
                    before = verdict(agent, done.before, "shop.refund", arguments, base)
                    after = verdict(agent, done.after, "shop.refund", arguments, base)
                    assert before == "allow" or after != "allow", (one, arguments, done.found.diff)


def test_decisions_of_real_runs_become_a_rule_that_the_next_call_is_explained_by(tmp_path: Path) -> None:
    root = project(tmp_path)
    amounts = [5.0, 19.0, 12.0, 8.0, 3.0, 90.0, 40.0]

    def refund(amount: float) -> ScriptedModel:
        asked = calls(("shop.refund", {"amount": amount, "currency": "EUR", "path": "reports/a.txt"}))
        return ScriptedModel(asked, "done")

    async def run(amount: float) -> str:
        async with Runtime.open(root, models={"offline": refund(amount)}, store="sqlite:///runs.db") as runtime:
            result = await runtime.run("Refund it", agent="clerk")
            if result.status == "completed":
                return str(result.tool_calls[0].result)
            [pending] = result.pending
            decision = Reject() if amount == 90 else Edit(arguments={**pending.arguments, "amount": 20.0})
            made = Approve() if amount < 20 else decision
            await runtime.decide(result.run_id, {pending.id: made}, by=f"p{amount:.0f}"[:2])
            await runtime.result(result.run_id)
            return result.status

    write(root, {"agentsd.yaml": "store: {url: 'sqlite:///runs.db'}\n"})
    assert [asyncio.run(run(amount)) for amount in amounts] == ["paused"] * len(amounts)
    shown = agentsd("policy", "suggest", cwd=root)
    assert "asked 7, approved 5 by 4 people, rejected or changed 2; would have allowed 5 of them" in shown.stderr
    assert (root / PATH).read_text() == HEAD + BLOCK
    data = json.loads(agentsd("policy", "suggest", "--json", PATH, cwd=root).stdout)["agents"]
    assert [one["agent"] for one in data] == ["clerk"]
    assert data[0]["diff"] == shown.stdout
    done = agentsd("policy", "suggest", "--apply", cwd=root)
    assert (done.returncode, "agents.d/clerk.yaml is changed" in done.stderr) == (0, True), done.stderr
    assert asyncio.run(run(11.0)) == "refunded 11 EUR"
    assert asyncio.run(run(90.0)) == "paused"
    arguments = '{"amount": 11, "currency": "EUR", "path": "reports/a.txt"}'
    explained = agentsd("explain", "clerk", "shop.refund", arguments, cwd=root)
    assert "allow" in explained.stdout
    assert "nothing that was rejected" not in agentsd("policy", "suggest", cwd=root).stderr


def test_many_decisions_take_little_time(tmp_path: Path) -> None:
    count = 10_000 if FACTOR > 1 else 1_000
    root = project(tmp_path)

    async def main() -> DecidedCalls:
        store = await Store.open("sqlite:///runs.db", root)
        try:
            _fill(root / "runs.db", count)
            began = time.process_time()
            decided = await store.decided_calls(RunQuery(limit=MAX_DECIDED_RUNS))
            done = suggest(agent, generation, decided, decided, base)
            assert time.process_time() - began < 2 * count / 10_000 + 0.1
        finally:
            await store.close()
        assert len(decided.calls) == count
        assert done.found.diff
        return decided

    agent, generation, base = read(root)
    asyncio.run(main())


def _fill(file: Path, count: int) -> None:
    """Store runs with one decision each, as the engine packs them."""
    columns: dict[str, Any] = {
        "generation": 1,
        "digest": "d",
        "blueprint": "b",
        "status": "completed",
        "version": 3,
        "message": "m",
    }
    columns |= {"agent": "clerk", "created_at": 1.0, "updated_at": 1.0, "head": "{}", "state": "{}"}
    rows, bodies, made = [], [], []
    for number in range(count):
        run_id, amount = f"run_{number}", float(number % 997)
        event: dict[str, Any] = {
            "event": "confirm_required",
            "run_id": run_id,
            "id": "c1",
            "kind": "tool",
            "agent": "clerk",
        }
        arguments = {"amount": amount, "currency": "EUR", "path": f"reports/{number}.txt"}
        event |= {"tool": "shop.refund", "arguments": arguments, "rule": "ask shop.refund (x:1)"}
        other = json.dumps({"event": "content", "text": "some words of an answer, " * 20})
        events = [[1, other], [2, json.dumps(event, separators=(",", ":"))], [3, other]]
        bodies.append(
            {"run_id": run_id, "body": zlib.compress(json.dumps({"parts": [], "events": events}).encode(), 3)}
        )
        rows.append({"id": run_id, **columns})
        decision = '{"type":"approve"}' if amount < 600 else '{"type":"reject","reason":"too much"}'
        made.append(
            {"run_id": run_id, "confirmation_id": "c1", "decision": decision, "decided_by": "ann", "decided_at": 1.0}
        )
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        for table, values in ((runs, rows), (packed, bodies), (decisions, made)):
            connection.execute(sa.insert(table), values)
    engine.dispose()
