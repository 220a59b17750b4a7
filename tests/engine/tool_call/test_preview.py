"""A call that cannot succeed is not put before a person; what a person approves is readable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, ConfigError, RunResult, Runtime, Tool, ToolContext, ToolError, tool
from framework.cli.show import confirmation_lines
from framework.server.protocol_texts import confirmation_text
from framework.testing import ScriptedModel, calls
from framework.types.state import Confirmation
from tests.support.projects import agent, write
from tests.support.screens import without_styles

POLICY = "{allow: ['*']}"
RISKS = "{risk_level: high}"


def project(root: Path, settings: str = "locale: en\n") -> Path:
    files = {"agentsd.yaml": settings, "agents.d/a.yaml": agent("a", skill_policy=POLICY, runtime_policy=RISKS)}
    (root / "old.txt").write_text("first\nsecond\nthird\n")
    return write(root, files)


def asked(root: Path, name: str, arguments: dict[str, Any], *tools: Tool, approve: bool = False) -> RunResult:
    """Run an agent whose model makes one call; with `approve`, approve it."""

    async def main() -> RunResult:
        model = ScriptedModel(calls((name, arguments)), "done")
        async with Runtime.open(root, tools=tools, models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go", agent="a")
            if approve:
                (question,) = result.pending
                return await runtime.resume(result.run_id, {question.id: Approve()})
            return result

    return asyncio.run(main())


def refused(result: RunResult) -> str:
    assert result.status == "completed"
    (call,) = result.tool_calls
    assert call.status == "error"
    return str(call.result)


DOOMED: list[tuple[str, dict[str, Any], str]] = [
    ("write_file", {"path": "old.txt", "content": "x"}, "exists already"),
    ("write_file", {"path": "secret/x.txt", "content": "x"}, "outside the folders that may be written"),
    ("write_file", {"path": "prompts/x.txt", "content": "x"}, "is protected"),
    ("write_file", {"path": "../x.txt", "content": "x"}, "must not contain '..'"),
    ("write_file", {"path": "/etc/x.txt", "content": "x"}, "outside the base folder"),
    ("write_file", {"path": "old.txt/x.txt", "content": "x"}, "is not a folder"),
    ("write_file", {"path": "old.txt", "content": "x\0", "mode": "overwrite"}, "zero byte"),
    ("write_file", {"path": "new.txt", "content": "x" * 1_100_000}, "the limit is"),
    ("write_file", {"path": "linked.txt", "content": "x", "mode": "overwrite"}, "link"),
    ("write_file", {"path": "read-only.txt", "content": "x", "mode": "overwrite"}, "read-only"),
    ("write_file", {"path": "old.txt", "content": 5, "mode": "overwrite"}, "wrong type"),
    ("edit_file", {"path": "old.txt", "old": "nowhere", "new": "x"}, "is not in 'old.txt'"),
    ("edit_file", {"path": "old.txt", "old": "i", "new": "x"}, "occurs more than once"),
    ("edit_file", {"path": "new.txt", "old": "a", "new": "b"}, "there is no file"),
    ("edit_file", {"path": "no/new.txt", "old": "a", "new": "b"}, "there is no file"),
    ("edit_file", {"path": "old.txt", "old": "a", "new": "a"}, "are the same text"),
    ("http_request", {"url": "https://example.com/"}, "tools may not reach example.com"),
    ("http_request", {"url": "https://example.com/", "body": "x"}, "GET has no body"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), DOOMED)
def test_a_call_that_cannot_succeed_fails_before_anybody_is_asked(
    tmp_path: Path, name: str, arguments: dict[str, Any], message: str
) -> None:
    folders = "[out]" if "secret" in str(arguments) else "['.']"
    root = project(tmp_path, f"tools: {{write_below: {folders}}}\n")
    (root / "linked.txt").symlink_to(root / "old.txt")
    (root / "read-only.txt").write_text("x")
    (root / "read-only.txt").chmod(0o444)

    assert message in refused(asked(root, name, arguments))


def test_an_error_before_the_approval_quotes_nothing_of_the_file(tmp_path: Path) -> None:
    message = refused(asked(project(tmp_path), "edit_file", {"path": "old.txt", "old": "secnd", "new": "x"}))

    assert message.endswith("the text to replace is not in 'old.txt'")


EDITS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "edit_file",
        {"path": "old.txt", "old": "second", "new": "2nd\nand more"},
        ["--- old.txt", "+++ old.txt", "@@ -1,3 +1,4 @@", " first", "-second", "+2nd", "+and more", " third"],
    ),
    (
        "write_file",
        {"path": "old.txt", "content": "first\nthird\n", "mode": "overwrite"},
        ["--- old.txt", "+++ old.txt", "@@ -1,3 +1,2 @@", " first", "-second", " third"],
    ),
    (
        "write_file",
        {"path": "old.txt", "content": "fourth\n", "mode": "append"},
        ["--- old.txt", "+++ old.txt", "@@ -1,3 +1,4 @@", " first", " second", " third", "+fourth"],
    ),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), EDITS)
def test_the_question_about_an_edit_has_its_difference(
    tmp_path: Path, name: str, arguments: dict[str, Any], expected: list[str]
) -> None:
    (question,) = asked(project(tmp_path), name, arguments).pending

    assert question.preview.split("\n") == expected
    assert (tmp_path / "old.txt").read_text() == "first\nsecond\nthird\n"


def test_a_new_file_is_approved_and_written(tmp_path: Path) -> None:
    result = asked(project(tmp_path), "write_file", {"path": "a/b.txt", "content": "x\n"}, approve=True)

    assert result.status == "completed"
    assert (tmp_path / "a/b.txt").read_text() == "x\n"


def test_large_files_are_compared_from_both_ends(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "old.txt").write_text("".join(f"line {number}\n" for number in range(9000)))
    (question,) = asked(root, "edit_file", {"path": "old.txt", "old": "line 7000", "new": "other\nlines"}).pending

    assert question.preview.split("\n")[2:] == ["@@ -7001,1 +7001,2 @@", "-line 7000", "+other", "+lines"]


@pytest.mark.parametrize("surface", ["terminal", "text"])
def test_what_a_person_approves_has_its_line_breaks(tmp_path: Path, surface: str) -> None:
    content = "# v1.0\n\n\x1b[2Ahidden\n"
    (question,) = asked(project(tmp_path), "write_file", {"path": "new.txt", "content": content}).pending
    lines = list(confirmation_lines(question)) if surface == "terminal" else shown(question)

    assert lines == ['path: "new.txt"', "content:", "  | # v1.0", "  | ", "  | \\x1b[2Ahidden", "  | "]
    (question,) = asked(tmp_path, "edit_file", {"path": "old.txt", "old": "second", "new": "2nd"}).pending
    lines = (
        [without_styles(line) for line in confirmation_lines(question)] if surface == "terminal" else shown(question)
    )
    assert lines[-5:] == ["  | @@ -1,3 +1,3 @@", "  |  first", "  | -second", "  | +2nd", "  |  third"]


def shown(question: Confirmation) -> list[str]:
    """Return the lines about a call in the text for clients, without its first and last line."""
    return [line.removeprefix("  ") for line in confirmation_text(question).split("\n")[1:-1]]


def test_texts_inside_objects_have_their_line_breaks() -> None:
    question = Confirmation(
        id="x", kind="tool", agent="a", tool="t", hash="h", arguments={"data": {"to": ["a"], "body": ["one\ntwo"]}}
    )

    assert list(confirmation_lines(question)) == [
        "data:",
        '  to: ["a"]',
        "  body:",
        "    [0]:",
        "      | one",
        "      | two",
    ]


def _preview(text: str, context: ToolContext) -> str:
    if text == "doomed":
        raise ToolError("it cannot succeed")
    if text == "broken":
        raise ValueError("a fault of the preview")
    return f"{context.agent} says {text}"


@tool(risk="high", preview=_preview)
def say(text: str, context: ToolContext) -> str:
    """Say something."""
    return f"{context.agent}: {text}"


def test_a_tool_of_a_plugin_describes_its_calls(tmp_path: Path) -> None:
    root = project(tmp_path)

    assert [one.preview for one in asked(root, "say", {"text": "hello"}, say).pending] == ["a says hello"]
    assert refused(asked(root, "say", {"text": "doomed"}, say)) == "it cannot succeed"
    assert [one.preview for one in asked(root, "say", {"text": "broken"}, say).pending] == [""]


def test_an_invalid_preview_is_an_error_of_the_declaration() -> None:
    async def later(text: str) -> str:
        return text

    def other(words: str) -> str:
        return words

    for preview, message in ((later, "no coroutine"), (other, "must have the parameters of the tool"), (5, "function")):
        with pytest.raises(ConfigError, match=message):

            @tool(preview=preview)  # type: ignore[arg-type]
            def act(text: str) -> str:
                """Act."""
                return text
