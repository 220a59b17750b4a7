"""What a builder keeps from one build to the next does not change the result."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.generation import Generation, empty_generation
from framework.config.generations.reload_effects import SettingsFile
from framework.config.settings import Settings
from framework.config.snapshot import build_snapshot
from tests.support.cases import cases
from tests.support.projects import agent

NAMES = ("a", "b", "c", "d")
NO_AGENT = "version: 1\nname: [\n"
VARIANTS: tuple[dict[str, str], ...] = (
    {},
    {"description": "Other."},
    {"sub_agents": "[a]"},
    {"sub_agents": "[b, d]"},
    {"handoffs": "[a]"},
    {"handoffs": "[b, d]"},
    {"inputs": "{city: {}}"},
    {"instructions": "{template: house.j2}"},
    {"budgets": "[team]"},
    {"model": "openai/unknown", "runtime_policy": "{max_cost_usd: 1}"},
    {"model": "openai/unknown", "runtime_policy": "{max_cost_usd: 1, cost: unknown_ok}"},
    {"model": "own/x"},
    {"skill_policy": "{deny: [{tool: none_such}], allow: []}"},
    {"skill_policy": "{deny: [{tool: none_such, optional: true}, echo, echo], allow: []}"},
    {"skill_policy": "{allow: [missing]}"},
    {"unknown_key": "1"},
)


def text_of(name: str, variant: dict[str, str]) -> str:
    return agent(name, **{"model": "offline", **variant})


TEXTS = st.builds(text_of, st.sampled_from(NAMES), st.sampled_from(VARIANTS))
EDITS = st.dictionaries(
    st.sampled_from([f"agents.d/{name}.yaml" for name in (*NAMES, "e")]),
    st.one_of(TEXTS, st.just(NO_AGENT), st.none()),
    min_size=1,
    max_size=3,
) | st.sampled_from(
    [
        {"prompts/house.j2": "The house."},
        {"prompts/house.j2": "The {{ unknown }} house."},
        {"agentsd.yaml": "budgets: {team: {max_cost_usd: 5, per: day}}\n"},
        {"agentsd.yaml": "models: {own/x: {model: openai/x}}\n"},
    ]
)


def new_builder() -> GenerationBuilder:
    return GenerationBuilder((), ["react", "plan"], ["offline", "openai/"], SettingsFile(Settings(), fixed=False))


def visible(generation: Generation) -> object:
    agents = {
        name: (one.spec, one.path, one.digest, one.document.source, one.stale, one.warnings, one.last_good.digest)
        for name, one in generation.agents.items()
    }
    rest = (generation.problems, generation.missing_sdks, generation.budgets, generation.plugins)
    return list(agents.items()), rest, dict(generation.files), generation.digest, generation.rejection


@cases(50)
@given(edits=st.lists(EDITS, min_size=1, max_size=8), live=st.lists(st.booleans(), min_size=8, max_size=8))
def test_the_result_equals_that_of_a_new_builder(edits: list[dict[str, str | None]], live: list[bool]) -> None:
    """Also if some of the generations are not published, and the next one is built from an earlier one."""
    snapshot, builder = build_snapshot({}, (), {}), new_builder()
    before = expected = empty_generation(Settings())
    for edit, is_live in zip(edits, live, strict=False):
        changes = {path: None if text is None else text.encode() for path, text in edit.items()}
        snapshot = snapshot.edited(changes, (), {})
        built = builder.build(snapshot, before, ExternalTools())
        all_new = new_builder().build(snapshot, expected, ExternalTools())
        assert visible(built) == visible(all_new)
        if is_live and not built.rejection:
            before, expected = built, all_new


def test_agents_that_an_edit_does_not_affect_stay_the_same_objects() -> None:
    texts = {f"agents.d/{number}.yaml": agent(f"agent-{number}", model="offline").encode() for number in range(20)}
    texts["agents.d/parent.yaml"] = agent("parent", model="offline", sub_agents="[agent-3]").encode()
    builder, snapshot = new_builder(), build_snapshot(texts, (), {})
    first = builder.build(snapshot, empty_generation(Settings()), ExternalTools())
    new = agent("agent-7", model="offline", description="New.").encode()
    second = builder.build(snapshot.edited({"agents.d/7.yaml": new}, (), {}), first, ExternalTools())
    assert second.agents["agent-7"].spec.description == "New."
    assert {name for name, one in second.agents.items() if one is not first.agents[name]} == {"agent-7"}
    assert list(second.agents) == list(first.agents)
