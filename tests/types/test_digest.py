"""Approvals are bound by 256-bit digests, and equal calls share a repetition key."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from framework import tool
from framework.types.plan import Plan, PlanDraft
from framework.types.text import call_digest, canonical_call, repetition_key
from tests.support.cases import cases

DRAFT = {"goal": "g", "steps": [{"id": "a", "description": "pay", "tool": "pay", "parameters": {"amount": 5}}]}


def test_digests_of_approved_content_have_256_bits() -> None:
    @tool(risk="low")
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    plan = Plan.from_draft(PlanDraft.model_validate(DRAFT))
    for digest in (pay.contract, call_digest("pay", {"amount": 5}), plan.hash):
        assert len(bytes.fromhex(digest)) == 32


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
Arguments = st.dictionaries(st.text(max_size=3), Json, max_size=3)


@cases(60)
@given(one=Arguments, other=Arguments | st.sampled_from([{"n": 1}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"n": 2**70}]))
def test_calls_share_a_repetition_key_if_and_only_if_they_are_equal(one: Any, other: Any) -> None:
    keys = [repetition_key("pay", arguments) for arguments in (one, other, dict(reversed(one.items())))]

    assert (keys[0] == keys[1]) == (canonical_call("pay", one) == canonical_call("pay", other))
    assert keys[0] == keys[2], "the order of arguments does not matter"
    assert repetition_key("buy", one) != keys[0]
