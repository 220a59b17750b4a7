"""Case 46: after any sequence of edits, the active agents depend only on the files and the previously active agents.

An active policy is never weaker than every complete version that was written.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from framework import Runtime
from tests.support.cases import FACTOR
from tests.support.projects import agent

VERSIONS = st.integers(1, 4)
NAMES = ("one", "two", "three")
BROKEN = "version: 1\nname: [\n"


class Editing(RuleBasedStateMachine):
    """Edits of three agents: a plain one, one with a template, one with a plugin's tool."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.loop = asyncio.Runner()
        self.files: dict[str, int | None] = {}
        """Versions on disk; None for a broken file."""
        self.expected: dict[str, Any] = {}
        """The last valid version of each agent."""
        self.plugin: int | None = None
        """The active version of the plugin: the last one that was loaded."""
        self.written: dict[str, set[int]] = {name: set() for name in NAMES}
        self.changed = False

    @initialize()
    def start(self) -> None:
        for folder in ("agents.d", "prompts", "plugins"):
            (self.root / folder).mkdir()
        self.opened = Runtime.open(self.root, watch=False)
        self.runtime = self.loop.run(self.opened.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "runtime"):
            self.loop.run(self.opened.__aexit__(None, None, None))
        self.loop.close()
        self.folder.cleanup()

    # --- edits

    @rule(name=st.sampled_from(NAMES), version=VERSIONS | st.none(), replaced=st.booleans())
    def write_agent(self, name: str, version: int | None, replaced: bool) -> None:
        """Write a policy that is weaker with each version: version n allows n steps."""
        keys = {
            "model": "offline",
            "instructions": "{template: two.j2}" if name == "two" else f"version {version}",
            "skill_policy": "{allow: [p.f]}" if name == "three" else "{allow: []}",
            "runtime_policy": f"{{max_steps: {version}}}",
        }
        self._write(f"agents.d/{name}.yaml", BROKEN if version is None else agent(name, **keys), version, replaced)
        if version is not None:
            self.written[name].add(version)

    @rule(version=VERSIONS | st.none())
    def write_template(self, version: int | None) -> None:
        self._write(
            "prompts/two.j2", "{{ unknown }}" if version is None else f"template {version} {{{{ locale }}}}", version
        )

    @rule(version=VERSIONS | st.none())
    def write_plugin(self, version: int | None) -> None:
        good = (
            f'from framework import tool\n\n@tool(risk="low")\ndef f() -> str:\n    """F."""\n    return "{version}"\n'
        )
        self._write("plugins/p.py", "raise ValueError" if version is None else good, version)

    @rule(
        path=st.sampled_from(
            ["agents.d/one.yaml", "agents.d/two.yaml", "agents.d/three.yaml", "prompts/two.j2", "plugins/p.py"]
        )
    )
    def delete(self, path: str) -> None:
        if path in self.files:
            (self.root / path).unlink()
            del self.files[path]
            self.changed = True

    @rule()
    def touch_everything(self) -> None:
        for path in self.files:
            os.utime(self.root / path)

    def _write(self, path: str, text: str, version: int | None, replaced: bool = False) -> None:
        target = self.root / path
        before = target.read_text("utf-8") if path in self.files else None
        if replaced:
            temporary = target.with_name(".new")
            temporary.write_text(text, "utf-8")
            temporary.replace(target)
        else:
            target.write_text(text, "utf-8")
        self.files[path] = version
        self.changed = self.changed or before != text

    # --- invariants

    @rule()
    def reload(self) -> None:
        before = self.runtime.catalog.current
        generation = self.loop.run(self.runtime.reload())
        if self.plugin_on_disk() is not None:
            self.plugin = self.plugin_on_disk()
        if "plugins/p.py" not in self.files:
            self.plugin = None
        for name in NAMES:
            self.expected[name] = self.model_of(name)
        good = {name: found for name, found in self.expected.items() if found is not None}
        assert self.live() == {name: (self.steps(name, steps), text) for name, (steps, text) in good.items()}
        if not self.changed:
            assert generation is before, "equal bytes create no new generation"
        self.changed = False

    def plugin_on_disk(self) -> int | None:
        return self.files.get("plugins/p.py")

    def steps(self, name: str, good: int) -> int:
        """Return the effective limit: even a file that is otherwise invalid lowers it."""
        return min(good, self.files[f"agents.d/{name}.yaml"] or good)

    def model_of(self, name: str) -> Any:
        path = f"agents.d/{name}.yaml"
        last = self.expected.get(name)
        if path not in self.files:
            return None
        version = self.files[path]
        if version is None:
            return last
        if name == "two":
            template = self.files.get("prompts/two.j2")
            return last if template is None else (version, f"template {template} en")
        if name == "three":
            return last if self.plugin is None else (version, str(self.plugin))
        return version, f"version {version}"

    def live(self) -> dict[str, Any]:
        found = {}
        for name, live in self.runtime.catalog.current.agents.items():
            text = live.instructions("en", {}, None)
            if name == "three":
                text = live.toolset.offered["p.f"].function()
            found[name] = (live.spec.runtime_policy.max_steps, text)
        return found

    @invariant()
    def no_policy_is_weaker_than_every_complete_version(self) -> None:
        if hasattr(self, "runtime"):
            for name, live in self.runtime.catalog.current.agents.items():
                assert live.spec.runtime_policy.max_steps in self.written[name]

    @invariant()
    def a_generation_is_closed(self) -> None:
        if hasattr(self, "runtime"):
            generation = self.runtime.catalog.current
            for live in generation.agents.values():
                assert all(sub in generation.agents for sub in live.spec.sub_agents)
                assert all(name in live.toolset.tools for name in live.toolset.offered)


TestEditing = pytest.mark.conformance(46)(Editing.TestCase)
TestEditing.settings = settings(
    max_examples=20 * FACTOR, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
