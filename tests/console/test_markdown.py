"""Markdown of models: what it becomes, that no text is lost, and that none of it becomes more than it may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call
from tests.support.paths import ROOT

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
        ("***both***", [("em", {"type": "strong", "children": ["both"]})]),
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
    [link] = inline(f"[{label}]({href})" if label else f"<{href}>")
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
    assert code == {"type": "pre", "text": ["py"], "code": "x = 1\n", "isOpen": True}
    assert parse("a title\n---\n\n    indented\n\n~~~ sh -x\nls\n~~~")[1:] == [
        {"type": "pre", "text": [""], "code": "indented"},
        {"type": "pre", "text": ["sh -x"], "code": "ls"},
    ]


def test_footnotes_stay_where_they_are() -> None:
    mark, note = parse("A fact.[^1] [^no](https://x.example)\n\n[^1]: Said **twice**.")
    link = {"type": "a", "href": "https://x.example", "children": ["^no"]}
    assert mark["text"] == ["A fact.", {"type": "sup", "children": ["1"]}, " ", link]
    assert note["text"][0] == {"type": "sup", "children": ["1"]}
    assert note["text"][2] == {"type": "strong", "children": ["twice"]}


def test_what_a_row_has_too_many_is_shown_and_definitions_of_addresses_too() -> None:
    [table] = parse("| a |\n|---|\n| 1 | hidden | too |\n")
    assert table["rows"][1] == [["1"], ["hidden"], ["too"]]
    assert inline("[bank]: https://evil.example")[0] == "[bank]: "


def test_an_address_ends_before_chinese_punctuation() -> None:
    address, rest, bold = inline("https://x.example/a。再**见**")
    assert (address["href"], rest, bold["type"]) == ("https://x.example/a", "。再", "strong")


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


HOSTILE = (
    "*", "**a", "*a ", "[", "![", "`", "> ", "- ", "|a", "[a](", "_ ", "a_b_", "~~", "a\n", "- a\n", "1. ", "1. a\n",
    "<a", "<!--", "!", "[^1]", "a@b.", "http://", "> a\nb\n", "> > > > > > > a\nb\n", ">- a\nb\n", "  - a\n", "\\",
    "|-|\n", "| a | b |\n|---|---|\n", "~~~\n", "# a\n", "**a*b", "a" * 50 + "\n",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_the_work_grows_with_the_length_only(piece: str) -> None:
    """Counts the characters that the lexer reads, those of nested texts again."""

    def work(count: int) -> float:
        text = piece * (count // len(piece))
        return float(call("widgets/markdown.js", "read", text)["work"]) / len(text)

    small, large = work(16_000), work(128_000)
    assert large <= 1.1 * small + 1
    assert large <= 12.5, "times each character is read; a text that costs more is shown as it is"


def test_pages_of_documentation_cost_far_less_than_what_is_allowed() -> None:
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "AGENTS.md"]:
        text = path.read_text("utf-8")
        assert call("widgets/markdown.js", "read", text)["work"] <= 6 * len(text), path


def stream(texts: list[str]) -> list[dict[str, Any]]:
    """Return how a growing text is read, in pieces as they arrive."""
    reading, found, text = None, [], ""
    for piece in texts:
        text += piece
        reading = call("widgets/markdown.js", "read", text, reading)
        found.append(reading)
    return found


@given(st.lists(st.sampled_from((*PIECES, "a", "=", "1", "|-")), max_size=24))
@cases(60)
def test_a_text_that_grows_is_read_as_the_whole(texts: list[str]) -> None:
    whole = "".join(texts)
    readings = stream(texts)
    if readings:
        assert readings[-1]["blocks"] == parse(whole)
    for before, after in pairwise(readings):
        assert before["blocks"][: after["same"]] == after["blocks"][: after["same"]]


@pytest.mark.parametrize(
    "piece", ["A paragraph of *some* words.\n\n", "- item\n\nend\n\n", "```py\nx = 1\n```\n", "x = [1]\n"]
)
def test_reading_a_text_that_grows_reads_each_part_a_few_times(piece: str) -> None:
    begin = "```py\n" if piece.startswith("x") else ""
    texts = [begin, *(piece[at : at + 4] for _ in range(60) for at in range(0, len(piece), 4))]
    readings = stream(texts)
    assert readings[-1]["blocks"] == parse("".join(texts))
    assert max(reading["work"] for reading in readings) <= 600, "of one piece that arrives"
    late = sum(reading["work"] for reading in readings[len(readings) // 2 :])
    assert late <= 1.2 * sum(reading["work"] for reading in readings[: len(readings) // 2]) + 600


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
