"""Reloads: valid files are published; an invalid file keeps its last good version and reports its problems."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.config.agents.link import LinkContext, ParsedAgent
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.config.settings import ReloadSettings, Settings
from framework.types.events import ConfigRejected, ConfigReloaded
from tests.support.cases import cases
from tests.support.catalogs import BAD, ORDERS, THREE, Project, one
from tests.support.projects import agent, write

# --- single files


def test_at_the_first_load_an_invalid_file_does_not_affect_the_others(tmp_path: Path) -> None:
    project = Project(tmp_path, {**THREE, "agents.d/b.yaml": BAD})
    assert list(project.live) == ["a", "c"]
    assert [problem.path for problem in project.catalog.current.errors] == ["agents.d/b.yaml"]
    assert project.last_changes() == (["a", "c"], [], [])
    assert not project.stale()


def test_an_invalid_edit_keeps_the_last_good_agent_and_publishes_the_others(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    old = project.live["b"]
    generation = project.reload({"agents.d/b.yaml": BAD, "agents.d/c.yaml": one("c", "New.")})
    assert generation.number == 2
    assert (project.live["b"].spec, project.live["b"].digest) == (old.spec, old.digest)
    assert project.stale() == {"b"}
    assert project.live["b"].stale == generation.errors
    assert project.live["c"].spec.description == "New."
    assert project.last_changes() == ([], ["c"], [])


def test_fixing_a_file_makes_its_new_version_live(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/b.yaml": BAD})
    project.reload({"agents.d/b.yaml": one("b", "Fixed.")})
    assert (project.live["b"].spec.description, project.stale(), project.errors) == ("Fixed.", set(), [])
    assert project.last_changes() == ([], ["b"], [])


def test_reverting_a_file_clears_the_stale_mark_and_changes_nothing_else(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    before = project.live["b"]
    project.reload({"agents.d/b.yaml": BAD})
    project.reload({"agents.d/b.yaml": one("b")})
    assert project.live["b"] == before
    assert project.errors == []
    assert project.last_changes() == ([], [], [])


def test_one_bad_version_after_another_keeps_the_first_good_one(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", "Good.")})
    for bad in (BAD, "", one("a", executor="nope"), BAD + "\n"):
        project.reload({"agents.d/a.yaml": bad})
        assert project.live["a"].spec.description == "Good."
        assert project.live["a"].stale == project.catalog.current.errors


def test_a_file_that_was_never_valid_defines_no_agent_until_it_is(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": BAD})
    assert not project.live
    assert isinstance(project.events[-1], ConfigRejected)
    project.reload({"agents.d/a.yaml": one("a")})
    assert project.last_changes() == (["a"], [], [])


def test_equal_bytes_do_not_create_a_generation(tmp_path: Path) -> None:
    project = Project(tmp_path, {**THREE, "prompts/x.j2": "x", "plugins/orders.py": ORDERS})
    before = project.catalog.current
    os.utime(tmp_path / "agents.d/a.yaml", (1, 1))
    (tmp_path / "agents.d/a.yaml").chmod(0o600)
    assert project.reload({**THREE, "prompts/x.j2": "x"}) is before
    assert len(project.events) == 1


def test_an_edit_reverted_between_two_scans_does_not_create_a_generation(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    before = project.catalog.current
    write(tmp_path, {"agents.d/a.yaml": BAD, "agents.d/new.yaml": one("new")})
    assert project.reload({"agents.d/a.yaml": one("a")}, delete=("agents.d/new.yaml",)) is before


def test_agents_whose_files_did_not_change_stay_the_same_objects(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    before = dict(project.live)
    project.reload({"agents.d/b.yaml": one("b", "New.")})
    assert project.live["a"] is before["a"]
    assert project.live["c"] is before["c"]
    assert project.live["b"] is not before["b"]


def test_a_deleted_file_is_a_removed_agent(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload(delete=("agents.d/b.yaml",))
    assert list(project.live) == ["a", "c"]
    assert project.last_changes() == ([], [], ["b"])


def test_deleting_a_broken_file_removes_its_last_good_version_too(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/b.yaml": BAD})
    project.reload(delete=("agents.d/b.yaml",))
    assert (list(project.live), project.errors) == (["a", "c"], [])


def test_a_renamed_file_is_a_move(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    (tmp_path / "agents.d/b.yaml").rename(tmp_path / "agents.d/moved.yml")
    project.reload()
    assert project.live["b"].path == "agents.d/moved.yml"
    assert project.last_changes() == ([], [], [])


def test_a_file_that_is_moved_and_broken_at_once_keeps_its_last_good_version(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/moved.yaml": one("b", executor="nope")}, delete=("agents.d/b.yaml",))
    assert project.stale() == {"b"}
    project.reload({"agents.d/moved.yaml": one("b", executor="nope either")})
    assert project.stale() == {"b"}
    project.reload({"agents.d/moved.yaml": one("b", "Fixed.")})
    assert (project.live["b"].spec.description, project.stale()) == ("Fixed.", set())


def test_a_new_name_in_a_file_is_a_new_agent_instead_of_the_old_one(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/b.yaml": one("d")})
    assert project.last_changes() == (["d"], [], ["b"])


# --- two files with one name


def test_at_the_first_load_two_files_with_one_name_are_both_rejected(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/x.yaml": one("a"), "agents.d/y.yaml": one("a"), "agents.d/z.yaml": one("z")})
    assert list(project.live) == ["z"]
    assert project.errors == [
        "agents.d/x.yaml:2:7: the name 'a' is also used by agents.d/y.yaml",
        "agents.d/y.yaml:2:7: the name 'a' is also used by agents.d/x.yaml",
    ]
    project.reload(delete=("agents.d/x.yaml",))
    assert (list(project.live), project.errors) == (["a", "z"], [])


def test_the_live_one_of_two_files_with_one_name_stays(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/y.yaml": one("a", "Old owner.")})
    old = project.live["a"]
    project.reload({"agents.d/x.yaml": one("a", "New.")})
    assert project.live["a"] is old
    assert [error.partition(": ")[0] for error in project.errors] == ["agents.d/x.yaml:2:7", "agents.d/y.yaml:2:7"]
    project.reload({"agents.d/y.yaml": one("a", "Old owner, edited.")})
    assert project.live["a"].spec.description == "Old owner, edited."
    project.reload(delete=("agents.d/y.yaml",))
    assert (project.live["a"].spec.description, project.errors) == ("New.", [])


def test_a_file_that_takes_anothers_name_keeps_its_last_good_version(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/b.yaml": one("a", "Thief.")})
    assert list(project.live) == ["a", "b", "c"]
    assert project.stale() == {"b"}
    assert project.live["a"].spec.description == "The agent a."


def test_two_files_can_swap_their_names(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/a.yaml": one("b"), "agents.d/b.yaml": one("a")})
    assert {name: agent.path for name, agent in project.live.items()} == {
        "a": "agents.d/b.yaml",
        "b": "agents.d/a.yaml",
        "c": "agents.d/c.yaml",
    }
    assert project.errors == []


def test_when_half_of_a_swap_fails_both_agents_stay_unchanged(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    project.reload({"agents.d/a.yaml": one("b", executor="nope"), "agents.d/b.yaml": one("a")})
    assert {name: agent.path for name, agent in project.live.items()} == {
        "a": "agents.d/a.yaml",
        "b": "agents.d/b.yaml",
        "c": "agents.d/c.yaml",
    }
    assert project.stale() == {"a", "b"}


# --- references


@pytest.mark.parametrize(
    ("keys", "place", "message"),
    [
        ({"skill_policy": "{allow: ['*', ech]}"}, "6:29", "there is no tool 'ech'; did you mean echo?"),
        ({"skill_policy": "{allow: [agent.x]}"}, "6:24", "there is no tool 'agent.x'"),
        ({"instructions": "{template: systm.j2}"}, "5:26", "there is no template 'systm.j2'; did you mean system.j2"),
        ({"executor": "plam"}, "7:11", "there is no executor 'plam'; did you mean plan?"),
        ({"model": "opnai/gpt"}, "4:8", "unknown model 'opnai/gpt'; did you mean openai?"),
        ({"model": "dashscope/qwen-turbo"}, "4:8", "unknown model 'dashscope/qwen-turbo': write qwen/… for its models"),
        ({"model": "google/gemini-3-pro"}, "4:8", "unknown model 'google/gemini-3-pro': write gemini/… for its models"),
        ({"sub_agents": "[a, othr]"}, "7:17", "there is no usable agent 'othr'; did you mean other?"),
        ({"handoffs": "[other, othr]"}, "7:19", "there is no usable agent 'othr'; did you mean other?"),
        ({"handoffs": "[b]"}, "7:12", "the agent 'b' cannot hand its conversation over to itself"),
        (
            {"handoffs": "[other]", "executor": "plan"},
            "7:1",
            "an agent that may write plans cannot hand its conversation",
        ),
        ({"inputs": "{message: {}}"}, "7:10", "an input cannot be named `message`"),
        ({"inputs": "{_x: {}}"}, "7:10", "invalid input name '_x'"),
        ({"inputs": "{__base__: {}}"}, "7:10", "invalid input name '__base__'"),
        ({"inputs": "{model_dump: {}}"}, "7:10", "invalid input name 'model_dump'"),
        ({"inputs": "{a b: {}}"}, "7:10", "invalid input name 'a b'"),
        ({"inputs": "{n: {type: integer, default: x}}"}, "7:38", "the default is not of type integer"),
    ],
)
def test_an_unresolved_reference_is_a_problem_at_its_place(
    tmp_path: Path, keys: dict[str, str], place: str, message: str
) -> None:
    project = Project(tmp_path, {"agents.d/b.yaml": one("b", **keys), "agents.d/o.yaml": one("other")})
    wrong = [error for error in project.errors if not error.startswith("agents.d/b.yaml:7:14: there is no usable")]
    assert len(wrong) == 1
    assert wrong[0].startswith(f"agents.d/b.yaml:{place}: {message}")
    assert list(project.live) == ["other"]


def test_all_problems_of_a_file_are_reported_together(tmp_path: Path) -> None:
    keys = {"executor": "x", "model": "x/y", "skill_policy": "{allow: [x, y]}", "sub_agents": "[x]"}
    project = Project(tmp_path, {"agents.d/b.yaml": one("b", **keys)})
    assert [error.split(":")[1] for error in project.errors] == ["4", "6", "6", "7", "8"]


def test_a_type_error_does_not_hide_unresolved_references(tmp_path: Path) -> None:
    keys = {"executor": "plam", "skill_policy": "{allow: [read_fiel]}", "runtime_policy": "{max_steps: ten}"}
    text = one("b", **keys, max_stepz="1")
    project = Project(tmp_path, {"agents.d/b.yaml": text})
    found = "\n".join(project.errors)
    for message in ("unknown key 'max_stepz'", "must be a whole number", "no tool 'read_fiel'", "no executor 'plam'"):
        assert found.count(message) == 1, message


def test_references_work_in_any_order_of_writing(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", sub_agents="[z]", instructions="{template: x.j2}")})
    assert not project.live
    project.reload({"prompts/x.j2": "x"})
    assert not project.live
    project.reload({"agents.d/z.yaml": one("z")})
    assert (list(project.live), project.errors) == (["a", "z"], [])


def test_sub_agents_may_be_named_in_the_policy(tmp_path: Path) -> None:
    keys = {"sub_agents": "[z]", "skill_policy": "{allow: [agent.z]}"}
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", **keys), "agents.d/z.yaml": one("z")})
    assert (list(project.live["a"].toolset.offered), project.errors) == (["agent.z"], [])


def test_a_parent_sees_the_current_version_of_its_sub_agent(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": one("a", sub_agents="[z]"), "agents.d/z.yaml": one("z", "Old.")}
    project = Project(tmp_path, files)
    project.reload({"agents.d/z.yaml": one("z", "New.", inputs="{order: {type: string}}")})
    definition = project.live["a"].toolset.offered["agent.z"].definition
    assert (definition.description, set(definition.parameters["properties"])) == ("New.", {"message", "order"})
    assert project.last_changes() == ([], ["a", "z"], [])


def test_a_change_that_a_parent_cannot_see_does_not_rebuild_it(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", sub_agents="[z]"), "agents.d/z.yaml": one("z")})
    before = project.live["a"]
    project.reload({"agents.d/z.yaml": one("z", instructions="Other.")})
    assert project.live["a"] is before


def test_an_agent_whose_sub_agent_is_removed_keeps_its_last_good_version(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", sub_agents="[z]"), "agents.d/z.yaml": one("z")})
    project.reload(delete=("agents.d/z.yaml",))
    assert project.stale() == {"a"}
    assert project.errors == ["agents.d/a.yaml:7:14: there is no usable agent 'z'; there are none"]


def test_a_parent_of_an_invalid_agent_uses_its_last_good_version(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": one("a", sub_agents="[z]"), "agents.d/z.yaml": one("z", inputs="{old: {}}")}
    project = Project(tmp_path, files)
    before = project.live["a"]
    project.reload({"agents.d/z.yaml": one("z", inputs="{new: {}}", executor="nope")})
    assert project.stale() == {"z"}
    assert project.live["a"] is before


def test_a_parent_of_an_agent_that_was_never_valid_is_rejected(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": one("a", sub_agents="[y]"), "agents.d/y.yaml": one("y", sub_agents="[z]")}
    project = Project(tmp_path, {**files, "agents.d/z.yaml": one("z", executor="nope"), "agents.d/ok.yaml": one("ok")})
    assert list(project.live) == ["ok"]
    assert len(project.errors) == 3


def test_a_cycle_of_sub_agents_is_rejected_at_every_reference(tmp_path: Path) -> None:
    circle = {"a": "[b]", "b": "[c]", "c": "[a]", "d": "[a]", "e": "[e]"}
    files = {f"agents.d/{name}.yaml": one(name, sub_agents=subs) for name, subs in circle.items()}
    project = Project(tmp_path, {**files, "agents.d/ok.yaml": one("ok")})
    assert list(project.live) == ["ok"]
    assert project.errors == [
        "agents.d/a.yaml:7:14: agents form a cycle: a -> b -> c -> a",
        "agents.d/b.yaml:7:14: agents form a cycle: b -> c -> a -> b",
        "agents.d/c.yaml:7:14: agents form a cycle: c -> a -> b -> c",
        "agents.d/d.yaml:7:14: there is no usable agent 'a'; there are: ok",
        "agents.d/e.yaml:7:14: agents form a cycle: e -> e",
    ]


def test_the_edit_that_closes_a_cycle_is_the_one_rejected(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": one("a", sub_agents="[b]"), "agents.d/b.yaml": one("b", sub_agents="[c]")}
    project = Project(tmp_path, {**files, "agents.d/c.yaml": one("c")})
    before = dict(project.live)
    project.reload({"agents.d/c.yaml": one("c", sub_agents="[a]")})
    assert project.stale() == {"c"}
    assert [error.partition(": ")[2] for error in project.errors] == ["agents form a cycle: c -> a -> b -> c"]
    assert all(project.live[name] is before[name] for name in "ab")


def test_an_allow_rule_that_matches_no_tool_remains_a_warning(tmp_path: Path) -> None:
    policy = "{deny: [{tool: 'orders.*', optional: true}], allow: ['mcp.*', echo]}"
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=policy), "agents.d/b.yaml": one("b")})
    expected = ["agents.d/a.yaml:6: the allow rule 'mcp.*' matches no tool"]
    assert (project.warnings, project.errors, project.stale()) == (expected, [], set())
    project.reload({"agents.d/b.yaml": one("b", "New.")})
    assert project.warnings == expected


def test_rules_are_checked_again_when_their_tools_appear_change_and_disappear(tmp_path: Path) -> None:
    policy = "{deny: ['orders.*', {tool: 'orders.lookup', when: {order: '> 5'}}], allow: [echo]}"
    project = Project(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=policy), "agents.d/b.yaml": one("b")})
    assert ["matches no tool" in error for error in project.errors] == [True, True]
    assert list(project.live) == ["b"]
    project.reload({"plugins/orders.py": ORDERS})
    assert (project.errors, list(project.live)) == ([], ["a", "b"])
    project.reload({"plugins/orders.py": ORDERS.replace("order", "number")})
    assert ["has no argument 'order'" in error for error in project.errors] == [True]
    assert project.stale() == {"a"}


# --- events


def test_problems_are_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    files = {"plugins/b.py": "x\n(", "prompts/a.j2": "\n{{", "agents.d/z.yaml": BAD, "agents.d/a.yaml": "x: 1\ny: 2\n"}
    project = Project(tmp_path, files)
    places = [(problem.path, problem.line) for problem in project.catalog.current.problems]
    assert places == sorted(places)
    assert {path for path, _ in places} == set(files)


def test_an_invalid_edit_emits_a_rejected_event(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    generation = project.reload({"agents.d/b.yaml": BAD})
    event = project.events[-1]
    assert isinstance(event, ConfigRejected)
    assert (event.generation, event.problems) == (generation.number, generation.problems)


def test_the_reload_event_names_generation_and_digest(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)
    generation = project.reload(
        {"agents.d/d.yaml": one("d"), "agents.d/a.yaml": one("a", "x")}, delete=("agents.d/b.yaml",)
    )
    event = project.events[-1]
    assert isinstance(event, ConfigReloaded)
    assert (event.generation, event.digest) == (2, generation.digest)
    assert project.last_changes() == (["d"], ["a"], ["b"])


def test_a_subscriber_that_fails_or_unsubscribes_does_not_affect_others(tmp_path: Path) -> None:
    project = Project(tmp_path, THREE)

    def fail(event: object) -> None:
        raise RuntimeError("no")

    heard: list[object] = []
    project.catalog.subscribe(fail)
    leave = project.catalog.subscribe(heard.append)
    project.reload({"agents.d/a.yaml": one("a", "2")})
    leave()
    project.reload({"agents.d/a.yaml": one("a", "3")})
    assert (len(heard), len(project.events)) == (1, 3)


def test_waiting_ends_when_the_generation_is_live(tmp_path: Path) -> None:
    async def wait() -> tuple[int, int]:
        catalog = Catalog(write(tmp_path, THREE), tools=[], executors=["react"], models=["offline"])
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waiting = group.create_task(catalog.wait_generation(2))
            await catalog.reload()
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            await catalog.reload()
        return waiting.result().number, (await catalog.wait_generation(1)).number

    assert asyncio.run(wait()) == (2, 2)


def test_concurrent_reloads_build_one_generation(tmp_path: Path) -> None:
    async def together() -> list[Generation]:
        catalog = Catalog(write(tmp_path, THREE), tools=[], executors=["react"], models=["offline"])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(catalog.reload()) for _ in range(8)]
        return [task.result() for task in tasks]

    assert len({id(generation) for generation in asyncio.run(together())}) == 1


# --- random edits

FILES = ("a", "b", "c")
GOOD_STEP = st.tuples(st.just("good"), st.sampled_from(FILES), st.integers(0, 3))
BAD_STEP = st.tuples(st.just("bad"), st.sampled_from(FILES), st.integers(0, 2))
DELETE_STEP = st.tuples(st.just("delete"), st.sampled_from(FILES), st.just(0))
BAD_TEXTS = (BAD, one("x", executor="nope"), "version: 1\n")


@cases(15)
@given(batches=st.lists(st.lists(GOOD_STEP | BAD_STEP | DELETE_STEP, max_size=4), max_size=8))
@example(batches=[[("good", "a", 0)], [("bad", "a", 1)], [("delete", "a", 0)], [("bad", "a", 0)], [("good", "a", 0)]])
def test_the_last_good_version_of_every_file_is_live(batches: list[list[tuple[str, str, int]]]) -> None:
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        last_good: dict[str, str] = {}
        disk: dict[str, str] = {}
        for batch in batches:
            for kind, name, number in batch:
                if kind == "delete":
                    disk.pop(name, None)
                    (project.root / f"agents.d/{name}.yaml").unlink(missing_ok=True)
                else:
                    disk[name] = one(name, f"Version {number}.") if kind == "good" else BAD_TEXTS[number]
                    write(project.root, {f"agents.d/{name}.yaml": disk[name]})
            before, generation = project.catalog.current, project.reload()
            good = {name: text for name, text in disk.items() if text not in BAD_TEXTS}
            last_good = {name: good.get(name, last_good.get(name, "")) for name in disk}
            last_good = {name: text for name, text in last_good.items() if text}
            live = {name: one(name, agent.spec.description) for name, agent in generation.agents.items()}
            assert live == last_good
            assert {name for name, agent in generation.agents.items() if agent.stale} == last_good.keys() - good.keys()
            assert {Path(problem.path).stem for problem in generation.errors} == disk.keys() - good.keys()
            for name, agent in generation.agents.items():
                same = name in before.agents and before.agents[name].digest == agent.digest
                assert not (same and agent.stale == before.agents[name].stale) or agent is before.agents[name]


def test_cached_digests_of_earlier_file_versions_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[LinkContext] = []
    reference_digest = LinkContext.reference_digest

    def recording(context: LinkContext, parsed: ParsedAgent) -> str:
        contexts.append(context)
        return reference_digest(context, parsed)

    monkeypatch.setattr(LinkContext, "reference_digest", recording)
    project = Project(tmp_path, {"agents.d/a.yaml": agent("a"), "agents.d/b.yaml": agent("b")})
    for number in range(5):
        project.reload({"agents.d/a.yaml": agent("a", description=f"Version {number}.")})
    assert contexts[0] is contexts[-1]
    assert len(contexts[-1].digests) == 2


def test_a_built_candidate_is_not_published_by_a_refresh(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")})
    write(tmp_path, {"agents.d/b.yaml": agent("b", model="offline")})

    async def scene() -> None:
        candidate = await project.catalog.prepare(project.catalog.snapshot())
        assert candidate is not None
        assert list((await project.catalog.refresh()).agents) == ["a"], "it may still wait for its grace period"
        await project.catalog.publish(candidate)
        assert list((await project.catalog.refresh()).agents) == ["a", "b"]

    asyncio.run(scene())


def test_building_a_candidate_does_not_end_a_rollback(tmp_path: Path) -> None:
    project = Project(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")})
    project.reload({"agents.d/a.yaml": agent("a", model="offline", description="Bad.")})

    async def scene() -> None:
        bad = project.catalog.snapshot()
        held = await project.catalog.rollback(1)
        write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", description="Half")})
        assert await project.catalog.prepare(project.catalog.snapshot())
        assert await project.catalog.prepare(bad) is None
        assert project.catalog.current is held

    asyncio.run(scene())


def test_a_candidate_that_was_built_on_an_older_generation_is_not_published(tmp_path: Path) -> None:
    catalog = Project(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")}).catalog

    async def main() -> None:
        write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="Outdated.")})
        outdated = await catalog.prepare(catalog.snapshot())
        assert outdated is not None
        write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="Newest.")})
        newest = await catalog.reload()
        assert await catalog.publish(outdated) is newest

    asyncio.run(main())
    assert catalog.current.agents["a"].spec.instructions == "Newest."


def test_rejected_files_are_not_built_again(tmp_path: Path) -> None:
    settings = Settings(reload=ReloadSettings(mode="strict"))
    write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")})

    async def main() -> None:
        catalog = Catalog(tmp_path, tools=(), executors=["react"], models=["offline"], settings=settings, fixed=True)
        await catalog.reload()
        write(tmp_path, {"agents.d/a.yaml": BAD})
        live = await catalog.reload()
        assert live.number == 1
        assert await catalog.prepare(catalog.snapshot()) is None

    asyncio.run(main())


def test_after_a_rollback_the_same_files_are_not_loaded_again(tmp_path: Path) -> None:
    catalog = Project(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="First.")}).catalog

    async def main() -> None:
        write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="Second.")})
        await catalog.reload()
        rolled_back = await catalog.rollback(1)
        assert await catalog.reload() is rolled_back
        assert catalog.held

    asyncio.run(main())
    assert catalog.current.agents["a"].spec.instructions == "First."


def test_the_log_shows_a_line_of_a_file_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    project = Project(
        tmp_path, {"agents.d/one.yaml": agent("one", model="offline", runtime_policy="{risk_level: low}")}
    )
    project.reload({"agents.d/one.yaml": agent("one", model="offline", runtime_policy="{risk_levle: low}")})
    assert "risk_levle is NOT in effect" in caplog.text
    assert caplog.text.count("| runtime_policy: {risk_levle: low}") == 1
