"""Tools that the model must find first: what requests contain, who may find what, and what happens to found tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, RunResult, Runtime, Tool, tool
from framework.engine.context.policy import Policy
from framework.llm.anthropic import request_to_body
from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelInfo, ModelRequest
from framework.replay import replay
from framework.testing import Crash, JsonStore, ScriptedModel, Turn, calls
from framework.tools.toolset import TOOL_SEARCH
from framework.types.messages import Message, ToolDefinition, wire_name
from framework.types.spec import RISKS, ModelSettings
from framework.types.state import Decision
from framework.types.text import estimate_tokens
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.many_tools import REQUESTS, business_tools
from tests.support.peers.anthropic import ANTHROPIC
from tests.support.plans import draft, model_step, tool_step
from tests.support.policy_rules import NAMES, RULES, TOOLS, Rules
from tests.support.projects import agent, write

TOOLS_OF_BUSINESS = business_tools()
REFUND = "billing.create_refund"
SEARCH = calls((TOOL_SEARCH, {"words": "create refund"}), prefix="s")
FOUND = Message(role="tool", content="You can call these tools now:", tool_call_id="s1", status="success")


def clerk(root: Path, tools: str = '{allow: ["*.*"], defer: auto}', **keys: str) -> Path:
    text = agent("clerk", tools=tools, **keys).replace('skill_policy: {allow: ["*"]}\n', "")
    return write(root, {"agents.d/clerk.yaml": text})


def drive(
    root: Path,
    *turns: Turn,
    store: Any = None,
    decision: Decision | None = None,
    between: Sequence[Tool] | None = None,
    script: Any = None,
) -> tuple[RunResult, ScriptedModel]:
    """Run, and answer each pause in a runtime of its own, with the tools `between` if given."""
    model, store = ScriptedModel(*turns, script=script), store or JsonStore()
    options: dict[str, Any] = {"models": {"scripted": model}, "watch": False, "store": store}

    async def main() -> RunResult:
        async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
            assert not runtime.catalog.problems, runtime.catalog.problems
            result = await runtime.run("go", agent="clerk")
        while result.status == "paused" and decision is not None:
            async with Runtime.open(root, tools=between or TOOLS_OF_BUSINESS, **options) as runtime:
                result = await runtime.resume(result.run_id, {asked.id: decision for asked in result.pending})
        return result

    return asyncio.run(main()), model


def names(request: ModelRequest) -> list[str]:
    return [one.name for one in request.tools]


def searched_in(request: ModelRequest) -> str:
    """Return the end of the description of the search."""
    (search,) = (one for one in request.tools if one.name == TOOL_SEARCH)
    return search.description.rpartition("\n")[2]


def results(model: ScriptedModel, request: int = -1) -> list[str]:
    return [message.content for message in model.requests[request].messages if message.role == "tool"]


def schema_tokens(tools: Sequence[ToolDefinition]) -> int:
    return estimate_tokens(json.dumps([one.model_dump() for one in tools]))


def test_the_first_request_has_a_search_instead_of_500_tools(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path), "done")
    assert names(model.requests[0]) == [TOOL_SEARCH]
    assert schema_tokens(model.requests[0].tools) < 2000
    assert searched_in(model.requests[0]).startswith("Searches 500 tools of: billing (50), calendar (50), ")


def test_found_tools_follow_the_others_and_stay(tmp_path: Path) -> None:
    more = calls((TOOL_SEARCH, {"words": "create refund invoice"}), prefix="m")
    result, model = drive(clerk(tmp_path), SEARCH, calls((REFUND, {"name": "Ann"})), more, "done")
    first, second, third, fourth = map(names, model.requests)
    assert first == [TOOL_SEARCH]
    assert second[:2] == [TOOL_SEARCH, REFUND]
    assert len(second) == 11
    assert third == second
    assert fourth[: len(third)] == third
    assert len(set(fourth)) == len(fourth)
    found, called, _ = results(model)
    assert found.startswith("You can call these tools now:\n- billing__create_refund: Create a new refund.\n")
    assert called == "create refund: {'name': 'Ann'}"
    assert result.status == "completed"


def test_a_model_that_searches_three_times_finds_what_a_user_asks_for(tmp_path: Path) -> None:
    """One run for each tenth request; `tests/tools/test_tool_search.py` searches for all of them."""
    root = clerk(tmp_path)
    for wanted, *tries in REQUESTS[::10]:

        def script(request: ModelRequest, wanted: str = wanted, tries: Sequence[str] = tries) -> Turn:
            if wanted in names(request):
                return calls((wanted, {}), prefix="w") if not has_called(request, wanted) else "done"
            done = sum(message.role == "tool" for message in request.messages)
            return calls((TOOL_SEARCH, {"words": tries[done]}), prefix=f"s{done}-") if done < len(tries) else "lost"

        result, model = drive(root, script=script)
        assert result.output == "done", wanted
        assert all(schema_tokens(request.tools) < 3500 for request in model.requests)


def has_called(request: ModelRequest, tool: str) -> bool:
    return any(call.tool == tool for message in request.messages for call in message.tool_calls)


def test_the_same_tools_without_defer_are_all_in_the_request(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path, '{allow: ["billing.*"]}'), "done")
    assert len(names(model.requests[0])) == 50


def test_few_tools_are_not_deferred_automatically(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path, '{allow: ["billing.*_refund", calculator], defer: auto}'), "done")
    assert TOOL_SEARCH not in names(model.requests[0])
    assert len(names(model.requests[0])) == 6


def test_the_window_of_the_model_decides_what_is_much(tmp_path: Path) -> None:
    settings = "models: {small: {model: openai/x, capabilities: {context_window: 2000}}}\n"
    write(
        clerk(tmp_path, '{allow: ["billing.*_refund", echo], defer: auto}', model="small"), {"agentsd.yaml": settings}
    )

    async def offered() -> list[str]:
        async with Runtime.open(tmp_path, tools=TOOLS_OF_BUSINESS, watch=False) as runtime:
            toolset = runtime.catalog.current.agent("clerk").toolset
            assert set(toolset.deferred) == {name for name in toolset.offered if name.startswith("billing.")}
            return [one.name for one in toolset.definitions]

    assert asyncio.run(offered()) == ["echo", TOOL_SEARCH]  # the built-in ones stay


def test_only_the_named_tools_are_deferred(tmp_path: Path) -> None:
    _, model = drive(
        clerk(tmp_path, '{allow: ["billing.*", echo], defer: ["billing.*_invoice", "billing.list_*"]}'), "x"
    )
    first = names(model.requests[0])
    assert "billing.create_refund" in first
    assert "billing.create_invoice" not in first
    assert {"echo", TOOL_SEARCH} < set(first)


def test_the_tool_that_the_model_must_call_is_not_deferred(tmp_path: Path) -> None:
    settings = "{tool_choice: billing.create_refund}"
    _, model = drive(clerk(tmp_path, '{allow: ["billing.*"], defer: ["*"]}', model_settings=settings), "done")
    assert set(names(model.requests[0])) == {TOOL_SEARCH, REFUND}


# --- a call without a search


def test_a_call_by_the_right_name_needs_no_search(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path), calls(("billing__create_refund", {"name": "Ann"})), "done")
    assert results(model) == ["create refund: {'name': 'Ann'}"]
    assert names(model.requests[1]) == [TOOL_SEARCH, REFUND]


def test_wrong_arguments_of_such_a_call_show_the_model_the_definition(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path), calls((REFUND, {"nam": "Ann"})), "done")
    assert "nam" in results(model)[0]
    assert names(model.requests[1]) == [TOOL_SEARCH, REFUND]


def test_a_denied_call_adds_nothing(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path, '{allow: ["*.*"], deny: ["billing.*"], defer: auto}'), calls((REFUND, {})), "done")
    assert results(model)[0].startswith("Denied")
    assert names(model.requests[1]) == [TOOL_SEARCH]


# --- who may find what


@cases(40)
@given(rules=RULES, live=RULES, parent=RULES, tools=TOOLS, words=st.lists(st.sampled_from(NAMES), max_size=3))
def test_a_denied_tool_is_never_found_or_counted(
    rules: Rules, live: Rules, parent: Rules, tools: list[Tool], words: list[str]
) -> None:
    own, now, caller = (one.agent([*tools]) for one in (rules, live, parent))
    toolset = own.toolset.deferring(NAMES)
    policy = Policy(own, lambda _: now, (caller,))
    searchable = {name for name in toolset.deferred if policy.may_allow(toolset.offered[name])}
    denied = {
        one.name
        for one in tools
        if any(_denies(version, one, listed=version is not parent) for version in (rules, live, parent))
    }
    assert not searchable & denied
    assert searchable == {*NAMES} - denied  # nothing else is hidden
    found = toolset.find_deferred(" ".join([*words, *NAMES]), searchable)
    assert set(found) <= searchable


@cases(60)
@given(
    rules=RULES,
    live=RULES,
    tools=TOOLS,
    added=st.lists(st.sampled_from([*NAMES, "gone"]), max_size=6, unique=True),
    found=st.lists(st.sampled_from([*NAMES, "gone", TOOL_SEARCH]), max_size=6),
    choice=st.sampled_from([None, *NAMES]),
)
def test_a_denied_tool_is_in_no_request_whatever_was_found_before(
    rules: Rules, live: Rules, tools: list[Tool], added: list[str], found: list[str], choice: str | None
) -> None:
    """Nor does a request refer to a tool that it does not contain, or contain none that is not deferred."""
    own, now = rules.agent([*tools]), live.agent([*tools])
    toolset = own.toolset.deferring(NAMES)
    policy = Policy(own, lambda _: now)
    searchable = {name for name in toolset.deferred if policy.may_allow(toolset.offered[name])}
    request = ModelRequest(
        (Message(role="user", content="go"), Message(role="assistant", tool_calls=SEARCH), FOUND),
        toolset.first_definitions(searchable, added),
        ModelSettings(tool_choice=choice if choice in added and choice in searchable else None),
        found={"s1": found},
    )
    body = request_to_body(request, ModelInfo("anthropic", "m", capabilities=Capabilities(late_tools=True)))

    sent = {one["name"]: one for one in body.get("tools", ())}
    allowed = {toolset.tools[name].definition.wire_name for name in searchable}
    assert sent.keys() <= {*allowed, TOOL_SEARCH, "agentsd__hidden"}
    content = body["messages"][-1]["content"][0]["content"]
    referred = [one["tool_name"] for one in content] if isinstance(content, list) else []
    after_first = {one.wire_name for one in request.tools[1:] if one.name != request.settings.tool_choice}
    assert sorted(referred) == sorted(after_first & {wire_name(name) for name in found})
    assert {name for name, one in sent.items() if "defer_loading" in one} - {"agentsd__hidden"} == {*referred}
    assert ANTHROPIC.refusal("/v1/messages", body) is None


def _denies(rules: Rules, one: Tool, *, listed: bool) -> bool:
    """Return whether rules deny every call of a tool, by an implementation of their own."""
    if any(when == "{}" and fnmatchcase(one.name, pattern) for pattern, when in rules.deny):
        return True
    if RISKS.index(one.risk) > RISKS.index(rules.ceiling):
        return True
    patterns = (*rules.allow, *(pattern for pattern, _ in rules.ask))
    return listed and not any(fnmatchcase(one.name, pattern) for pattern in patterns)


def edit_during_run(root: Path, model: ScriptedModel, rules: str) -> None:
    """Execute a run whose model calls `edit_rules`, a tool that gives the agent these rules and reloads."""
    opened: list[Runtime] = []

    @tool(risk="low")
    async def edit_rules() -> str:
        """Edit the rules."""
        clerk(root, rules)
        await opened[0].reload()
        return "edited"

    async def main() -> None:
        clerk(root, '{allow: ["*.*", edit_rules], defer: ["*.*"]}')
        options: dict[str, Any] = {"models": {"scripted": model}, "watch": False, "store": JsonStore()}
        async with Runtime.open(root, tools=[*TOOLS_OF_BUSINESS, edit_rules], **options) as runtime:
            opened.append(runtime)
            await runtime.run("go", agent="clerk")

    asyncio.run(main())


def test_a_rule_that_is_added_during_a_run_hides_tools_from_the_next_search(tmp_path: Path) -> None:
    edit = calls(("edit_rules", {}), prefix="e")
    model = ScriptedModel(calls((TOOL_SEARCH, {"words": "invoice"}), prefix="i"), edit, SEARCH, "done")
    edit_during_run(tmp_path, model, '{allow: ["*.*", edit_rules], deny: ["billing.*"], defer: auto}')
    assert "billing" in results(model)[0]
    assert "billing" not in results(model)[2]
    assert searched_in(model.requests[0]).startswith("Searches 500 tools of: billing (50), ")
    assert searched_in(model.requests[-1]).startswith("Searches 450 tools of: calendar (50), ")


def test_a_found_tool_that_is_denied_during_the_run_leaves_the_requests(tmp_path: Path) -> None:
    model = ScriptedModel(SEARCH, calls(("edit_rules", {}), prefix="e"), "done")
    edit_during_run(tmp_path, model, '{allow: ["*.*", edit_rules], deny: [billing.create_refund], defer: ["*.*"]}')
    found, last = names(model.requests[1]), names(model.requests[2])
    assert REFUND in found
    assert last == [name for name in found if name != REFUND]


def test_a_sub_agent_does_not_find_what_its_caller_denies(tmp_path: Path) -> None:
    root = write(
        clerk(tmp_path, '{allow: ["*.*"], deny: ["billing.*"], defer: auto}', agents="[helper]"),
        {"agents.d/helper.yaml": agent("helper", skill_policy='{allow: ["*.*"], defer: auto}')},
    )
    ask = calls(("agent.helper", {"message": "refund"}), prefix="h")
    _, model = drive(root, ask, SEARCH, "helped", "done")
    helper = model.requests[2]
    assert "billing" not in results(model, 2)[0]
    assert searched_in(helper).startswith("Searches 450 tools of: calendar (50), ")
    assert names(model.requests[3])[:2] != names(helper)[:2]  # what a sub-agent finds is not its caller's


def test_a_denied_search_finds_nothing(tmp_path: Path) -> None:
    root = clerk(tmp_path, '{allow: ["*.*"], deny: [tool_search], defer: auto}')
    model = ScriptedModel(SEARCH, "done")

    async def main() -> None:
        options: dict[str, Any] = {"models": {"scripted": model}, "watch": False, "store": JsonStore()}
        async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
            warnings = runtime.catalog.current.agent("clerk").warnings
            assert [one.message for one in warnings] == [
                "the model cannot find the deferred tools: a rule denies tool_search"
            ]
            await runtime.run("go", agent="clerk")

    asyncio.run(main())
    assert names(model.requests[1]) == []
    assert results(model)[0].startswith("Denied")


def test_a_pattern_that_defers_nothing_is_a_warning(tmp_path: Path) -> None:
    root = clerk(tmp_path, '{allow: [echo], defer: ["crm.*"]}', model="offline")
    assert "'crm.*' matches no tool that is offered" in agentsd("check", cwd=root).stderr


# --- pauses, crashes, replays


def test_found_tools_stay_after_a_pause_in_another_process(tmp_path: Path) -> None:
    root = clerk(tmp_path, '{allow: ["*.*"], ask: [billing.create_refund], defer: auto}')
    turns = SEARCH, calls((REFUND, {"name": "Ann"})), "done"
    result, model = drive(root, *turns, store=f"sqlite:///{tmp_path}/runs.db", decision=Approve())
    assert result.status == "completed"
    assert names(model.requests[2]) == names(model.requests[1])
    assert len(names(model.requests[2])) == 11


def test_a_tool_that_vanished_after_it_was_found_answers_like_any_other(tmp_path: Path) -> None:
    root = clerk(tmp_path, '{allow: ["*.*"], ask: [billing.create_refund], defer: auto}')
    turns = SEARCH, calls((REFUND, {}), ("billing.get_refund", {})), "done"
    left = [one for one in TOOLS_OF_BUSINESS if one.name != REFUND]
    result, model = drive(root, *turns, decision=Approve(), between=left)
    assert result.status == "completed"
    assert results(model)[1].startswith("Error: billing.create_refund failed: there is no tool")
    assert names(model.requests[2]) == [name for name in names(model.requests[1]) if name != REFUND]


def in_turn(request: ModelRequest) -> Turn:
    """Return the turn that follows the results in a request."""
    done = sum(message.role == "tool" for message in request.messages)
    turns: list[Turn] = [SEARCH, calls((REFUND, {"name": "Ann"})), "done"]
    return turns[done]


@pytest.mark.parametrize("saves", range(8))
def test_found_tools_stay_after_a_crash_at_any_step(tmp_path: Path, saves: int) -> None:
    root, store, model = clerk(tmp_path), JsonStore(), ScriptedModel(script=in_turn)
    options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}

    async def main() -> None:
        store.crash_after(saves)
        try:
            async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
                await runtime.run("go", agent="clerk")
        except Crash:
            store.crash_after(None)
        for left in await store.runs():
            if left.status == "running":
                async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
                    await runtime.resume(left.run_id, {})

    asyncio.run(main())
    for request in model.requests:
        done = sum(message.role == "tool" for message in request.messages)
        assert names(request)[:2] == ([TOOL_SEARCH, REFUND] if done else [TOOL_SEARCH])


def test_a_replay_finds_the_same(tmp_path: Path) -> None:
    root, store, model = clerk(tmp_path), JsonStore(), ScriptedModel(script=in_turn)

    async def main() -> Sequence[Any]:
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
            result = await runtime.run("go", agent="clerk")
            stored = await store.stored_run(await store.load_run(result.run_id))
            return await replay(root, stored, runtime.catalog.current)

    assert asyncio.run(main()) == ()


# --- what searches have found, for providers that accept tools late


def late(request: ModelRequest) -> list[str]:
    found = request.late_tools(Capabilities(late_tools=True))
    return [one.name for tools in found.values() for one in tools]


def test_requests_say_which_tools_each_search_has_found(tmp_path: Path) -> None:
    more = calls((TOOL_SEARCH, {"words": "create refund invoice"}), prefix="m")
    _, model = drive(clerk(tmp_path), SEARCH, more, more, "done")
    first, second, third, fourth = model.requests
    assert first.found == {}
    assert late(second) == names(second)[1:]
    assert late(third) == names(third)[1:]
    assert third.found is not None
    assert [*third.found] == ["s1", "m1"]
    assert names(third)[: len(names(second))] == names(second)
    assert fourth.found == third.found, "nothing new, so the model reads the text"
    _, model = drive(clerk(tmp_path, "{allow: [calculator]}"), "done")
    assert model.requests[0].found is None


def test_a_tool_that_is_called_by_its_name_is_an_ordinary_one(tmp_path: Path) -> None:
    _, model = drive(clerk(tmp_path), calls((REFUND, {"nam": "Ann"})), SEARCH, "done")
    assert names(model.requests[1]) == [TOOL_SEARCH, REFUND]
    assert late(model.requests[2]) == names(model.requests[2])[2:]


def test_a_result_that_must_be_read_refers_to_no_tools(tmp_path: Path) -> None:
    """A tool whose definition has no room is only named in the text."""
    turns = [calls((TOOL_SEARCH, {"words": tries[-1]}), prefix=f"s{n}-") for n, (_, *tries) in enumerate(REQUESTS[::5])]
    _, model = drive(clerk(tmp_path, limits="{steps: 50, tool_calls: 50}"), *turns, "done")
    last = model.requests[-1]
    texts = {message.tool_call_id: message.content for message in last.messages if message.role == "tool"}
    assert last.found is not None
    assert any("for lack of room" in text for text in texts.values())
    assert not any("for lack of room" in texts[call_id] for call_id in last.found)


@pytest.mark.parametrize("changes", [True, False])
def test_the_model_reads_what_a_hook_makes_of_a_result(tmp_path: Path, changes: bool) -> None:
    returned = "result.model_copy(update={'output': 'changed'})" if changes else "None"
    hook = f"from agentsd import hook\n\n\n@hook\ndef note(context, call, result):\n    return {returned}\n"
    root = write(clerk(tmp_path, hooks="{after_tool: [mine.note]}"), {"plugins/mine.py": hook})
    _, model = drive(root, SEARCH, "done")
    assert (results(model)[0] == "changed") is changes
    assert bool(late(model.requests[1])) is not changes


def test_what_was_found_stays_after_a_pause(tmp_path: Path) -> None:
    root = clerk(tmp_path, '{allow: ["*.*"], ask: [billing.create_refund], defer: auto}')
    turns = SEARCH, calls((REFUND, {"name": "Ann"})), "done"
    _, model = drive(root, *turns, store=f"sqlite:///{tmp_path}/runs.db", decision=Approve())
    assert model.requests[2].found == model.requests[1].found
    assert REFUND in late(model.requests[2])


# --- limits, plans, commands


def test_a_run_adds_a_limited_number_of_tools(tmp_path: Path) -> None:
    turns = [calls((TOOL_SEARCH, {"words": tries[-1]}), prefix=f"s{n}-") for n, (_, *tries) in enumerate(REQUESTS[::5])]
    _, model = drive(clerk(tmp_path, limits="{steps: 50, tool_calls: 50}"), *turns, "done")
    assert len(names(model.requests[-1])) == 101
    assert "for lack of room; it can be called" in results(model)[-1]


def test_a_plan_is_written_with_the_tools_that_fit_the_message(tmp_path: Path) -> None:
    root = clerk(tmp_path, executor="plan", plan="{approval: never}")
    plan = draft(tool_step("a", REFUND), tool_step("b", "travel.book_hotel"), model_step("c", "a"))
    model = ScriptedModel(plan, calls((TOOL_SEARCH, {"words": "send survey"}), prefix="s"), "sent", "done")

    async def main() -> RunResult:
        options: dict[str, Any] = {"models": {"scripted": model}, "watch": False, "store": JsonStore()}
        async with Runtime.open(root, tools=TOOLS_OF_BUSINESS, **options) as runtime:
            return await runtime.run("create a refund for Ann", agent="clerk")

    result = asyncio.run(main())
    assert result.status == "completed"
    planning, step, searched, _ = map(names, model.requests)
    assert planning[:2] == [TOOL_SEARCH, REFUND]
    assert len(planning) == 11
    assert set(planning) <= set(step)  # a step that the model executes has them, and can search for others
    assert "helpdesk.send_survey" in searched
    assert result.plan is not None
    assert [one.status for one in result.plan.steps] == ["done"] * 3  # also a step with a tool that was not found


def test_explain_shows_which_tools_are_deferred(tmp_path: Path) -> None:
    policy = '{allow: ["*_file", list_dir, echo], defer: ["*_file"]}'
    root = clerk(tmp_path, policy, model="offline", max_risk="high")
    text = agentsd("explain", "clerk", cwd=root).stdout
    sent, _, later = text.partition("offered once a run needs them")
    assert "read_file" not in sent
    assert "tool_search" in sent
    assert "offered to the model: 3 tools" in sent
    assert "read_file" in later.partition("not offered")[0]
    tools = {one["tool"]: one for one in json.loads(agentsd("explain", "clerk", "--json", cwd=root).stdout)["tools"]}
    assert [tools["read_file"][key] for key in ("offered", "deferred", "tokens")] == [True, True, 0]
    assert [tools["echo"][key] for key in ("offered", "deferred")] == [True, False]
    assert "defer:" in agentsd("agents", "clerk", cwd=root).stdout
