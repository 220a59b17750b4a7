"""Markdown of models: what it becomes, that no text is lost, and that none of it becomes more than it may."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call

BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "pre", "blockquote", "ul", "ol", "table"}
INLINE = {"em", "strong", "s", "code", "a", "img", "br"}
PIECES = (
    "word", "中文", "👍🏽", " ", "  \n", "\n", "\n\n", "*", "**", "***", "_", "~~", "`", "```", "\n```js\n",
    "[", "![", "](", ")", "]", "<", ">", "https://a.example/x", "http://", "javascript:alert(1)",
    "mailto:a@b.example", "\\", "# ", "- ", "1. ", "> ", "|", "\n|-|-|\n", "\t", "<script>alert(1)</script>",
    "\u202e", "\u200b", "---\n", "    ", "x" * 50,
)  # fmt: skip


def parse(text: str) -> list[dict[str, Any]]:
    return list(call("widgets/markdown.js", "parse", text))


def inline(text: str) -> Any:
    [block] = parse(text)
    return block["text"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", ["plain"]),
        ("a *b* **c** _d_ ~~e~~", ["a ", ("em", "b"), " ", ("strong", "c"), " ", ("em", "d"), " ", ("s", "e")]),
        ("***both***", [("strong", "both")]),
        ("snake_case_name and 2 * 3 * 4", ["snake_case_name and 2 * 3 * 4"]),
        ("`a*b*` ``c`d``", [("code", "a*b*"), " ", ("code", "c`d")]),
        (r"\*no\* 5 \[x\]", ["*no* 5 [x]"]),
        ("** open [and `broken", ["** open [and `broken"]),
    ],
)
def test_emphasis_and_code(text: str, found: list[object]) -> None:
    assert [piece if isinstance(piece, str) else (piece["type"], *piece["children"]) for piece in inline(text)] == found


def test_columns_are_aligned_and_tasks_have_boxes() -> None:
    [table] = parse("| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | 3 |")
    assert table["sides"] == ["", "center", "end"]
    [tasks] = parse("- [ ] open\n- [x] done\n- [y] text")
    assert [item[0]["text"] for item in tasks["items"]] == [["☐ open"], ["☑ done"], ["[y] text"]]


def test_links_and_images() -> None:
    assert inline("[a](https://x.example/p_(q)) <https://y.example>") == [
        {"type": "a", "href": "https://x.example/p_(q)", "children": ["a"]},
        " ",
        {"type": "a", "href": "https://y.example", "children": ["https://y.example"]},
    ]
    assert inline("see https://x.example/a, ok") == [
        "see ",
        {"type": "a", "href": "https://x.example/a", "children": ["https://x.example/a"]},
        ", ok",
    ]
    assert inline("![logo](http://x.example/i.png)") == [
        {"type": "img", "href": "http://x.example/i.png", "children": ["logo"]}
    ]


@pytest.mark.parametrize(
    "target",
    ["javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "vbscript:x", "//evil.example", "/agent/runs",
     "file:///etc/passwd", "java&#115;cript:alert(1)", "https:", "\u0001javascript:x", "blob:x"],
)  # fmt: skip
def test_other_addresses_stay_text(target: str) -> None:
    pieces = inline(f"[x]({target})")
    assert all(isinstance(piece, str) for piece in pieces)
    assert "".join(pieces) == f"[x]({target})"


@pytest.mark.parametrize(
    ("label", "href", "place"),
    [
        ("Your bank", "https://evil.example?@bank.com", "evil.example"),
        ("Your bank", "https://evil.example#@bank.com", "evil.example"),
        ("Your bank", "https://evil.example/?bank.com", "evil.example"),
        ("https://bank.com", "https://evil.example/login", "evil.example"),
        ("https://bank.com/", "https://bank.com.evil.example/", "bank.com.evil.example"),
        ("apple", "https://\u0430pple.com/", "xn--pple-43d.com"),
        ("", "https://\u0430pple.com/", "xn--pple-43d.com"),
        ("", "http://0x7f.1/x", "127.0.0.1"),
        ("", "https://a.example/x?y=https://b.example", ""),
        ("write", "mailto:a@b.example?subject=x", "a@b.example"),
    ],
)
def test_the_place_beside_a_link_is_the_one_that_the_browser_opens(label: str, href: str, place: str) -> None:
    [link] = inline(f"[{label}]({href})" if label else href)
    assert (link["type"], link["href"], link["children"]) == ("a", href, [label or href])
    assert call("widgets/markdown-inline.js", "placeOf", link) == place


@pytest.mark.parametrize(
    "target", ["https://bank.com@evil.example/x", "https://a:b@evil.example", "https://[::1", "http://%"]
)
def test_addresses_with_a_user_or_without_a_host_stay_text(target: str) -> None:
    for text in (target, f"[Your bank]({target})"):
        assert "".join(inline(text)) == text


def test_blocks() -> None:
    lists, rows = "- a\n  - b\n- c\n\n3. x\n4. y", "| h | i |\n|---|---|\n| 1 | 2\\|3 |"
    text = f"# Title\n\npara\nmore\n\n{lists}\n\n> q\n\n{rows}\n\n---\n```py\nx = 1\n"
    title, para, bullets, numbers, quote, table, rule, code = parse(text)
    assert title == {"type": "h1", "text": ["Title"]}
    assert para == {"type": "p", "text": ["para\nmore"]}
    assert [item[0]["text"] for item in bullets["items"]] == [["a"], ["c"]]
    assert bullets["items"][0][1]["items"] == [[{"type": "p", "text": ["b"]}]]
    assert (numbers["start"], len(numbers["items"])) == (3, 2)
    assert quote["blocks"] == [{"type": "p", "text": ["q"]}]
    assert table["rows"] == [[["h"], ["i"]], [["1"], ["2|3"]]]
    assert rule == {"type": "hr"}
    assert code == {"type": "pre", "text": ["py"], "code": "x = 1\n"}


def words(block: Any) -> Iterator[str]:
    """Yield all texts of parsed Markdown, addresses included."""
    if isinstance(block, str):
        yield block
    elif isinstance(block, list):
        for each in block:
            yield from words(each)
    else:
        assert block["type"] in BLOCKS | INLINE
        if block["type"] == "a":
            assert re.match(r"(https?://|mailto:)[^\s<>\"]+$", block["href"], re.IGNORECASE), block["href"]
        for name in ("text", "children", "code", "blocks", "items", "rows"):
            yield from words(block.get(name, []))
        yield str(block.get("start", ""))
        yield block.get("href", "") if block.get("children") != [block.get("href")] else ""


def letters(text: str) -> str:
    return "".join(re.findall(r"\w", text, re.UNICODE))


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@cases(60)
def test_no_word_is_lost_and_nothing_but_the_allowed_is_made(text: str) -> None:
    markers = re.sub(r"(?m)^[\s>*+-]*(\d+[.)]\s+)+", "", text)  # numbers of lists after the first are counted anew
    found = sorted(letters("".join(words(parse(text)))))
    for letter in set(letters(markers)) - set("0123456789_"):
        assert found.count(letter) >= letters(markers).count(letter), letter


@given(st.text(max_size=300))
@cases(60)
def test_any_text_is_parsed(text: str) -> None:
    list(words(parse(text)))


@pytest.mark.parametrize("piece", ["*", "**a", "[", "`", "> ", "- ", "|a", "[a](", "_ ", "~~", "a\n", "- a\n", "1. "])
def test_the_time_grows_with_the_length_only(piece: str) -> None:
    def seconds(count: int) -> float:
        text = piece * count
        begin = time.perf_counter()
        parse(text)
        return time.perf_counter() - begin

    seconds(1000)
    short = min(seconds(20_000) for _ in range(3))
    # Quadratic time would be 64 times as long in each attempt; a pause of the machine is not in all of them.
    assert any(seconds(160_000) < 40 * max(short, 0.01) for _ in range(5)), "8 times the text"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("plain\n中文 👨‍👩‍👧 🏳️‍🌈", ["plain\n中文 👨‍👩‍👧 🏳️‍🌈"]),
        ("a\u202eb", ["a", {"hidden": "U+202E"}, "b"]),
        ("a\u200db", ["a", {"hidden": "U+200D"}, "b"]),
        ("\ufeff\x00\x1b", [{"hidden": "U+FEFF"}, {"hidden": "U+0000"}, {"hidden": "U+001B"}]),
        ("\U000e0041", [{"hidden": "U+E0041"}]),
    ],
)  # fmt: skip
def test_characters_that_cannot_be_seen_are_marked(text: str, pieces: list[object]) -> None:
    assert call("widgets/text.js", "pieces", text) == pieces


def test_long_lines_are_cut_between_characters() -> None:
    text = "short\n" + "😀" * 1500 + "\nend"
    first, rest, end = call("widgets/text.js", "pieces", text, 2001)
    assert first == "short\n" + "😀" * 1000
    assert rest == {"rest": "😀" * 500}
    assert end == "\nend"


def test_arguments_are_one_line() -> None:
    text = call(
        "widgets/json.js", "argumentText", {"order": "10482", "n": 12, "all": True, "o": {"a": [1]}, "t": "x" * 500}
    )
    assert text.startswith('order="10482" n=12 all=true o={"a":[1]} t="xxx')
    assert text.endswith("…")
