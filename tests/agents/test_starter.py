"""The starter project works without an API key, in English and Chinese, with the real built-in tools."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Approve, RunResult, Runtime
from framework.cli.init import copy_starter
from framework.config.settings import ReloadSettings, Settings
from framework.evals.suite import read_suite


def ask(root: Path, message: str, agent: str | None = None) -> RunResult:
    async def main() -> RunResult:
        async with Runtime.open(root, watch=False) as runtime:
            assert not runtime.catalog.current.problems
            return await runtime.run(message, agent=agent)

    return asyncio.run(main())


ROUTED: tuple[tuple[str, str, list[str], list[str]], ...] = (
    ("echo hello", "assistant", ["echo"], ["hello"]),
    ("搜索包含 'calculator' 的文件", "assistant", ["search_files"], ["agents.d/assistant.yaml"]),
    ("计算 [1,2,3,4,5] 的平均值", "assistant", ["calculator"], ["3"]),
    ("计算 [10,20,30] 的平均值、最大值和最小值", "assistant", ["calculator"] * 3, ["= 20", "= 30", "= 10"]),
    (
        "搜索包含 'calculator' 的文件，然后计算 [1,2,3,4,5] 的平均值",
        "assistant",
        ["search_files", "calculator"],
        ["agents.d/assistant.yaml", "3"],
    ),
    (
        "搜索包含 'calculator' 的文件，然后计算文件中数字的平均值",
        "assistant",
        ["search_files", "calculator"],
        ["agents.d/assistant.yaml", "mean(["],
    ),
    ("列出所有 Python 文件", "assistant", ["search_files"], ["plugins/dates.py"]),
    ("list all Python files", "assistant", ["search_files"], ["plugins/dates.py"]),
    ("写一个函数", "coder", [], []),
    ("帮我分析一下 data/logs/app.log", "log-analyst", ["log_transform"] * 3, ["ERROR"]),
    ("帮我搜索包含 'calculator' 的文件", "assistant", ["search_files"], ["agents.d/assistant.yaml"]),
    ("搜索不存在的文件", "assistant", ["search_files"], ["Nothing was found"]),
    ("what is in this repository?", "repo-analysis", ["list_dir"], ["agents.d/"]),
    ("a bug: search for 'ToolError'", "code-diagnosis", ["search_files"], ["plugins/dates.py"]),
    ("what time is it now?", "assistant", ["dates.now"], ["20"]),
    ("plan: calculate 2 + 3 then echo done", "planner", ["calculator", "echo"], ["5", "done"]),
)


@pytest.fixture(scope="module")
def results(starter: Path) -> dict[str, RunResult]:
    """The result of each message, all in one runtime: opening it takes longer than a run."""

    async def main() -> dict[str, RunResult]:
        async with Runtime.open(starter, watch=False) as runtime:
            assert not runtime.catalog.current.problems
            return {message: await runtime.run(message) for message, *_ in ROUTED}

    return asyncio.run(main())


@pytest.mark.parametrize(("message", "agent", "tools", "answers"), ROUTED)
def test_a_message_is_routed_to_its_agent_and_tools(
    results: dict[str, RunResult], message: str, agent: str, tools: list[str], answers: list[str]
) -> None:
    result = results[message]
    assert result.status == "completed", result.error
    assert result.agent == agent
    assert [call.tool for call in result.tool_calls] == tools
    assert all(call.status == "success" for call in result.tool_calls)
    for text in answers:
        assert text in result.output


def test_a_search_without_matches_reports_that(results: dict[str, RunResult]) -> None:
    assert "No files match" in str(results["搜索不存在的文件"].tool_calls[0].result)


def test_a_log_is_analyzed_by_a_plan_with_a_summary(starter: Path) -> None:
    result = ask(starter, "analyse data/logs/app.log", "log-analyst")
    assert result.steps == 2, "the plan and the summary; the steps name their tool"
    assert {"tool", "final"} == {entry.action.type for entry in result.trace}
    assert "Most frequent errors" in result.output


def test_an_approved_plan_is_replanned_after_a_failed_step_and_completes(tmp_path: Path) -> None:
    copy_starter(tmp_path)

    async def main() -> tuple[list[RunResult], RunResult]:
        pauses = []
        async with Runtime.open(tmp_path, watch=False) as runtime:
            result = await runtime.run("summarize data/log/app.log then write it to notes.md", agent="planner")
            while result.status == "paused":
                pauses.append(result)
                result = await runtime.resume(result.run_id, {question.id: Approve() for question in result.pending})
        return pauses, result

    pauses, result = asyncio.run(main())
    assert [question.kind for pause in pauses for question in pause.pending] == ["plan", "tool"]
    assert result.status == "completed", result.error
    assert result.plan is not None
    assert (result.plan.revision, result.plan.replans) == (2, 1)
    assert [(call.tool, call.status) for call in result.tool_calls] == [
        ("log_transform", "error"),
        ("log_transform", "success"),
        ("write_file", "success"),
    ]
    assert (tmp_path / "notes.md").read_text("utf-8").startswith("Lines: ")


def test_the_cases_of_the_starter_pass(starter: Path) -> None:
    async def main() -> None:
        settings = Settings(reload=ReloadSettings(gate="tests"))
        async with Runtime.open(starter, settings=settings, watch=False) as runtime:
            assert len(read_suite(runtime.catalog.current).cases) >= 25

    asyncio.run(main())


def test_a_search_that_names_no_files_reaches_the_web(starter: Path) -> None:
    result = ask(starter, "帮我搜索 Python async 最佳实践")
    assert (result.agent, [call.tool for call in result.tool_calls]) == ("web", ["web.web_search"])
    assert result.tool_calls[0].arguments == {"query": "Python async 最佳实践"}
    assert "no search service is set up" in result.output
