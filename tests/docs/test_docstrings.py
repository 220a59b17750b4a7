"""Examples in docstrings are valid Python, and run in a small project."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "framework"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(
    r"\s*(@\w+|(async )?(def|with|for) .*:$|class \w+.*:$|await |from [\w.]+ import |import \w|\w+ = \S"
    r"|\w+\.\w+\(.*\)$)"
)
"""A line of a docstring that looks like code."""
PROJECT = {
    "agents.d/reader.yaml": """\
version: 1
name: reader
description: Reads files.
model: scripted
instructions: Read what the user asks for.
skill_policy: {allow: [read_file]}
""",
    "a.txt": "hello\n",
}


def docstrings(*marks: str) -> Iterator[tuple[str, str]]:
    """Every docstring of the files that contain one of `marks`, with its place, including those of constants."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        for node in statements(ast.parse(source)) if any(mark in source for mark in marks) else ():
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", inspect.cleandoc(text)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, and not the expressions in them, which are nine of ten nodes."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(node, field, ()) if not isinstance(node, ast.expr) else ():
            yield statement
            yield from statements(statement)


def has_example(text: str) -> bool:
    return bool(FENCED.search(text) or doctest.DocTestParser().get_examples(text))


EXAMPLES = [(place, text) for place, text in docstrings("```", ">>>") if has_example(text)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("place", "text"), EXAMPLES, ids=[place for place, _ in EXAMPLES])
def test_the_examples_of_a_docstring_run(place: str, text: str, project: Path) -> None:
    for language, code in FENCED.findall(text):
        assert language == "python", f"{place}: name the language of the example"
        exec(compile(code, place, "exec"), {"__name__": place})
    session = doctest.DocTestParser().get_doctest(FENCED.sub("", text), {}, place, place, 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session).failed == 0


def test_the_example_of_the_testing_module_is_found() -> None:
    assert "framework/testing.py:1" in [place for place, _ in EXAMPLES]


def test_no_docstring_has_code_outside_of_an_example() -> None:
    lines = [
        f"{place}: {line}"
        for place, text in docstrings('"""')
        for line in FENCED.sub("", text).splitlines()
        if CODE.match(line)
    ]
    assert not lines, "put code into a ```python block, so that it runs here"
