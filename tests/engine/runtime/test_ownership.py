"""Data of a user or tenant is not accessible to others, nor to calls without user and tenant."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Runtime, ToolContext, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import RunNotFound
from tests.support.projects import agent, write

USERS: list[dict[str, Any]] = [
    {"user": user, "tenant": tenant} for user, tenant in product([None, "ann", "bob"], [None, "t"])
]


@tool(risk="low")
def remember(value: str, context: ToolContext) -> str:
    """Remember a value, and return the one before.

    Args:
        value: What to remember.
        context: The run.
    """
    before = context.session.get("value", "nothing")
    context.session.set("value", value)
    return str(before)


@tool(risk="low", confirm=True)
def act() -> str:
    """Act."""
    return "done"


def opened(root: Path, store: str, model: ScriptedModel, **options: Any) -> Any:
    write(root, {"agents.d/a.yaml": agent("a", skill_policy="{allow: [remember, act]}")})
    return Runtime.open(root, models={"scripted": model}, tools=[remember, act], watch=False, store=store, **options)


@pytest.mark.parametrize("owner", USERS)
def test_asi03_only_the_owner_continues_a_conversation_and_its_session(tmp_path: Path, owner: dict[str, Any]) -> None:
    def remember_it(request: ModelRequest) -> Turn:
        last = request.messages[-1]
        return calls(("remember", {"value": last.content})) if last.role == "user" else "ok"

    async def main() -> None:
        async with opened(tmp_path, "sqlite:///s.db", ScriptedModel(script=remember_it)) as runtime:
            for number, caller in enumerate(USERS):
                await runtime.run("secret", conversation=f"c{number}", **owner)
                result = await runtime.run("and?", conversation=f"c{number}", **caller)  # each user has one of this id
                found = [call.result for call in result.tool_calls]
                assert found == ["secret" if caller == owner else "nothing"], caller

    asyncio.run(main())


@pytest.mark.parametrize("owner", USERS)
def test_asi03_only_the_owner_reads_resumes_and_cancels_a_run(tmp_path: Path, owner: dict[str, Any]) -> None:
    async def main() -> None:
        async with opened(tmp_path, "sqlite:///s.db", ScriptedModel(calls(("act", {})), "ok")) as runtime:
            run = await runtime.run("go", **owner)
            decisions = {run.pending[0].id: Approve()}
            for caller in [one for one in USERS if one != owner]:
                for attempt in (runtime.pending(run.run_id, **caller), runtime.resume(run.run_id, decisions, **caller)):
                    with pytest.raises(RunNotFound):
                        await attempt
                with pytest.raises(RunNotFound):
                    await runtime.cancel(run.run_id, **caller)
            assert (await runtime.resume(run.run_id, decisions, **owner)).status == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("owner", USERS)
def test_a_single_user_host_can_omit_the_user(tmp_path: Path, owner: dict[str, Any]) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("act", {})), "ok", "again")
        async with opened(tmp_path, "sqlite:///s.db", model, single_user=True) as runtime:
            run = await runtime.run("go", conversation="c", **owner)
            with pytest.raises(RunNotFound):
                await runtime.pending(run.run_id, user="another user")
            assert (await runtime.resume(run.run_id, {run.pending[0].id: Approve()})).status == "completed"
            assert (await runtime.run("and?", conversation="c")).output == "again"

    asyncio.run(main())
