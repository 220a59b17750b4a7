"""Cases in files of data: one JSON object per line, with what the case file says of all of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from framework.config.generations.generation import Generation
from framework.engine.runtime.project import Project
from framework.evals.runner import Evidence, checks
from framework.evals.suite import Suite, case_line, read_suite, with_case
from framework.types.case import Expect, Judge
from framework.types.errors import RequestError
from tests.support.projects import agent, write

FILE = "version: 1\ndata: data/refunds.jsonl\nrepeat: 3\nexpect: {not_called: [echo], max_calls: 2}\n"
HELLO = {"name": "hello", "message": "say hello 🙂 \ud83d\ude00", "expect": {"output": "hello"}}
ONCE = {"name": "once", "message": "x", "repeat": 1, "expect": {"not_called": []}}


def generation(root: Path) -> Generation:
    return asyncio.run(Project.read(root)).catalog.current


def suite(root: Path, data: str | bytes, file: str = FILE) -> Suite:
    content = data if isinstance(data, bytes) else data.encode()
    write(root, {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/one.test.yaml": file})
    (root / "agents.d/data").mkdir(exist_ok=True)
    (root / "agents.d/data/refunds.jsonl").write_bytes(content)
    return read_suite(generation(root))


def lines(*cases: dict[str, Any]) -> str:
    return "".join(json.dumps(case) + "\n" for case in cases)


def test_a_file_of_data_has_the_agent_the_repeats_and_the_expectations_of_the_file_that_names_it(
    tmp_path: Path,
) -> None:
    read = suite(tmp_path, "\n" + lines(HELLO, ONCE))
    assert read.problems == ()
    first, second = read.cases
    assert (first.agent, first.repeat, first.place) == ("one", 3, "agents.d/data/refunds.jsonl:2")
    assert first.case.expect == Expect.model_validate({"output": "hello", "not_called": "echo", "max_calls": 2})
    assert first.case.message == "say hello 🙂 😀"
    assert (second.repeat, second.case.expect) == (1, Expect.model_validate({"not_called": [], "max_calls": 2}))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"name": "x", "message": "y"', "not JSON: "),
        ('{"name": "x", "message": "y", "name": "z"}', "not a case: "),
        ('["x"]', "not a case: it is a list"),
        ('{"name": "x", "mesage": "y"}', "unknown key 'mesage'"),
        ('{"name": "x", "message": "y", "expect": {"called": 3}}', "must be "),
        ('{"name": "x", "message": "y", "repeat": 0}', "must be greater than or equal to 1"),
        ('{"name": "x", "message": NaN}', "not a case: "),
        (b'{"name": "\xff"}', "not UTF-8"),
        ('{"name": "hello", "message": "y"}', "duplicate case name: 'hello'"),
    ],
)
def test_an_invalid_line_is_a_problem_at_its_line_and_the_others_are_cases(
    tmp_path: Path, line: str | bytes, message: str
) -> None:
    bad = line if isinstance(line, bytes) else line.encode()
    read = suite(tmp_path, lines(HELLO).encode() + b"\n" + bad + b"\n" + lines(ONCE).encode())
    assert {placed.case.name for placed in read.cases} >= {"hello", "once"}
    problem = read.errors[0]
    assert (problem.path, problem.line) == ("agents.d/data/refunds.jsonl", 3)
    assert problem.message.startswith(message)
    assert problem.fix is None


@pytest.mark.parametrize("data", ["", "\n \n"])
def test_data_without_a_case_is_an_error(tmp_path: Path, data: str) -> None:
    [problem] = suite(tmp_path, data).errors
    assert (problem.place, problem.message) == ("agents.d/data/refunds.jsonl", "it contains no case")


def test_a_missing_file_is_an_error_and_an_unused_one_a_warning(tmp_path: Path) -> None:
    unused, missing = suite(tmp_path, lines(HELLO), FILE.replace("refunds", "refund")).problems
    assert missing.place == "agents.d/one.test.yaml:2:7"
    assert missing.message.startswith("there is no file agents.d/data/refund.jsonl")
    assert "refunds.jsonl" in missing.message
    assert (unused.severity, unused.path) == ("warning", "agents.d/data/refunds.jsonl")


@pytest.mark.parametrize("path", ["../x.jsonl", "/etc/x.jsonl", "~/x.jsonl", "x.json"])
def test_data_is_a_file_of_lines_below_the_folder(tmp_path: Path, path: str) -> None:
    [problem] = suite(tmp_path, lines(HELLO), f"data: {path}\n").errors
    assert problem.message.startswith("write ")


def test_a_case_file_needs_cases_or_data(tmp_path: Path) -> None:
    [problem] = suite(tmp_path, lines(HELLO), "version: 1\n").errors
    assert problem.message.startswith("the key 'cases' is missing, or `data`")


def test_a_case_is_appended_to_data_as_a_line_with_a_new_name() -> None:
    before = case_line({"name": "a", "message": "x"}).rstrip("\n")
    text = with_case(before.encode(), {"name": "a", "message": "ü"}, "cases.jsonl")
    assert [json.loads(line) for line in text.splitlines()] == [
        {"name": "a", "message": "x"},
        {"name": "a (2)", "message": "ü"},
    ]
    with pytest.raises(RequestError, match=r"cases\.jsonl cannot be extended: cases\.jsonl:1:1: not JSON"):
        with_case(b"cases:\n", {"name": "a"}, "cases.jsonl")


def test_an_unknown_cost_exceeds_every_limit() -> None:
    expect = Expect(max_cost_usd=0.5)
    for cost, passed in ((0.5, True), (0.51, False), (None, False)):
        [check] = checks(expect, Evidence(cost_usd=cost))
        assert check.passed is passed


def test_a_judge_of_the_file_is_replaced_by_that_of_a_case() -> None:
    file = Expect(judge=Judge(rubric="a", model="x"), max_calls=1)
    own = Expect(judge=Judge(rubric="b", model="y"))
    assert own.over(file) == Expect(judge=own.judge, max_calls=1)
    assert Expect().over(file) == file
