"""Limits on runs in progress that no run can reach are reported at their line."""

from __future__ import annotations

import asyncio
from pathlib import Path

from framework import Runtime
from tests.support.projects import agent, write

LIMITED = "work:\n  max_running:\n    agents: {support: 5, suport: 5}\n    models: {fast: 2, openai/x: 3, opnai/x: 4}\n"


def test_limits_of_unknown_agents_and_models_are_warnings(tmp_path: Path) -> None:
    settings = LIMITED + "models: {fast: {model: openai/x}}\n"
    root = write(tmp_path, {"agents.d/support.yaml": agent("support", model="offline"), "agentsd.yaml": settings})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            found = [(one.place, one.severity, one.message) for one in runtime.catalog.problems]
            assert found == [
                (
                    "agentsd.yaml:3:26",
                    "warning",
                    "no agent named 'suport'; did you mean support?: its limit has no effect",
                ),
                (
                    "agentsd.yaml:4:36",
                    "warning",
                    "unknown model 'opnai/x'; did you mean openai?: its limit has no effect",
                ),
            ]
            assert runtime.settings.work.max_running.agents == {"support": 5, "suport": 5}

    asyncio.run(main())


def test_limits_that_a_program_passes_are_not_looked_for_in_the_file(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/support.yaml": agent("support", model="offline")})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as opened:
            settings = opened.settings
        limits = settings.work.model_validate({"max_running": {"agents": {"nobody": 1}}})
        async with Runtime.open(root, settings=settings.model_copy(update={"work": limits}), watch=False) as runtime:
            assert runtime.catalog.problems == ()

    asyncio.run(main())
