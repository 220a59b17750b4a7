"""No exception escapes from building a generation, and a file that causes one does not hold back the others."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import framework.config
from framework.config.agents.toolbox import problem_from_exception
from framework.config.generations import builder, generation
from framework.config.generations.builder import GenerationBuilder
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.config.settings import ReloadSettings, Settings
from framework.config.snapshot import Snapshot
from framework.config.templates import prompts
from framework.tools.builtin import BUILTIN_TOOLS
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write

SETTINGS = """
    models: {own: {model: openai/x}}
    budgets: {team: {max_total_tokens: 5000, per: day}}
    work: {max_running: {agents: {nobody: 3}}}
    """
PLUGIN = '''
    from framework import tool

    @tool(risk="low")
    def lookup(order: str) -> str:
        """Look an order up."""
        return order
    '''
ASKS = "{allow: [orders.lookup], ask: [{tool: orders.lookup, when: {order: x}}]}"


FOR_ALL_CHECKS = {"executor": "plan", "sub_agents": "[stale]", "model_settings": "{temperature: 0}"}
"""Keys of an agent that is checked for cycles and for what its models support."""


def files(word: str, broken: str) -> dict[str, str]:
    """Return a project whose agents contain a word; `broken` is a line of `agents.d/stale.yaml`."""
    text = {"description": word, "model": "offline"}
    return {
        "agentsd.yaml": SETTINGS,
        "agents.d/a.yaml": agent("a", **text, instructions="{template: a.j2}", inputs="{city: {}}"),
        "agents.d/b.yaml": agent("b", **text, sub_agents="[a]", budgets="[team]", skill_policy=ASKS),
        "agents.d/c.yaml": agent("c", **text, fallback_models="[own]", **FOR_ALL_CHECKS),
        "agents.d/stale.yaml": agent("stale", **text) + broken,
        "prompts/a.j2": f"{word}: {{{{ city }}}}",
        "plugins/orders.py": PLUGIN,
    }


def catalog_of(root: Path) -> Catalog:
    executors, models = ["react", "plan"], ["offline", "openai/"]
    return Catalog(root, tools=(), executors=executors, models=models, settings=Settings.load(root))


class Injected(Exception):
    """The exception that a test raises somewhere in the build."""


Place = tuple[CodeType, int]
"""A function, and the number of its call during the build."""


@dataclass(frozen=True)
class World:
    """A project with its first generation, and an edit of it."""

    builder: GenerationBuilder
    empty: Generation
    before: Snapshot
    after: Snapshot
    first: Generation

    def build(self, place: Place | None = None) -> tuple[Generation, Counter[CodeType]]:
        """Build the edit; raise `Injected` at one place. Return also how often each function was called."""
        self.builder.build(self.before, self.empty, self.first.external)
        for cached in (prompts._compiled, prompts._analyzed):
            cached.cache_clear()  # so that each build calls the same functions
        calls: Counter[CodeType] = Counter()
        package = str(Path(framework.config.__file__).parent)

        def trace(frame: FrameType, event: str, argument: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(package) and code not in SHIELDED:
                calls[code] += 1
                if (code, calls[code]) == place:
                    raise Injected("from a test")

        sys.settrace(trace)
        try:
            return self.builder.build(self.after, self.first, self.first.external), calls
        finally:
            sys.settrace(None)


SHIELDED = {GenerationBuilder.build.__code__, builder._rejected.__code__, problem_from_exception.__code__}
"""The outermost function of the build, and what reports an exception."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = write(tmp_path_factory.mktemp("project"), files("Before", ""))
    catalog = catalog_of(root)
    empty, before = catalog.current, catalog.snapshot()
    first = asyncio.run(catalog.reload())
    assert not first.errors
    write(root, files("After", "runtime_policy: {max_steps: 3, max_stepz: 4}\nexecutor: plam\n"))
    return World(catalog._builder, empty, before, catalog.snapshot(), first)


# The exception may hit a generator that Python closes: there, every exception is ignored.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@given(st.data())
@cases(8)
def test_an_exception_at_any_place_of_the_build_becomes_a_problem(world: World, data: st.DataObject) -> None:
    expected, calls = world.build()
    assert len(calls) > 150
    code = data.draw(st.sampled_from(sorted(calls, key=lambda one: (one.co_filename, one.co_firstlineno))))
    place = code, data.draw(st.integers(1, calls[code]))
    built, _ = world.build(place)  # does not raise
    problems = [*built.problems, *built.rejection]
    injected = [problem for problem in problems if "Injected: from a test" in problem.message]
    if not injected:  # the code that failed was optional, such as the end of a generator
        assert descriptions(built) == descriptions(expected)
    elif not built.rejection:
        paths = {problem.path for problem in injected}
        held_back = {agent.path for agent in built.agents.values() if agent.spec.description == "Before"}
        dependent = {"agents.d/b.yaml"} if "agents.d/a.yaml" in paths else set()
        assert held_back <= paths | dependent | {"agents.d/stale.yaml"} or "prompts" in str(paths)


def descriptions(generation: Generation) -> dict[str, str]:
    return {name: agent.spec.description for name, agent in generation.agents.items()}


CHECKS_OF_AGENTS = [
    "builder.parse_agent",
    *(f"link.{name}" for name in ("cycle_problems", "compile_agent", "model_setting_problems", "price_problems")),
    *(f"compile.{name}" for name in ("unresolved_references", "prompt_problems", "lint", "build_agent")),
]
CHECKS_OF_BROKEN_AGENTS = [
    f"link.{name}" for name in ("read_valid_parts", "hidden_problems", "read_permissions", "permission_warnings")
]
CHECKS_OF_SETTINGS = ["setting_problems", "zero_price_warnings", "unused_limit_warnings"]


