"""A plugin is set up once before its first use and torn down once after its last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import PluginContext, RequestError
from framework.tools.plugins import Plugin, PluginLease, PluginLifecycle, PluginLoader
from framework.types.problem import Problem
from tests.support.cases import cases

LIVING = """
    import asyncio

    async def setup(context):
        await asyncio.sleep(0)
        context.deps.append("up " + context.plugin)

    async def teardown(context):
        await asyncio.sleep(0)
        context.deps.append("down " + context.plugin)
"""
FAILING = """
    async def setup(context):
        raise ConnectionError("no database")
"""


def plugin(source: str = LIVING, name: str = "a") -> Plugin:
    return PluginLoader().load(f"plugins/{name}.py", dedent(source).encode())


PLUGINS = {name: plugin(name=name) for name in "abc"}


def problems_of(source: str, *, seconds: float = 10.0) -> tuple[Problem, ...]:
    """Return the problems of the plugin's setup."""

    async def main() -> tuple[Problem, ...]:
        failing, lifecycle = plugin(source), PluginLifecycle([], seconds=seconds)
        use = await lifecycle.acquire([failing])
        await lifecycle.close()
        return use.failed[failing]

    return asyncio.run(main())


async def turns(number: int = 20) -> None:
    """Yield to the other tasks until they wait."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_setup_runs_before_the_first_use_and_teardown_after_the_last() -> None:
    async def main() -> None:
        events: list[str] = []
        lifecycle, a, b = PluginLifecycle(events), plugin(name="a"), plugin(name="b")
        first = await lifecycle.acquire([a, b])
        second = await lifecycle.acquire([b])
        assert events == ["up a", "up b"]
        first.release()
        first.release()  # the second call has no effect
        await turns()
        assert events == ["up a", "up b", "down a"]
        second.release()
        await turns()
        assert events == ["up a", "up b", "down a", "down b"]
        await lifecycle.acquire([a])  # again
        assert events[4:] == ["up a"]
        await lifecycle.close()
        assert events[4:] == ["up a", "down a"]

    asyncio.run(main())


def test_close_tears_down_everything_in_reverse_order_and_prevents_further_setups() -> None:
    async def main() -> None:
        events: list[str] = []
        lifecycle, a, b, c = PluginLifecycle(events), plugin(name="a"), plugin(name="b"), plugin(name="c")
        uses = [await lifecycle.acquire([b]), await lifecycle.acquire([a, b, c])]
        await lifecycle.close()
        assert events == ["up b", "up a", "up c", "down c", "down a", "down b"]
        with pytest.raises(RequestError, match="closed"):
            await lifecycle.acquire([a])
        for use in uses:
            use.release()
        await turns()
        assert len(events) == 6

    asyncio.run(main())


def test_functions_that_are_not_coroutines_run_in_a_thread() -> None:
    source = """
        import threading

        def setup(context):
            context.deps.append(threading.current_thread() is threading.main_thread())

        teardown = setup
        """

    async def main() -> list[bool]:
        events: list[bool] = []
        lifecycle = PluginLifecycle(events)
        await lifecycle.acquire([plugin(source)])
        await lifecycle.close()
        return events

    assert asyncio.run(main()) == [False, False]


def test_the_context_contains_the_plugin_name_and_the_deps() -> None:
    source = "def setup(context):\n    context.deps.append(context)\n"
    events: list[PluginContext] = []
    asyncio.run(PluginLifecycle(events).acquire([plugin(source, "orders.v2")]))
    assert [(context.plugin, context.deps is events) for context in events] == [("orders.v2", True)]


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("raise ConnectionError('no database')", 4, "ConnectionError in setup(): no database"),
        ("raise TimeoutError('slow')", 4, "TimeoutError in setup(): slow"),
        ("import sys; sys.exit(2)", 4, "calls sys.exit() in setup()"),
        ("raise KeyboardInterrupt", 4, "KeyboardInterrupt in setup(): "),
        ("import no_such_package", 4, "ModuleNotFoundError in setup(): No module named 'no_such_package'"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_setup_that_fails_is_a_problem_with_its_line(kind: str, body: str, line: int, message: str) -> None:
    (problem,) = problems_of(f"\n\n{kind} setup(context):\n    {body}\n")
    assert (problem.place, problem.message) == (f"plugins/a.py:{line}", message)


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def setup(context):\n    x = 1\n    await asyncio.Event().wait()\n",
        "import threading\ndef setup(context):\n    x = 1\n    while True: x = 2\n",
        # a task that suppresses its cancellation
        "import asyncio\nasync def setup(context):\n  for _ in range(9):\n    try: await asyncio.sleep(.1)\n"
        "    except BaseException: pass\n",
    ],
)
def test_a_setup_that_does_not_finish_is_a_problem_with_its_current_line(source: str) -> None:
    (problem,) = problems_of(source, seconds=0.5)
    assert (problem.place, problem.message) == ("plugins/a.py:4", "not finished after 0.5 s in setup()")


def test_a_setup_that_fails_in_a_helper_is_reported_there_too() -> None:
    async def main() -> tuple[Problem, ...]:
        files = {
            "plugins/_db.py": b"def connect():\n    raise ConnectionError('no')\n",
            "plugins/a.py": b"from . import _db\ndef setup(context):\n    _db.connect()\n",
        }
        failing = PluginLoader().load("plugins/a.py", files["plugins/a.py"], files)
        return (await PluginLifecycle().acquire([failing])).failed[failing]

    assert [problem.place for problem in asyncio.run(main())] == ["plugins/a.py:3", "plugins/_db.py:2"]


def test_when_one_setup_fails_the_others_stay_set_up_and_its_teardown_is_not_called() -> None:
    async def main() -> list[str]:
        events: list[str] = []
        failing = dedent(FAILING) + "def teardown(context):\n    context.deps.append('never up')\n"
        lifecycle, good, bad = PluginLifecycle(events), plugin(name="good"), plugin(failing, "bad")
        use = await lifecycle.acquire([bad, good])
        assert list(use.failed) == [bad]
        again = await lifecycle.acquire([good])
        use.release()
        await turns()
        assert events == ["up good"]
        again.release()
        await lifecycle.close()
        return events

    assert asyncio.run(main()) == ["up good", "down good"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_teardown_that_fails_is_logged_with_its_line_and_the_others_run(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        events: list[str] = []
        bad = plugin(f"{kind} teardown(context):\n    raise SystemExit\n", "bad")
        lifecycle, good = PluginLifecycle(events), plugin(name="good")
        await lifecycle.acquire([good, bad])
        await lifecycle.close()
        return events

    assert asyncio.run(main()) == ["up good", "down good"]
    assert "plugins/bad.py:2: calls sys.exit() in teardown()" in caplog.text


GATED = """
    async def setup(context):
        context.deps.events.append("up")
        await context.deps.gate.wait()
        context.deps.events.append("is up")

    async def teardown(context):
        context.deps.events.append("down")
        await context.deps.gate.wait()
        context.deps.events.append("is down")
