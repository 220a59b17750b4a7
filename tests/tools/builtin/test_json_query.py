"""`json_transform` evaluates JMESPath expressions within limits of memory and time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.builtin import data
from framework.tools.builtin.data import json_transform
from framework.tools.child_processes import INHERITED_VARIABLES
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from tests.support.cases import cases

SHOP = json.dumps(
    {"items": [{"name": "tea", "price": 3}, {"name": "日本茶", "price": 12.5}], "open": True, "note": None}
)


def ask(expression: str, data: str | None = SHOP, path: str | None = None, base: Path = Path()) -> Any:
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=base)
    return json_transform(expression, data, path, context=context)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("items[?price > `10`].{name: name, cost: price}", [{"name": "日本茶", "cost": 12.5}]),
        ("length(items)", 2),
        ("items[].name | join(', ', @)", "tea, 日本茶"),
        ("sort_by(items, &price)[-1].name", "日本茶"),
        ("open", True),
        ("nothing.there", "null: the expression matches nothing in the data"),
        ("@", json.loads(SHOP)),
    ],
)
def test_an_expression_is_evaluated(expression: str, result: Any) -> None:
    assert ask(expression) == result


def test_a_file_is_read_below_the_base_path_only(tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text("\ufeff" + SHOP)
    (tmp_path / "link.json").symlink_to(tmp_path / "shop.json")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')

    assert ask("items[0].name", None, "shop.json", tmp_path) == "tea"
    refused = {
        "../x.json": r"\.\.",
        "link.json": "link",
        ".env": "protected",
        "latin.json": "UTF-8",
        "s.json": "no file",
    }
    for path, message in refused.items():
        with pytest.raises(ToolError, match=message):
            ask("@", None, path, tmp_path)


def test_the_process_that_evaluates_has_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    dump = "import json, os; print(json.dumps({'result': json.dumps(sorted(os.environ))}))"
    program.write_text(f"#!{sys.executable}\n{dump}\n")
    program.chmod(0o755)
    monkeypatch.setenv("OPENAI_API_KEY", "not for workers")
    monkeypatch.setattr(sys, "executable", str(program))
    assert set(ask("@")) <= {*INHERITED_VARIABLES}


def test_a_file_in_a_folder_on_the_search_path_replaces_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may write into such a folder."""
    for name in ("json", "jmespath", "sitecustomize", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert ask("open") is True
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("expression", "data", "message"),
    [
        ("items[?price >", SHOP, "Incomplete expression"),
        ("items[[", SHOP, 'Parse error at column 6, token "\\["'),
        ("items ~ 1", SHOP, "Unknown token ~"),
        ("no_such(items)", SHOP, r"Unknown function: no_such\(\)"),
        ("length()", SHOP, "Expected 1 argument for function length"),
        ("length(open)", SHOP, "invalid type for value: True"),
        ("  ", SHOP, "1 to 2000 characters"),
        ("@." * 1001, SHOP, "1 to 2000 characters"),
        ("@", '{"a": 1,\n "b": }', "not JSON: Expecting value at line 2, column 7"),
        ("@", "[NaN]", "NaN is not a JSON number"),
        ("@", "", "not JSON"),
        ("@", f"[{'9' * 5000}]", "Exceeds the limit"),
        ("@", "[" * 100_000, "nested too deeply"),
        ("[" * 900 + "@" + "]" * 900, "1", "nested too deeply"),
        ("@", json.dumps("x" * 100_001), "more than 100000 characters: choose less"),
        ("@", None, "either data or path"),
    ],
)
def test_an_expression_that_fails_is_explained(expression: str, data: str | None, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        ask(expression, data)


@pytest.mark.parametrize(
    "expression",
    [
        "|".join(["[@,@]"] * 60),  # 60 pairs in memory, 2**60 in JSON
        "|".join(["[@,@]|[]"] * 40),  # a list that doubles
        "|".join(["join('',[@,@])"] * 40),  # a text that doubles
        "|".join(["[@,@]"] * 40) + "|to_string(@)",
        "|".join(["[@,@]"] * 25) + "|" + "|".join(["[]"] * 25) + "|sort(@)",
    ],
    ids=["result", "list", "text", "to_string", "flatten"],
)
def test_an_expression_that_grows_exponentially_is_stopped(expression: str) -> None:
    with pytest.raises(ToolError, match=r"takes too long|too much memory|more than 100000 characters"):
        ask(expression, '"some text"')


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no limit of address space")
def test_memory_is_limited() -> None:
    with pytest.raises(ToolError, match="too much memory"):
        ask("length(join('',[" + ",".join("@" * 900) + "]))", json.dumps("x" * 1_000_000))


def test_too_much_data_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_DATA_BYTES", 10)
    (tmp_path / "a.json").write_text('"12345678901"')
    for text, path in (('"12345678901"', None), (None, "a.json")):
        with pytest.raises(ToolError, match="larger than 10 bytes"):
            ask("@", text, path, tmp_path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@cases(15)
@given(JSON.filter(lambda value: value is not None))
def test_any_json_is_returned_unchanged(value: Any) -> None:
    assert ask("[@]", json.dumps(value)) == [value]