@pytest.fixture
def project(tmp_path: Path) -> tuple[Catalog, Path]:
    catalog = catalog_of(write(tmp_path, files("Before", "")))
    asyncio.run(catalog.reload())
    assert not catalog.current.errors
    return catalog, tmp_path


def fail_for(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    """Make a function raise if one of its arguments is about the file at `path`."""
    module, _, function = name.partition(".")
    package = "framework.config.generations" if module == "builder" else "framework.config.agents"
    target = f"{package}.{module}.{function}"
    original = getattr(sys.modules[f"{package}.{module}"], function)

    def failing(*arguments: Any, **options: Any) -> Any:
        if path in repr(arguments):
            raise Injected("from a test")
        return original(*arguments, **options)

    monkeypatch.setattr(target, failing)


def unexpected(catalog: Catalog) -> list[Problem]:
    return [problem for problem in catalog.current.errors if "Injected: from a test" in problem.message]


@pytest.mark.parametrize("name", CHECKS_OF_AGENTS)
def test_a_check_that_fails_for_one_agent_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch, project: tuple[Catalog, Path], name: str
) -> None:
    catalog, root = project
    fail_for(monkeypatch, name, "agents.d/c.yaml")
    write(root, files("After", ""))
    built = asyncio.run(catalog.reload())
    assert {problem.path for problem in unexpected(catalog)} == {"agents.d/c.yaml"}
    assert descriptions(built) == {"a": "After", "b": "After", "c": "Before", "stale": "After"}


@pytest.mark.parametrize("name", CHECKS_OF_BROKEN_AGENTS)
def test_a_check_that_fails_for_an_invalid_file_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch, project: tuple[Catalog, Path], name: str
) -> None:
    catalog, root = project
    fail_for(monkeypatch, name, "agents.d/stale.yaml")
    write(root, files("After", "max_stepz: 4\n"))
    built = asyncio.run(catalog.reload())
    assert {problem.path for problem in unexpected(catalog)} == {"agents.d/stale.yaml"}
    assert descriptions(built) == {"a": "After", "b": "After", "c": "After", "stale": "Before"}
    assert built.agents["stale"].stale


@pytest.mark.parametrize("name", CHECKS_OF_SETTINGS)
def test_a_check_of_the_settings_that_fails_holds_back_no_agent(
    monkeypatch: pytest.MonkeyPatch, project: tuple[Catalog, Path], name: str
) -> None:
    catalog, root = project
    fail_for(monkeypatch, f"builder.{name}", "")
    write(root, files("After", ""))
    built = asyncio.run(catalog.reload())
    assert [problem.path for problem in unexpected(catalog)] == ["agentsd.yaml"]
    assert set(descriptions(built).values()) == {"After"}


def test_an_edit_that_cannot_be_compared_is_rejected_and_the_next_one_goes_live(
    monkeypatch: pytest.MonkeyPatch, project: tuple[Catalog, Path]
) -> None:
    catalog, root = project

    def failing(*_: object) -> tuple[()]:
        raise Injected("from a test")

    with monkeypatch.context() as patch:
        patch.setattr(generation, "diff_agents", failing)
        write(root, files("Between", ""))
        assert set(descriptions(asyncio.run(catalog.reload())).values()) == {"Before"}
        assert "Injected: from a test" in catalog.problems[0].message
    write(root, files("After", ""))
    assert set(descriptions(asyncio.run(catalog.reload())).values()) == {"After"}


@pytest.mark.parametrize("gate", [False, True], ids=["no gate", "gate"])
def test_the_restrictions_of_an_edit_that_cannot_be_compared_take_effect_and_the_rest_does_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gate: bool
) -> None:
    cases: list[str] = []

    async def passes(*_: object) -> tuple[Problem, ...]:
        cases.append("ran")
        return ()

    settings = Settings(reload=ReloadSettings(gate="tests" if gate else "none"))
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{allow: [echo, calculator]}")})
    catalog = Catalog(
        root, tools=BUILTIN_TOOLS, executors=["react"], models=["scripted"], settings=settings, gate=passes
    )
    asyncio.run(catalog.reload())
    policy = "{allow: [echo, read_file], deny: [calculator]}"
    edit = {"agents.d/a.yaml": agent("a", description="After", skill_policy=policy)}

    def failing(*_: object) -> tuple[()]:
        raise KeyError("from a test")

    with monkeypatch.context() as patch:
        patch.setattr(generation, "diff_agents", failing)
        write(root, edit)
        offered = asyncio.run(catalog.reload()).agents["a"].toolset.offered
        assert not {"calculator", "read_file"} & offered.keys()
        assert "unexpected error: KeyError: 'from a test'" in [problem.message for problem in catalog.problems]
    write(root, {"prompts/other.j2": "x"})
    built = asyncio.run(catalog.reload()).agents["a"]
    assert (built.spec.description, "read_file" in built.toolset.offered) == ("After", True)
    assert len(cases) == (2 if gate else 0)


def test_a_rollback_that_cannot_be_compared_is_done(
    monkeypatch: pytest.MonkeyPatch, project: tuple[Catalog, Path]
) -> None:
    catalog, root = project
    write(root, files("After", ""))
    asyncio.run(catalog.reload())

    def failing(*_: object) -> tuple[()]:
        raise KeyError("from a test")

    monkeypatch.setattr(generation, "diff_agents", failing)
    assert set(descriptions(asyncio.run(catalog.rollback(1))).values()) == {"Before"}
