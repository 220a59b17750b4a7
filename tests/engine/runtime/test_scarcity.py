"""A process without open files or memory releases its runs instead of failing them."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from framework import RunSuspended, Runtime
from framework.llm.client import ModelRequest
from framework.llm.provider_errors import ProviderErrors
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError, is_scarcity
from tests.support.projects import agent, write

SCARCE = [
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files in system"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    MemoryError("no memory"),
    ModelError("no connection", scarce=True),
]
AGENTS = {
    "agents.d/main.yaml": agent("main", skill_policy="{allow: [agent.helper]}", sub_agents="[helper]"),
    "agents.d/helper.yaml": agent("helper"),
}


@pytest.mark.parametrize("error", SCARCE, ids=lambda error: str(error)[:12])
@pytest.mark.parametrize("fails_at", [0, 1])
def test_the_run_is_released_and_continues_later(tmp_path: Path, error: Exception, fails_at: int) -> None:
    """Also in a sub-agent, whose finished steps are not repeated."""
    scarce = [error]

    def reply(request: ModelRequest) -> Turn:
        if len(model.requests) > fails_at and scarce:
            raise scarce.pop()
        if request.messages[-1].content == "help":
            return "helped"
        return "done" if request.messages[-1].role == "tool" else calls(("agent.helper", {"message": "help"}))

    model = ScriptedModel(script=reply)

    async def main() -> None:
        write(tmp_path, AGENTS)
        async with Runtime.open(
            tmp_path, models={"scripted": model}, store="sqlite:///state.db", watch=False
        ) as runtime:
            with pytest.raises(RunSuspended, match="this process has no open files or memory left"):
                await runtime.run("go", agent="main")
            (run,) = await runtime.store.runs()
            assert (run.status, run.held) == ("running", False)
            result = await runtime.resume(run.run_id, {})
            assert (result.status, result.output) == ("completed", "done")
            assert [call.result for call in result.tool_calls] == ["helped"]

    asyncio.run(main())


def test_without_a_store_the_run_fails_with_the_reason(tmp_path: Path) -> None:
    def reply(_: ModelRequest) -> Turn:
        raise SCARCE[-1]

    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": agent("one")})
        models = {"scripted": ScriptedModel(script=reply)}
        async with Runtime.open(tmp_path, models=models, store="memory:", watch=False) as runtime:
            assert (await runtime.run("go")).finish_reason == "model_error"

    asyncio.run(main())


def test_a_lack_of_open_files_is_found_behind_other_errors() -> None:
    async def fail() -> None:
        try:
            try:
                raise OSError(errno.EMFILE, "Too many open files")
            except OSError as error:
                raise ExceptionGroup("attempts", [error]) from None
        except ExceptionGroup:
            raise ValueError("no connection") from None

    async def guarded() -> None:
        await ProviderErrors("openai/x", "", None).guard(fail(), ValueError, lambda _: pytest.fail("not explained"))

    with pytest.raises(ModelError, match="no open files or memory left") as caught:
        asyncio.run(guarded())
    assert (caught.value.retryable, caught.value.scarce, is_scarcity(caught.value)) == (True, True, True)
    assert not is_scarcity(OSError(errno.ECONNRESET, "reset"))


LOADS = """
import ast, pathlib, sys
import framework.llm
from framework.llm.providers import PROVIDERS, import_sdks
from framework.llm.providers import create_client
import_sdks(f"{provider.name}/m" for provider in PROVIDERS)
for provider in PROVIDERS:
    try:
        create_client(f"{provider.name}/m", api_key="none", base_url="http://127.0.0.1:9")
    except Exception:
        pass
def imported(function):
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
for path in pathlib.Path(framework.llm.__file__).parent.rglob("*.py"):
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            explains = function.name.endswith(("_error", "_guard", "_explain", "_too_large", "_translated"))
            handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
            for part in [function] if explains else handlers:
                missing = [name for name in imported(part) if name not in {*sys.modules, "instructor.core"}]
                print(*(f"{path.name}:{part.lineno} {name}" for name in missing))
"""


def test_a_process_has_imported_at_its_start_what_explains_its_errors() -> None:
    """Without open files it could not. Of the rest, `instructor.core` is imported before its request is sent."""
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
