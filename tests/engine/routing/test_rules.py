"""Routing by name, conversation, rules and default, with the reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import AgentNotFound, RequestError, Runtime
from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.generation import empty_generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import Settings
from framework.config.snapshot import Snapshot
from framework.engine.routing import Route, choose_route
from framework.testing import ScriptedModel
from framework.types.events import Routed
from tests.support.cases import cases, each
from tests.support.projects import agent, write


def made(name: str, **routing: object) -> Agent:
    text = agent(name, model="offline", routing=json.dumps(routing))
    snapshot = Snapshot({f"agents.d/{name}.yaml": text.encode()}, (), "")
    return (
        GenerationBuilder([], ["react"], ["offline"], SettingsFile(Settings(), fixed=True))
        .build(snapshot, empty_generation(Settings()), ExternalTools())
        .agents[name]
    )


def all_of(*agents: Agent) -> dict[str, Agent]:
    return {one.name: one for one in agents}


def choice(found: Route) -> tuple[str, str, str, float]:
    return found.agent.name, found.mode, found.reason, found.confidence


SHOP = all_of(
    made("billing", keywords=["invoice", "refund"], patterns=[r"(?i)\border #?\d+"]),
    made("returns", priority=5, keywords=["refund"], examples=["Where is my parcel?"]),
    made("assistant"),
)


# --- precedence


def test_the_agent_that_the_caller_names_wins_over_everything() -> None:
    found = choose_route("refund", SHOP, explicit="assistant", last="billing", default="returns")

    assert choice(found) == ("assistant", "explicit", "named by the caller", 1.0)


def test_the_conversations_last_agent_wins_over_the_rules() -> None:
    found = choose_route("refund", SHOP, last="assistant", default="billing")

    assert choice(found) == ("assistant", "conversation", "answered last in this conversation", 1.0)


def test_the_rules_win_over_the_default() -> None:
    chosen = choose_route("my invoice", SHOP, default="assistant")
    assert choice(chosen) == ("billing", "rule", "keyword 'invoice'", 1.0)


def test_the_default_agent_is_used_if_no_rule_matches() -> None:
    chosen = choose_route("hello", SHOP, default="billing")
    assert choice(chosen) == ("billing", "default", "routing.default_agent", 1.0)


def test_an_agent_named_assistant_is_the_default_if_none_is_set_with_less_confidence() -> None:
    found = choose_route("hello", SHOP)

    assert (found.agent.name, found.mode, found.confidence) == ("assistant", "default", 0.5)
    assert "no rule matches" in found.reason


def test_the_only_agent_takes_every_message() -> None:
    assert choice(choose_route("hello", all_of(made("solo")))) == ("solo", "default", "the only agent", 1.0)


def test_if_the_last_agent_no_longer_exists_the_rules_decide() -> None:
    assert choose_route("my invoice", SHOP, last="gone").agent.name == "billing"


# --- the rules


def test_the_matching_agent_with_the_higher_priority_wins() -> None:
    assert choice(choose_route("refund order 12, see invoice", SHOP))[:2] == ("returns", "rule")


def test_among_equal_priorities_more_matches_win_and_then_the_first_name() -> None:
    agents = all_of(made("b", keywords=["pay", "bill"]), made("c", keywords=["pay"]), made("a", keywords=["pay"]))

    assert choice(choose_route("pay the bill", agents)) == ("b", "rule", "keyword 'pay'", 1.0)
    assert choice(choose_route("pay", agents)) == ("a", "rule", "keyword 'pay'", 0.33)


@each(
    ("keyword", "message", "matches"),
    [
        ("refund", "I want a REFUND!", True),
        ("refund", "refund", True),
        ("refund", "refunds", False),
        ("refund", "prerefund", False),
        ("refund", "re-refund?", True),
        ("refund", "refund_id", False),
        ("refund", "我要refund一下", True),
        ("money back", "give my money back", True),
        ("money back", "money  back", False),
        ("c++", "I write C++ code", True),
        ("c++", "I write c", False),
        (".", "no dots are wild here", False),
        ("resum", "my resumé", False),
        ("退款", "我要退款谢谢", True),
        ("退款", "我要退货", False),
        ("退款 order", "退款 ORDER", True),
        ("환불", "환불을 원해요", True),
        ("返金", "返金をお願いします", True),
        ("über", "das Auto fährt darüber", False),
        ("über", "Über uns", True),
        ("возврат", "нужен возврат денег", True),
        ("возврат", "невозвратный", False),
        ("straße", "STRASSE 12", True),
        (" refund ", "a refund please", True),
        ("", "anything at all", False),
        (" ", "anything at all", False),
    ],
)
def test_keywords_match_whole_words_in_scripts_with_spaces_and_substrings_in_others(
    keyword: str, message: str, matches: bool
) -> None:
    agents = all_of(made("found", keywords=[keyword]), made("assistant"))

    assert (choose_route(message, agents).agent.name == "found") is matches


@pytest.mark.parametrize(
    ("message", "matches"), [("see Order #12 please", True), ("order 7", True), ("ordering", False), ("order", False)]
)
def test_patterns_are_matched_against_the_unchanged_message(message: str, matches: bool) -> None:
    found = choose_route(message, SHOP)

    assert (found.agent.name == "billing") is matches
    if matches:
        assert found.reason == r"pattern '(?i)\\border #?\\d+'"


@pytest.mark.parametrize(
    ("message", "matches"),
    [("where is my PARCEL?", True), ("  Where is my parcel?\n", True), ("Where is my parcel? And my bill?", False)],
)
def test_examples_match_the_whole_message_ignoring_case(message: str, matches: bool) -> None:
    found = choose_route(message, SHOP)

    assert (found.agent.name == "returns") is matches
    if matches:
        assert found.reason == "example 'Where is my parcel?'"


WORDS = st.sampled_from(["pay", "ship", "退款"])


@cases(25)
@given(
    message=st.text(max_size=12) | st.lists(WORDS, max_size=3).map(" ".join),
    keywords=st.dictionaries(st.sampled_from("abcde"), st.tuples(st.integers(-3, 3), st.lists(WORDS)), min_size=2),
)
def test_the_choice_is_deterministic_and_has_the_highest_matching_priority(
    message: str, keywords: dict[str, tuple[int, list[str]]]
) -> None:
    agents = [made(name, priority=priority, keywords=words) for name, (priority, words) in keywords.items()]
    found = choose_route(message, all_of(*agents), default="a" if "a" in keywords else next(iter(keywords)))

    again = choose_route(message, all_of(*reversed(agents)), default="a" if "a" in keywords else next(iter(keywords)))
    assert choice(found) == choice(again)
    said = {name for name, (_, words) in keywords.items() if any(word in message.split() for word in words)}
    assert found.mode == "rule" or not said
    assert all(found.agent.spec.routing.priority >= keywords[name][0] for name in said)
    assert 0 < found.confidence <= 1


# --- no agent found


def test_an_unknown_agent_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(AgentNotFound, match=r"^no agent named 'biling'; did you mean billing\?$") as caught:
        choose_route("hello", SHOP, explicit="biling")

    assert caught.value.known == ("assistant", "billing", "returns")
    assert caught.value.http_status == 404


def test_an_unknown_agent_without_a_similar_name_is_rejected_with_all_names() -> None:
    with pytest.raises(AgentNotFound, match="there are: assistant, billing, returns"):
        choose_route("hello", SHOP, explicit="xyz")


def test_an_empty_name_is_an_unknown_agent_and_not_none() -> None:
    with pytest.raises(AgentNotFound, match="no agent named ''"):
        choose_route("hello", SHOP, explicit="")


def test_a_missing_default_agent_is_rejected_like_any_other() -> None:
    with pytest.raises(AgentNotFound, match="did you mean returns"):
        choose_route("hello", SHOP, default="retuns")


def test_without_any_agent_the_error_names_where_to_put_one() -> None:
    with pytest.raises(RequestError, match=r"there are no agents: put one under agents\.d/"):
        choose_route("hello", {})
    with pytest.raises(AgentNotFound, match="there are none"):
        choose_route("hello", {}, explicit="support")


def test_without_a_match_or_a_default_the_error_names_the_agents() -> None:
    agents = all_of(made("b", keywords=["pay"]), made("a"))

    with pytest.raises(RequestError, match=r"name one of: a, b, or set routing\.default_agent"):
        choose_route("hello", agents)


# --- through the runtime


def shop(root: Path) -> Path:
    return write(
        root,
        {
            "agents.d/billing.yaml": agent("billing", routing="{keywords: [invoice]}"),
            "agents.d/chat.yaml": agent("chat"),
            "agentsd.yaml": "routing: {default_agent: chat}\n",
        },
    )


def test_a_run_begins_with_the_chosen_agent_and_the_reason(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, str, float, int]]:
        models = {"scripted": ScriptedModel("hello")}
        opened = Runtime.open(shop(tmp_path), models=models, watch=False)
        async with opened as runtime, runtime.stream("an invoice") as stream:
            events = [event async for event in stream]
        return [(e.agent, e.reason, e.confidence, e.seq) for e in events if isinstance(e, Routed)]

    assert asyncio.run(main()) == [("billing", "keyword 'invoice'", 1.0, 1)]


def test_a_conversation_stays_with_its_agent_until_the_caller_names_another(tmp_path: Path) -> None:
    async def main() -> list[str]:
        models = {"scripted": ScriptedModel("1", "2", "3", "4", "5")}
        async with Runtime.open(shop(tmp_path), models=models, watch=False) as runtime:
            results = [
                await runtime.run("an invoice", conversation="c"),
                await runtime.run("hello", conversation="c"),
                await runtime.run("hello", conversation="c", agent="chat"),
                await runtime.run("an invoice", conversation="c"),
                await runtime.run("hello", conversation="another"),
            ]
        return [result.agent for result in results]

    assert asyncio.run(main()) == ["billing", "billing", "chat", "chat", "chat"]