"""


@dataclass
class Gate:
    events: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.mark.parametrize("closing", [False, True])
def test_a_setup_completes_and_is_torn_down_if_its_caller_is_cancelled(closing: bool) -> None:
    async def main() -> list[str]:
        deps = Gate()
        lifecycle = PluginLifecycle(deps)
        using = asyncio.create_task(lifecycle.acquire([plugin(GATED)]))
        await turns()
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        close = asyncio.create_task(lifecycle.close()) if closing else None
        await turns()
        deps.gate.set()
        await turns()
        if close:
            await close
        return deps.events

    assert asyncio.run(main()) == ["up", "is up", "down", "is down"]


def test_a_setup_that_a_second_caller_awaits_is_not_torn_down_when_the_first_is_cancelled() -> None:
    async def main() -> None:
        deps, gated = Gate(), plugin(GATED)
        lifecycle = PluginLifecycle(deps)
        first = asyncio.create_task(lifecycle.acquire([gated]))
        await turns()
        first.cancel()
        await turns()  # the teardown waits for the setup to end
        second = asyncio.create_task(lifecycle.acquire([gated]))
        await turns()
        deps.gate.set()
        await second
        await turns()
        assert deps.events == ["up", "is up"]
        await lifecycle.close()

    asyncio.run(main())


def test_a_plugin_leased_during_its_teardown_is_set_up_afterwards() -> None:
    async def main() -> list[str]:
        deps, gated = Gate(), plugin(GATED)
        deps.gate.set()
        lifecycle = PluginLifecycle(deps)
        use = await lifecycle.acquire([gated])
        deps.gate.clear()
        use.release()
        await turns()
        using = asyncio.create_task(lifecycle.acquire([gated]))
        await turns()
        assert deps.events[2:] == ["down"]
        deps.gate.set()
        await using
        assert deps.events[2:] == ["down", "is down", "up", "is up"]
        await lifecycle.close()
        return deps.events[6:]

    assert asyncio.run(main()) == ["down", "is down"]


@dataclass(frozen=True)
class Round:
    """Concurrent operations of one round."""

    wanted: tuple[frozenset[str], ...]
    """Uses that begin."""
    turns: int
    """How many turns they get before"""
    cancelled: int
    """this many of them are cancelled,"""
    ended: frozenset[int]
    """and these of the active uses end."""


rounds = st.builds(
    Round,
    st.lists(st.frozensets(st.sampled_from(sorted(PLUGINS))), max_size=3).map(tuple),
    st.integers(0, 3),
    st.integers(0, 1),
    st.frozensets(st.integers(0, 4)),
)


@cases(100)
@given(plan=st.lists(rounds, max_size=8))
def test_exactly_the_leased_plugins_are_set_up_at_any_time(plan: list[Round]) -> None:
    """Uses begin, end and are cancelled in any order, concurrently and sequentially."""

    async def main() -> None:
        events: list[str] = []
        lifecycle = PluginLifecycle(events)
        uses: list[tuple[frozenset[str], PluginLease]] = []
        for each in plan:
            beginning = [
                (names, asyncio.create_task(lifecycle.acquire(PLUGINS[n] for n in names))) for names in each.wanted
            ]
            await turns(each.turns)
            for _, task in beginning[: each.cancelled]:
                task.cancel()
            for index, (_, use) in enumerate(uses):
                if index in each.ended:
                    use.release()
            if beginning:
                await asyncio.wait([task for _, task in beginning])
            uses = [use for index, use in enumerate(uses) if index not in each.ended]
            uses += [(names, task.result()) for names, task in beginning if not task.cancelled()]
            used = {name for names, _ in uses for name in names}
            assert used <= up(events)
            await turns(60)
            assert up(events) == used
        await lifecycle.close()
        assert up(events) == set()

    asyncio.run(main())


def up(events: Iterable[str]) -> set[str]:
    """Return the plugins that are set up according to the events; setup and teardown must alternate."""
    found: set[str] = set()
    for event in events:
        what, _, name = event.partition(" ")
        assert (name in found) is (what == "down")
        found ^= {name}
    return found
