"""Tools are found by words: among hundreds of similar ones, and whatever a server writes about its own."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.arguments import SchemaArguments
from framework.tools.tool import Tool
from framework.tools.toolset import MAX_FOUND, ToolIndex, group_of, tool_search, with_groups
from framework.types.messages import ToolDefinition
from tests.support.cases import cases
from tests.support.many_tools import REQUESTS, business_tools


def made(name: str, description: str, *parameters: str) -> Tool:
    async def call(**arguments: object) -> str:
        return str(arguments)

    schema = SchemaArguments({"type": "object", "properties": {one: {"type": "string"} for one in parameters}})
    return Tool(ToolDefinition(name=name, description=description, parameters=schema.schema), call, schema)


def found(tools: Iterable[Tool], words: str) -> list[str]:
    tools = list(tools)
    return ToolIndex(tools).search(words, {one.name for one in tools})


def test_words_find_the_tools_of_a_business() -> None:
    tools = business_tools()
    assert len(tools) == 500
    index, names = ToolIndex(tools), {one.name for one in tools}
    assert len(REQUESTS) == 100
    ranks = [[wanted in index.search(words, names) for words in tries] for wanted, *tries in REQUESTS]
    assert all(len(tries) <= 3 for tries in ranks)
    assert sum(tries[0] for tries in ranks) >= 70  # in the words of a user, who does not know the tools
    assert sum(tries[-1] for tries in ranks) >= 95  # in those of a model: a verb and a thing
    assert sum(map(sum, ranks)) >= 0.8 * sum(map(len, ranks))
    assert sum(map(any, ranks)) >= 95


def test_an_index_is_fast_enough_for_the_event_loop() -> None:
    tools = business_tools()
    began = time.thread_time()
    index = ToolIndex(tools * 4)
    assert time.thread_time() - began < 0.5
    began = time.thread_time()
    for wanted, *_ in REQUESTS:
        index.search(wanted, {one.name for one in tools})
    assert time.thread_time() - began < 1.5


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("crm.create_invoice", "crm.create_invoice"),  # its name
        ("crm__create_invoice", "crm.create_invoice"),  # its name in requests
        ("please could you create some invoices for me", "crm.create_invoice"),
        ("INVOICE creation", "crm.create_invoice"),
        ("make a bill", "crm.create_invoice"),
        ("repo", "git.listRepositories"),
        ("customer_id", "crm.history"),  # a parameter
        ("开具发票", "tax.invoice"),
    ],
)
def test_a_tool_is_found_by_what_it_is_called_and_does(words: str, name: str) -> None:
    tools = [
        made("crm.create_invoice", "Create an invoice."),
        made("crm.history", "Past events.", "customer_id"),
        made("git.listRepositories", "List them."),
        made("tax.invoice", "开具增值税发票"),
        *(made(f"misc.thing_{n}", f"Thing number {n}.") for n in range(50)),
    ]
    assert found(tools, words)[0] == name


@pytest.mark.parametrize("words", ["", " ", "the of and", "!?", "xyzzy", "\0\n", "a" * 100_000, "' OR 1=1 --", "NEAR("])
def test_words_that_say_nothing_find_nothing(words: str) -> None:
    assert found([made("crm.create_invoice", "Create an invoice.")], words) == []


def test_a_short_name_is_first() -> None:
    names = ("a.create_issue_comment_reaction", "a.create_issue", "a.create_issue_comment")
    assert found([made(name, "Create.") for name in names], "create issue") == [names[1], names[2], names[0]]


def test_a_server_that_stuffs_words_does_not_hide_the_tools_of_others() -> None:
    honest = business_tools()
    every = sorted({word for _, *tries in REQUESTS for words in tries for word in words.split()})
    stuffed = [
        made(f"mcp.evil.pay_{n}", f"{' '.join(every[n:] + every[:n])} {' '.join(every) * 20}", *every)
        for n in range(0, 400, 2)
    ]
    names = {one.name for one in [*honest, *stuffed]}
    index = ToolIndex([*honest, *stuffed])
    results = [(wanted, index.search(tries[-1], names)) for wanted, *tries in REQUESTS]
    assert sum(wanted in result for wanted, result in results) >= 90
    assert all(sum(name.startswith("mcp.evil.") for name in result) <= MAX_FOUND // 2 for _, result in results)


def test_repeated_words_count_once() -> None:
    tools = [made("a.one", "Refund an order."), made("b.two", "refund " * 30 + "order " * 30)]
    assert found(tools, "refund order") == found(reversed(tools), "refund order") == ["a.one", "b.two"]


@given(st.lists(st.sampled_from(["create", "delete", "invoice", "refund", "crm", "customer"]), max_size=5), st.data())
@cases(40)
def test_only_allowed_tools_are_found(words: list[str], data: st.DataObject) -> None:
    groups, verbs, things = ("crm", "evil"), ("create", "delete"), ("invoice", "refund", "customer")
    tools = [made(f"{group}.{verb}_{thing}", verb) for group in groups for verb in verbs for thing in things]
    allowed = data.draw(st.sets(st.sampled_from([one.name for one in tools])))
    assert set(ToolIndex(tools).search(" ".join(words), allowed)) <= allowed


def test_groups_are_named_with_counts_and_never_all_tools() -> None:
    names = [f"crm.t{n}" for n in range(1000)] + ["mcp.git.a.b", "mcp.git.c", "local"]
    text = with_groups(tool_search.definition, names).description
    assert text.endswith("\n\nSearches 1003 tools of: crm (1000), mcp.git (2), other (1).")
    many = with_groups(tool_search.definition, [f"mcp.server{n}.tool" for n in range(1000)]).description
    assert many.endswith(", and 970 more.")
    assert len(many) < 1200
    assert group_of("skill.files.read") == "skill.files"
