"""Restrictions take effect although the same edit contains an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.config.generations.generation import Generation
from framework.config.settings import ReloadSettings, Settings
from framework.engine.context.policy import Policy
from framework.testing import ScriptedModel, calls
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write

FILE = "agents.d/one.yaml"
STRICT = Settings(reload=ReloadSettings(mode="strict"))


def one(**keys: str) -> str:
    given_keys = {"model": "offline", "instructions": "{template: one.j2}", "skill_policy": "{allow: ['*']}"} | keys
    return agent("one", **given_keys)


def project(root: Path, **keys: str) -> Path:
    return write(root, {FILE: one(**keys), "prompts/one.j2": "{% include '_c.j2' %}", "prompts/_c.j2": "Hello."})


def edited(root: Path, files: dict[str, str], settings: Settings | None = None) -> tuple[Generation, Generation]:
    """Return the live generation before and after an edit."""

    async def main() -> tuple[Generation, Generation]:
        async with Runtime.open(root, settings=settings, watch=False) as runtime:
            before = runtime.catalog.current
            assert not before.errors
            write(root, files)
            return before, await runtime.reload()

    return asyncio.run(main())


def verdict(generation: Generation, name: str, **arguments: Any) -> tuple[str, str]:
    """Kind and place of the verdict for a call of a new run."""
    live = generation.agents["one"]
    found = Policy(live, generation.agents.get).evaluate(generation.tools[name], arguments)
    return found.kind, found.place


BROKEN: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "a shared template": lambda keys: {FILE: one(**keys), "prompts/_c.j2": "{{ nothing"},
    "another key": lambda keys: {FILE: one(**keys, max_stepz="1")},
    "a value": lambda keys: {FILE: one(**keys, conversation="{window: many}")},
    "a reference": lambda keys: {FILE: one(**keys, sub_agents="[nobody]")},
    "the model": lambda keys: {FILE: one(**keys | {"model": "nothing/here"})},
    "agentsd.yaml": lambda keys: {FILE: one(**keys), "agentsd.yaml": "model: [\n"},
}
BROKEN_IN_THE_RULES = "{deny: [echo, {tol: x}], alow: [x]}"


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(("before", "after"), [("unknown_ok", "known"), ("known", "unknown_ok")])
def test_prices_are_required_if_the_saved_file_or_the_last_good_version_does(
    tmp_path: Path, broken: str, before: str, after: str
) -> None:
    project(tmp_path, runtime_policy=f"{{cost: {before}}}")
    _, live = edited(tmp_path, BROKEN[broken]({"runtime_policy": f"{{cost: {after}}}"}))
    assert live.agents["one"].spec.runtime_policy.cost == "known"


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"skill_policy": "{deny: [echo], allow: ['*']}"}, ("deny", f"{FILE}:6")),
        ({"skill_policy": "{ask: [echo], allow: ['*']}"}, ("ask", f"{FILE}:6")),
        ({"skill_policy": "{allow: [calculator]}"}, ("deny", f"{FILE}:6")),
        ({"runtime_policy": "{confirm: {from: low}}"}, ("ask", f"{FILE}:7")),
    ],
)
def test_a_restriction_takes_effect_although_the_edit_is_invalid(
    tmp_path: Path, broken: str, keys: dict[str, str], expected: tuple[str, str]
) -> None:
    before, after = edited(project(tmp_path), BROKEN[broken](keys))

    assert verdict(before, "echo", text="x")[0] == "allow"
    assert verdict(after, "echo", text="x") == expected
    assert verdict(after, "calculator", expression="1")[0] == ("ask" if expected[1].endswith("7") else "allow")
    assert ("echo" in after.agents["one"].toolset.offered) is (expected[0] == "ask")
    assert after.errors, "the edit is still reported as broken"
    assert after.agents["one"].instructions("en", {}, None) == "Hello.", "otherwise the last good version is live"


@pytest.mark.parametrize("broken", BROKEN)
def test_additional_permissions_of_an_invalid_edit_wait(tmp_path: Path, broken: str) -> None:
    root = project(tmp_path, skill_policy="{deny: [echo], allow: [calculator]}", runtime_policy="{max_steps: 3}")
    keys = {"skill_policy": "{allow: ['*']}", "runtime_policy": "{max_steps: 9, risk_level: critical, timeout: 1s}"}
    _, after = edited(root, BROKEN[broken](keys))

    live = after.agents["one"]
    assert verdict(after, "echo", text="x")[0] == verdict(after, "read_file", path="x")[0] == "deny"
    assert verdict(after, "calculator", expression="1")[0] == "allow"
    policy = live.spec.runtime_policy
    assert (policy.max_steps, policy.risk_level, policy.timeout) == (3, "medium", 1.0)
    assert live.place("runtime_policy", "timeout") == f"{FILE}:7"


def test_valid_rules_take_effect_and_invalid_ones_are_named(tmp_path: Path) -> None:
    _, after = edited(project(tmp_path), {FILE: one(skill_policy=BROKEN_IN_THE_RULES)})

    assert verdict(after, "echo", text="x") == ("deny", f"{FILE}:6")
    messages = [problem.message for problem in after.problems if problem.severity == "warning"]
    assert any(message.startswith("skill_policy.deny.1 is NOT in effect") for message in messages)
    assert any(message.startswith("skill_policy.alow is NOT in effect") for message in messages)
    assert any(message.startswith("only the restrictions in this file are in effect") for message in messages)


@pytest.mark.parametrize("text", ["name: [", "- a\n", "a: 1\na: 2\n", "\x00"])
def test_a_file_that_is_not_yaml_restricts_nothing_and_is_reported(tmp_path: Path, text: str) -> None:
    _, after = edited(project(tmp_path), {FILE: text})

    found = [problem for problem in after.problems if "NOT in effect" in problem.message]
    assert [(problem.path, problem.severity) for problem in found] == [(FILE, "warning")]
    assert "the last good version of 'one' stays in effect" in found[0].message


def test_a_restriction_is_removed_with_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path)
        async with Runtime.open(root, watch=False) as runtime:
            good = runtime.catalog.current.agents["one"]
            write(root, {FILE: one(skill_policy="{deny: [echo], allow: ['*']}", max_stepz="1")})
            denied = (await runtime.reload()).agents["one"]
            write(root, {FILE: one(skill_policy="{deny: [calculator], allow: ['*']}", max_stepz="1")})
            other = await runtime.reload()
            assert "echo" not in denied.toolset.offered
            assert verdict(other, "echo")[0] == "allow", "the file as saved last, over the last good version"
            assert verdict(other, "calculator")[0] == "deny"
            write(root, {FILE: one()})
            again = (await runtime.reload()).agents["one"]
            assert (again.spec, again.digest, again.stale) == (good.spec, good.digest, ())
            await runtime.catalog.rollback(2)
            assert verdict(runtime.catalog.current, "echo")[0] == "deny", "a rollback restores the restriction"

    asyncio.run(main())


def test_in_strict_mode_only_restrictions_take_effect(tmp_path: Path) -> None:
    root = project(tmp_path)
    write(root, {"agents.d/two.yaml": agent("two", model="offline")})
    files = {
        FILE: one(skill_policy="{deny: [echo], allow: ['*']}", description="New."),
        "agents.d/two.yaml": agent("two", model="offline", max_stepz="1"),
    }
    before, after = edited(root, files, STRICT)

    assert verdict(after, "echo")[0] == "deny"
    assert after.agents["one"].spec.description == before.agents["one"].spec.description
    assert after.agents["two"] is before.agents["two"]


def test_deleting_a_file_next_to_invalid_settings_removes_its_agent(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(project(tmp_path), {"agents.d/two.yaml": agent("two", model="offline")})
        async with Runtime.open(root, watch=False) as runtime:
            (root / "agents.d/two.yaml").unlink()
            write(root, {"agentsd.yaml": "model: ["})
            assert (await runtime.reload()).agents.keys() == {"one"}

    asyncio.run(main())


def test_tool_limits_are_lowered_although_agentsd_yaml_is_invalid_elsewhere(tmp_path: Path) -> None:
    text = "tools: {{unprotected: [{0}], http: {{domains: [{1}], methods: [GET, POST]}}}}\n{2}"
    root = write(project(tmp_path), {"agentsd.yaml": text.format("a, b", "x.com, y.com", "")})
    _, after = edited(root, {"agentsd.yaml": text.format("a, c", "x.com, z.com", "locael: en\n")})

    tools = after.settings.tools
    assert (tools.unprotected, tools.http.domains) == (("a",), ("x.com",))
    assert [problem.line for problem in after.errors] == [2]


def test_invalid_tool_limits_are_named(tmp_path: Path) -> None:
    root = write(project(tmp_path), {"agentsd.yaml": "tools: {http: {domains: [x.com], max_bytes: 10}}\n"})
    _, after = edited(root, {"agentsd.yaml": "tools: {http: {domains: [5], max_bytes: 5}}\n"})

    assert after.settings.tools.http.max_bytes == 5
    assert any("tools.http.domains is NOT in effect" in problem.message for problem in after.problems)


def test_a_restriction_in_a_moved_and_invalid_file_names_the_new_file(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, skill_policy="{deny: [write_file], allow: ['*']}")
        async with Runtime.open(root, watch=False) as runtime:
            (root / FILE).unlink()
            moved = one(skill_policy="{deny: [write_file, echo], allow: ['*']}")
            write(root, {"agents.d/moved.yaml": "# moved\n" + moved, "prompts/_c.j2": "{{ nothing"})
            generation = await runtime.reload()
            assert verdict(generation, "echo", text="x") == ("deny", "agents.d/moved.yaml:7")
            assert verdict(generation, "write_file")[1] == f"{FILE}:6", "unchanged: the place in the last good version"

    asyncio.run(main())


def test_a_run_in_progress_is_denied_its_next_call(tmp_path: Path) -> None:
    root = project(tmp_path)

    @tool(risk="low")
    async def edit() -> str:
        """Deny echo in a file with a broken include."""
        files = BROKEN["a shared template"]({"skill_policy": "{deny: [echo], allow: ['*']}"})
        await asyncio.to_thread(write, root, files)
        await opened[0].reload()
        return "edited"

    opened: list[Runtime] = []

    async def main() -> RunResult:
        model = ScriptedModel(calls(("edit", {}), prefix="e"), calls(("echo", {"text": "x"})), "done")
        async with Runtime.open(root, tools=[edit], models={"offline": model}, watch=False) as runtime:
            opened.append(runtime)
            return await runtime.run("go")

    assert [call.status for call in asyncio.run(main()).tool_calls] == ["success", "denied"]


def test_an_edit_rejected_by_the_gate_restricts_nothing_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = "cases: [{name: echoes, message: hi, model: [{calls: [{call: echo, arguments: {text: x}}]}, {say: x}],"
    root = write(project(tmp_path), {"agents.d/one.test.yaml": "version: 1\n" + case + " expect: {called: [echo]}}]\n"})
    gated = Settings(reload=ReloadSettings(gate="tests"))
    with caplog.at_level(logging.ERROR):
        before, after = edited(root, {FILE: one(skill_policy="{deny: [echo], allow: ['*']}")}, gated)

    assert after is before
    assert "the restrictions of this edit are NOT in effect for one" in caplog.text


# --- arbitrary edits

TOOLS = ("echo", "calculator", "read_file", "write_file")
PATTERNS = st.sampled_from([*TOOLS, "*", "c*", "[er]*", "?c??"])
RULES = st.lists(PATTERNS, max_size=2, unique=True)
RIGHTS = st.fixed_dictionaries(
    {
        "deny": RULES,
        "ask": RULES,
        "allow": st.lists(PATTERNS, max_size=3, unique=True),
        "max_steps": st.integers(1, 5),
        "risk_level": st.sampled_from(["low", "medium", "high"]),
        "from": st.sampled_from(["low", "medium", "high", "never"]),
    }
)
KINDS = {"allow": 0, "ask": 1, "deny": 2}


def keys_of(rights: dict[str, Any]) -> dict[str, str]:
    lists = {name: str(rights[name]) for name in ("deny", "ask", "allow")}
    policy = ", ".join(f"{name}: {items}" for name, items in lists.items())
    confirm = f"confirm: {{from: {rights['from']}}}"
    limits = f"{{max_steps: {rights['max_steps']}, risk_level: {rights['risk_level']}, {confirm}}}"
    return {"skill_policy": f"{{{policy}}}", "runtime_policy": limits}


def strictness(rights: dict[str, Any], name: str, risk: str) -> int:
    """The verdict of one version, computed independently of the implementation."""
    risks = ["low", "medium", "high", "critical", "never"]

    def lists(key: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in rights[key])

    if lists("deny") or risks.index(risk) > risks.index(rights["risk_level"]):
        return 2
    if not lists("allow") and not lists("ask"):
        return 2
    return 1 if lists("ask") or risks.index(risk) >= risks.index(rights["from"]) else 0


@cases(25)
@given(started=RIGHTS, saved=RIGHTS, broken=st.sampled_from([*BROKEN]))
def test_the_live_agent_is_as_strict_as_both_versions_and_no_stricter(
    started: dict[str, Any], saved: dict[str, Any], broken: str
) -> None:
    with TemporaryDirectory() as folder:
        root = project(Path(folder), **keys_of(started))
        _, after = edited(root, BROKEN[broken](keys_of(saved)))

    live = after.agents["one"]
    assert live.spec.runtime_policy.max_steps == min(started["max_steps"], saved["max_steps"])
    for name in TOOLS:
        risk = after.tools[name].risk
        expected = max(strictness(rights, name, risk) for rights in (started, saved))
        assert KINDS[verdict(after, name)[0]] == expected, name
        assert expected == 2 or name in live.toolset.offered
        assert expected != 2 or name not in live.toolset.offered


def test_problems_keep_their_files(tmp_path: Path) -> None:
    _, after = edited(project(tmp_path), BROKEN["another key"]({"skill_policy": "{deny: [echo], allow: []}"}))
    assert {problem.path for problem in after.problems} == {FILE}
    assert all(isinstance(problem, Problem) for problem in after.problems)
