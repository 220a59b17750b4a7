"""Routing patterns match user messages in linear time, or are rejected at load."""

from __future__ import annotations

from functools import partial

import pytest
from pydantic import ValidationError

from framework.engine.routing import _hits
from framework.types.case import Expect
from framework.types.spec import Routing
from tests.support.growth import assert_linear, repeated


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b$", r"(\w+\s?)*$", "a.*a.*a.*b"])
def test_asi08_no_message_makes_a_routing_pattern_slow(pattern: str) -> None:
    rules = Routing(patterns=(pattern,))
    assert_linear(lambda text: _hits(text, rules), partial(repeated, "a", end="!"), largest=32_000)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        ("(", "unclosed group"),
        ("(a{1,1000}){1,1000}", "exceeds size limit"),
    ],
)
def test_an_unsupported_pattern_is_a_problem_of_its_file(pattern: str, reason: str) -> None:
    for refused in (partial(Routing, patterns=(pattern,)), partial(Expect, output_matches=pattern)):
        with pytest.raises(ValidationError, match=f"not a linear-time regular expression: .*{reason}"):
            refused()


@pytest.mark.parametrize(
    ("message", "hits"), [("Order #12 please", 1), ("reorder 12", 0), ("\u9000\u6b3e 5 \u5929", 1)]
)
def test_ordinary_patterns_match_as_before(message: str, hits: int) -> None:
    rules = Routing(patterns=(r"(?i)\border #?\d+", r"\d+\s*\u5929"))
    assert len(_hits(message, rules)) == hits
