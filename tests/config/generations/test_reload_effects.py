"""Edits of `agentsd.yaml` in a running process: each setting takes effect when `RELOAD_EFFECTS` defines it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, tool
from framework.config.generations.reload_effects import RELOAD_EFFECTS, leaves, reload_effect
from framework.config.settings import Settings
from framework.testing import ScriptedModel, calls
from framework.tools.tool import ToolContext
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.http import HttpLimits
from tests.support.paths import ROOT
from tests.support.projects import agent, write

Body = Callable[[Runtime], Awaitable[None]]
ONE = agent("one", model="fast")
FILE = "agentsd.yaml"
FAST = "models: {fast: {model: openai/a, api_key: k1}}\n"


def live(root: Path, body: Body, **options: Any) -> None:
    async def main() -> None:
        async with Runtime.open(root, watch=False, **options) as runtime:
            await body(runtime)

    asyncio.run(main())


def test_every_setting_has_a_reload_effect() -> None:
    known = {key: reload_effect(key) for key, _ in leaves(Settings.model_construct())}
    assert RELOAD_EFFECTS.keys() <= known.keys(), "no row without a setting"
    assert {key for key, effect in known.items() if effect == "restart"} == {
        "version",
        "log",
        "reload.mode",
        "reload.gate",
        "reload.quiet",
        "reload.removal_grace",
        "reload.widening_grace",
        "reload.reconcile",
        "store.url",
        "store.retention",
        "store.lease",
        "telemetry.otlp_endpoint",
        "telemetry.otlp_headers",
        "skills.folders",
        "telemetry.service_name",
        "server.console",
        "server.host",
        "server.max_connections",
        "server.max_streams",
        "server.max_streams_per_key",
        "server.port",
        "work.concurrency",
        "work.engine",
    }
    hot = {key for key, effect in known.items() if effect == "hot"}
    assert hot == {key for key in known if key.startswith("tools.")} - {"tools.base_path"} | {
        "budgets",
        "grants.max_ttl",
        "grants.never",
        "grants.offer",
        "server.api_keys",
        "server.allow_edit",
        "server.cors_origins",
        "server.a2a_push_hosts",
        "telemetry.inbound",
    }
    assert reload_effect("something.new") == "restart"


def test_the_settings_page_lists_the_same_effects() -> None:
    text = (ROOT / "docs/settings.md").read_text("utf-8")
    for key, effect in RELOAD_EFFECTS.items():
        section = next(
            (name for name in ("tools.http.", "tools.sandbox.", "model_calls.", "grants.") if key.startswith(name)),
            None,
        )
        shown = f"{section}…" if section else key
        (row,) = [line for line in text.splitlines() if line.startswith("|") and f"`{shown}`" in line]
        assert effect in row, key


def test_a_new_model_applies_to_new_runs_and_not_to_runs_in_progress(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="null"), FILE: "model: first\n"})
    models = {
        "first": ScriptedModel(calls(("change", {})), "from the first"),
        "second": ScriptedModel("from the second"),
    }
    held: list[Runtime] = []

    @tool(risk="low")
    async def change() -> str:
        """Change the settings."""
        write(root, {FILE: "model: second\n"})
        return str((await held[0].reload()).number)

    async def body(runtime: Runtime) -> None:
        held.append(runtime)
        assert (await runtime.run("go")).output == "from the first"
        assert (await runtime.run("go")).output == "from the second"
        assert runtime.settings.model == "second"

    live(root, body, models=models, tools=[change])


@pytest.mark.conformance(19)
@pytest.mark.parametrize("broken", ["model: [\n", "modle: offline\n", "reload: {quiet: soon}\n", "model: ${UNSET_X}\n"])
def test_invalid_settings_change_nothing_until_they_are_fixed(tmp_path: Path, broken: str) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": ONE, FILE: FAST})

    async def body(runtime: Runtime) -> None:
        received: list[ConfigReloaded | ConfigRejected] = []
        runtime.catalog.subscribe(received.append)
        first = runtime.catalog.current
        write(root, {FILE: broken, "agents.d/two.yaml": agent("two", model="offline")})
        assert await runtime.reload() is first
        assert await runtime.reload() is first
        assert [type(event) for event in received] == [ConfigRejected]
        assert {problem.path for problem in runtime.catalog.problems} == {FILE}
        write(root, {FILE: FAST})
        assert (await runtime.reload()).agents.keys() == {"one", "two"}
        assert runtime.catalog.problems == ()

    live(root, body)


@pytest.mark.conformance(45)
def test_a_setting_that_needs_a_restart_is_reported_at_its_line_and_not_applied(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": ONE, FILE: FAST})

    async def body(runtime: Runtime) -> None:
        write(root, {FILE: FAST + "reload:\n  mode: strict\nlocale: zh\n"})
        generation = await runtime.reload()
        (notice,) = generation.problems
        assert (notice.place, notice.severity) == ("agentsd.yaml:3:3", "warning")
        assert notice.message == "reload.mode takes effect after a restart"
        assert (generation.settings.reload.mode, generation.settings.locale) == ("tolerant", "zh")
        write(root, {"agents.d/bad.yaml": "name: ["})
        assert (await runtime.reload()).number == generation.number + 1, "not strict yet"
        write(root, {FILE: FAST})
        assert all(problem.path != FILE for problem in (await runtime.reload()).problems)

    live(root, body)


def test_agents_of_a_removed_model_keep_their_last_good_version(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": ONE, FILE: FAST})

    async def body(runtime: Runtime) -> None:
        write(root, {FILE: "locale: en\n"})
        generation = await runtime.reload()
        assert generation.agents["one"].stale
        assert "unknown model 'fast'" in generation.errors[0].message
        write(root, {FILE: FAST})
        assert not (await runtime.reload()).agents["one"].stale

    live(root, body)


def test_changes_are_reported_without_secrets(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": ONE, FILE: FAST})

    async def body(runtime: Runtime) -> None:
        received: list[ConfigReloaded | ConfigRejected] = []
        runtime.catalog.subscribe(received.append)
        write(root, {FILE: FAST.replace("k1", "k2").replace("openai/a", "openai/b") + "tools: {unprotected: [a]}\n"})
        await runtime.reload()
        (event,) = received
        assert isinstance(event, ConfigReloaded)
        changes = {change.key: (change.agent, change.effect) for change in event.changes}
        assert changes["models.fast.model"] == (FILE, "neutral")
        assert changes["models.fast.api_key"] == (FILE, "neutral")
        assert changes["tools.unprotected"] == (FILE, "widens")
        assert "k1" not in str(received)
        assert "k2" not in str(received)

    live(root, body)


def test_tool_restrictions_apply_immediately_and_tool_permissions_to_new_runs(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one"), FILE: "tools: {unprotected: [a, b]}\n"})
    seen: list[tuple[str, ...]] = []
    held: list[Runtime] = []

    @tool(risk="low")
    async def look(context: ToolContext) -> str:
        """Record the unprotected files, and change the setting."""
        seen.append(context.unprotected)
        write(root, {FILE: "tools: {unprotected: [b, c]}\n"})
        return str((await held[0].reload()).number)

    model = ScriptedModel(calls(("look", {})), calls(("look", {}), prefix="d"), "done", calls(("look", {})), "done")

    async def body(runtime: Runtime) -> None:
        held.append(runtime)
        await runtime.run("go")
        await runtime.run("go")

    live(root, body, models={"scripted": model}, tools=[look])
    assert seen == [("a", "b"), ("b",), ("b", "c")]


def test_settings_passed_by_a_program_are_not_changed_by_the_file(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})

    async def body(runtime: Runtime) -> None:
        write(root, {FILE: "model: ["})
        assert (await runtime.reload()).problems == ()
        assert runtime.settings.locale == "fr"

    live(root, body, settings=Settings(locale="fr"))


def test_an_edit_of_the_settings_takes_effect_automatically(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), FILE: "reload: {reconcile: 100ms}\n"})

    async def main() -> None:
        async with Runtime.open(root) as runtime:
            write(root, {FILE: "reload: {reconcile: 100ms}\nlocale: zh\n"})
            await runtime.wait_generation(2)
            assert runtime.settings.locale == "zh"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("started", "now", "both"),
    [
        (("a.com", "b.com"), ("b.com", "c.com"), ("b.com",)),
        (("*",), ("a.com", "*.b.com", "127.0.0.1:80", "c.com:8080", "127.0.0.1"), ("a.com", "*.b.com")),
        (("*.a.com", "a.com"), ("x.a.com", "a.com", "y.b.com"), ("a.com", "x.a.com")),
        (("x.a.com",), ("*.a.com",), ("x.a.com",)),
        (("a.com",), (), ()),
    ],
)
def test_only_hosts_listed_at_the_start_and_now_are_reachable(
    started: tuple[str, ...], now: tuple[str, ...], both: tuple[str, ...]
) -> None:
    then = HttpLimits(domains=started, methods=("GET", "POST"), timeout=5.0)
    narrowed = then.narrowed_by(HttpLimits(domains=now, max_bytes=10))
    assert narrowed.domains == both
    assert (narrowed.methods, narrowed.timeout, narrowed.max_bytes) == (("GET",), 5.0, 10)
