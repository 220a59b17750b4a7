"""Approvals are bound by 256-bit digests; the 64-bit digests of earlier versions are still recognized."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, RunResult, Runtime, Tool, tool
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.digest import (
    call_digest,
    canonical_call,
    content_digest,
    legacy_digest,
    matches_digest,
    repetition_key,
)
from framework.types.events import Event
from framework.types.plan import Plan, PlanDraft
from framework.types.state import Confirmation, RunState
from tests.support.cases import cases
from tests.support.projects import agent, write

DRAFT = {"goal": "g", "steps": [{"id": "a", "description": "pay", "tool": "pay", "parameters": {"amount": 5}}]}


class EarlierStore(JsonStore):
    """A store written by an earlier version, with 64-bit digests instead of 256-bit ones."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = texts

    def keep(self, state: RunState, events: Sequence[Event], *, last: bool = False) -> None:
        super().keep(state, events, last=last)
        body = self._bodies[state.run_id]
        for text in self.texts:
            body = body.replace(content_digest(text), legacy_digest(text))
        self._bodies[state.run_id] = body


def paying(executed: list[int], description: str = "Pay.") -> Tool:
    @tool(risk="low", confirm=True, description=description)
    async def pay(amount: int) -> str:
        executed.append(amount)
        return "paid"

    return pay


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys)})


def stored(pay: Tool) -> EarlierStore:
    plan = Plan.from_draft(PlanDraft.model_validate(DRAFT))
    changed = paying([], "Pay. Now with receipts.").definition.canonical_json
    return EarlierStore(
        pay.definition.canonical_json, changed, canonical_call("pay", {"amount": 5}), plan.approval_text
    )


async def continued(
    root: Path, store: JsonStore, tools: Sequence[Tool], turns: Sequence[Turn], run_id: str = "", **decided: Any
) -> RunResult:
    async with Runtime.open(
        root, tools=tools, models={"scripted": ScriptedModel(*turns)}, store=store, watch=False
    ) as runtime:
        return await (runtime.resume(run_id, decided) if run_id else runtime.run("go", agent="one"))


def asked_again(root: Path, store: JsonStore, tools: Sequence[Tool], result: RunResult, decision: Any) -> RunResult:
    """Resume with a decision under the stored id, as another process would."""

    async def question() -> Confirmation:
        return (await store.load_run(result.run_id)).pending[0]

    key = asyncio.run(question()).id
    return asyncio.run(continued(root, store, tools, ["done", "done"], result.run_id, **{key: decision}))


def test_digests_of_approved_content_have_256_bits() -> None:
    plan = Plan.from_draft(PlanDraft.model_validate(DRAFT))

    for digest in (paying([]).contract, call_digest("pay", {"amount": 5}), plan.hash):
        assert len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize("text", ["", "a", "\ud800", "ü"])
def test_a_digest_of_an_earlier_version_is_recognized(text: str) -> None:
    assert matches_digest(content_digest(text), text)
    assert matches_digest(legacy_digest(text), text)
    assert not matches_digest(content_digest(text)[:16], text), "a part of a digest is not a digest"
    assert not matches_digest(legacy_digest(text), text + "x")


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
Arguments = st.dictionaries(st.text(max_size=3), Json, max_size=3)


@cases(200)
@given(one=Arguments, other=Arguments | st.sampled_from([{"n": 1}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"n": 2**70}]))
def test_calls_share_a_repetition_key_if_and_only_if_they_are_equal(one: Any, other: Any) -> None:
    keys = [repetition_key("pay", arguments) for arguments in (one, other, dict(reversed(one.items())))]

    assert (keys[0] == keys[1]) == (canonical_call("pay", one) == canonical_call("pay", other))
    assert keys[0] == keys[2], "the order of arguments does not matter"
    assert repetition_key("buy", one) != keys[0]


def test_a_call_pending_since_an_earlier_version_is_executed_after_approval(tmp_path: Path) -> None:
    executed: list[int] = []
    root, pay = project(tmp_path), paying(executed)
    store = stored(pay)

    paused = asyncio.run(continued(root, store, [pay], [calls(("pay", {"amount": 5}))]))
    result = asked_again(root, store, [pay], paused, Approve())

    assert legacy_digest(pay.definition.canonical_json) in store._bodies[paused.run_id]
    assert (result.status, executed) == ("completed", [5])


def test_an_answer_to_a_second_question_from_an_earlier_version_is_accepted(tmp_path: Path) -> None:
    executed: list[int] = []
    root, pay, changed = project(tmp_path), paying(executed), paying(executed, "Pay. Now with receipts.")
    store = stored(pay)

    paused = asyncio.run(continued(root, store, [pay], [calls(("pay", {"amount": 5}))]))
    again = asked_again(root, store, [changed], paused, Approve())
    assert again.pending[0].id.endswith(changed.contract), "the tool has changed, so it needs approval again"
    result = asked_again(root, store, [changed], again, Approve())

    assert (result.status, executed) == ("completed", [5])


@pytest.mark.parametrize("decision", [Approve(), Edit(arguments=DRAFT)])
def test_a_plan_pending_since_an_earlier_version_is_executed_after_approval(tmp_path: Path, decision: Any) -> None:
    executed: list[int] = []
    root = project(tmp_path, executor="plan", plan="{approval: always}")
    pay = paying(executed)
    store = stored(pay)

    paused = asyncio.run(continued(root, store, [pay], [PlanDraft.model_validate(DRAFT)]))
    result = asked_again(root, store, [pay], paused, decision)

    assert (result.status, executed) == ("completed", [5]), "the approved plan covers its step"
