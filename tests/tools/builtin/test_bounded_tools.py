"""Memory and time of built-in tools are bounded, because a model chooses their input."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.builtin.files import edit_file, search_files
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from plugins import web
from plugins.format_text import MAX_CELLS, MAX_FORMATTED_CHARS, format_text
from tests.support.cases import cases
from tests.support.growth import assert_linear
from tests.support.paths import ROOT

MEMORY = 1024 * 1024 * 1024
"""Bytes of address space of a child: the old behaviour needs several times as much."""

TABLE = '"," * 100_000 + chr(10) + "a\\n" * 49_000'
WIDE_NAMES = '"n" * 100_000 + ",b" + chr(10) + "a,b\\n" * 24_000'
SPARSE = 'json.dumps([{f"k{n}": 1} for n in range(11_000)])'
DEEP = '"[" * 900 + ",".join(["1"] * 90_000) + "]" * 900'


def in_child(code: str, folder: Path) -> str:
    """Run Python with little memory; return its output."""
    prelude = f"import json, sys\nfrom pathlib import Path\nsys.path.append({str(ROOT)!r})\n"
    prelude += "from framework.types.errors import ToolError\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    return done.stdout + done.stderr


def test_a_text_that_would_grow_too_large_is_rejected_before_it_is_built(tmp_path: Path) -> None:
    texts = ((TABLE, "table"), (WIDE_NAMES, "json"), (SPARSE, "csv"), (SPARSE, "table"), (DEEP, "json"))
    attempts = (
        f"try:\n    print(len(format_text({text}, {style!r})))\n"
        "except ToolError as error:\n    print('refused', error)\n"
        for text, style in texts
    )
    lines = in_child("from plugins.format_text import format_text\n" + "".join(attempts), tmp_path).splitlines()
    assert [line.startswith("refused the ") for line in lines] == [True] * len(texts), lines


def test_a_replacement_that_would_grow_too_large_is_rejected_before_it_is_built(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 30_000)
    output = in_child(
        "from framework.tools.builtin.files import edit_file\n"
        "from framework.tools.tool import ToolContext\n"
        "context = ToolContext(run_id='r', call_id='c', agent='a', base_path=Path.cwd())\n"
        "try:\n    edit_file('a.txt', 'a', 'b' * 100_000, True, context=context)\n"
        "except ToolError as error:\n    print('refused', error)\n",
        tmp_path,
    )
    assert output.startswith("refused the text has 2861.0 MB; the limit is 1.0 MB")
    assert (tmp_path / "a.txt").read_text() == "a" * 30_000


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_file_may_grow_and_shrink_up_to_the_size_limit(tmp_path: Path, line_break: str) -> None:
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path)
    path, full = tmp_path / "a.txt", 1024 * 1024
    line = ("x" * 12 + "é" + line_break).encode()
    path.write_bytes(line * (full // len(line)))
    before = path.stat().st_size
    edit_file("a.txt", "é\n", "é", True, context=context)
    assert path.stat().st_size < before
    edit_file("a.txt", "é", "é\n", True, context=context)
    assert path.stat().st_size <= before


@cases(100)
@given(
    rows=st.lists(st.lists(st.text(alphabet='ab|" ,\n', max_size=6), min_size=1, max_size=8), min_size=1, max_size=8),
    style=st.sampled_from(["table", "csv", "json"]),
)
def test_formatted_text_never_exceeds_its_limit(rows: list[list[str]], style: str) -> None:
    try:
        formatted = format_text(json.dumps(rows), style)
    except ToolError:
        return
    assert len(formatted) <= max(MAX_FORMATTED_CHARS, 3 * MAX_CELLS)


def test_a_hint_about_a_similar_line_takes_linear_time(tmp_path: Path) -> None:
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path)

    def edit(lines: int) -> None:
        (tmp_path / "a.txt").write_text(("ab" * 55 + "c\n") * lines)
        with pytest.raises(ToolError, match="most similar line is 1"):
            edit_file("a.txt", "ab" * 60, "x", context=context)

    assert_linear(edit, lambda lines: lines, largest=8_000)


@pytest.mark.parametrize("text", ["a" * 100, "aé", "ß", "ſ", "İ"])
def test_a_search_takes_linear_time(tmp_path: Path, text: str) -> None:
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path)
    query = "a" * 249 + "b" + "a" * 250

    def search(size: int) -> None:
        (tmp_path / "a.txt").write_text((text * size)[:size])
        assert search_files(query, context=context) == f"No files match '{query}'."

    assert_linear(search, lambda size: 4_000 + size, largest=128_000)  # no text is shorter than the query


def test_asi08_a_page_that_takes_too_long_to_extract_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "EXTRACT_SECONDS", 3)
    with pytest.raises(ToolError, match="https://h/ is too complex to read"):
        web._readable("<html><body><article><p>" + "a<br>" * 1_000_000 + "</p></article></body></html>", "https://h/")
