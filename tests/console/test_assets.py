"""The console's static files: their size, what they may not contain, and that each of them is used."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest
import rjsmin

from framework.server.console import ConsoleFiles
from framework.server.console_scripts import as_function
from tests.support.editor import node
from tests.support.node_modules import CONSOLE
from tests.support.paths import ROOT, SUPPORT

PAGE_LIMIT = 184 * 1000
"""Bytes that the first visit of a page may load, uncompressed."""
COMPRESSED_PAGE_LIMIT = 58 * 1000
"""The same as it is sent to browsers."""
LIMIT = 408 * 1000
"""Bytes of all files that browsers may load, uncompressed."""
COMPRESSED_LIMIT = 132 * 1000
"""The same, compressed: modules that several pages load count once."""
SERVED = sorted(path for path in CONSOLE.rglob("*") if path.suffix in {".html", ".js", ".css", ".svg"})
NAMES = [path.relative_to(CONSOLE).as_posix() for path in SERVED]
SVG = "http://www.w3.org/2000/svg"
IMPORTS = re.compile(r"""(?:^(?:import|export)\b[^"'();]*|\bimport\()\s*["'](\.\.?/[^"']+)["']""", re.MULTILINE)
"""Relative imports, static and dynamic."""
STATIC_IMPORTS = re.compile(r"""^import\b[^"'();]*["'](\.\.?/[^"']+)["']""", re.MULTILINE)
PAGES = sorted(name for name in NAMES if name.endswith("/page.js"))
COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)
DESCENDANTS = re.compile(r"[^\s{},;>+~(&:*]\s+:(?:is|not|where|has|first|last|nth|hover|focus|disabled|checked|only)\b")
"""Selectors of descendants by a pseudo-class, such as `.card :not(p)`."""
COMMAS = re.compile(r",(?![^(]*\))")
"""Between selectors, not between those in brackets."""
COMBINATORS = re.compile(r"[\s>+~](?![^(]*\))")
CLASSES = re.compile(r"\.([a-z][\w-]*)")
URLS = re.compile(r"(?:https?|wss?):?//[\w.-]+|url\(")
MARKUP = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|createContextualFragment|srcdoc)\b"
    r"|\bdocument\.write|\beval\(|\bnew Function\b|\bsetAttribute\(\s*[\"'](?:style|on\w+)|\bjavascript:\S"
)
"""What turns text into markup, code or inline style."""


def text_of(name: str) -> str:
    return (CONSOLE / name).read_text("utf-8")


def code_of(name: str) -> str:
    return COMMENTS.sub("", text_of(name))


def blocks(sheet: str) -> list[tuple[str, str]]:
    """Return the rules at the top level of a style sheet: what stands before the braces, and what is inside."""
    found, begin = [], 0
    while (opened := sheet.find("{", begin)) >= 0:
        depth, end = 1, opened + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(sheet[end], 0)
            end += 1
        found.append((sheet[begin:opened].strip(), sheet[opened + 1 : end - 1]))
        begin = end
    return found


def global_classes(sheet: str) -> set[str]:
    """Return the classes by which the rules of a sheet begin that apply to all pages."""
    found: set[str] = set()
    for head, inside in blocks(sheet):
        if head.startswith("@media"):
            found |= global_classes(inside)
        elif not head.startswith("@"):
            first = [COMBINATORS.split(selector.strip())[0] for selector in COMMAS.split(head)]
            found |= set(CLASSES.findall(" ".join(first)))
    return found


@cache
def sent() -> ConsoleFiles:
    """Return the files as the server sends them."""
    return ConsoleFiles.of({name: (CONSOLE / name).read_bytes() for name in NAMES})


def scripts() -> dict[str, str]:
    return {name: asset.content.decode() for name, asset in sent().assets.items() if name.endswith(".js")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_little(page: str) -> None:
    """What a first visit of a page loads: the frame, the styles of all pages, and the script of this one."""
    names = ["main.js", page, *(name for name in sent().assets if not name.endswith(".js"))]
    assert len(sent().page) + sum(len(sent().assets[name].content) for name in names) <= PAGE_LIMIT
    assert sum(len(sent().assets[name].compressed) for name in names) <= COMPRESSED_PAGE_LIMIT


def test_all_files_together_stay_small() -> None:
    found = sent()
    folders: dict[str, int] = {"index.html": len(found.page), "styles.css": len(found.assets["styles.css"].content)}
    modules = b""
    numbers = {name: number for number, name in enumerate(name for name in NAMES if name.endswith(".js"))}
    for name in numbers:  # once, although it may be in the scripts of several pages
        module = rjsmin.jsmin(as_function(name, text_of(name), numbers)).encode()
        folders[name.partition("/")[0]] = folders.get(name.partition("/")[0], 0) + len(module)
        modules += module
    assert sum(folders.values()) <= LIMIT, folders
    assert len(gzip.compress(modules)) + len(found.assets["styles.css"].compressed) <= COMPRESSED_LIMIT


def test_the_scripts_contain_the_modules_of_the_folder() -> None:
    """As functions they have the same syntax trees, imports and exports."""
    acorn = ROOT / ".venv/node/node_modules/acorn/dist/acorn.mjs"
    if not acorn.is_file():
        pytest.skip("acorn is not installed: `make test` installs it")
    files = {name: text_of(name) for name in NAMES if name.endswith(".js")}
    program = [str(node()), str(SUPPORT / "compare_scripts.mjs"), str(acorn)]
    asked = json.dumps({"files": files, "scripts": scripts()})
    done = subprocess.run(program, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"compared": len(files), "different": []}


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Each is a function that needs what the modules before it return."""
    waiting = {name: {join_path(name, to) for to in STATIC_IMPORTS.findall(code_of(name))} for name in NAMES}
    while ready := [name for name, needed in waiting.items() if not needed & waiting.keys()]:
        for name in ready:
            del waiting[name]
    assert waiting == {}


def test_a_class_has_its_styles_in_one_sheet_or_in_the_scope_of_a_page() -> None:
    """A page's `.who` once changed the header of each turn in the chat."""
    owners: dict[str, set[str]] = {}
    for name in NAMES:
        for found in global_classes(code_of(name)) if name.endswith(".css") else ():
            owners.setdefault(found, set()).add(name)
    assert {found: names for found, names in owners.items() if len(names) > 1} == {}


def test_styles_of_a_page_are_in_its_scope() -> None:
    pages = {name.partition("/")[0] for name in PAGES} - {"editor"}  # a part of the page of the configuration
    for page in pages:
        heads = [head for head, _ in blocks(code_of(f"css/{page}.css"))]
        assert heads == [f"@scope (page-{page})"]


def test_global_classes_are_found() -> None:
    sheet = """
.a, p.b:is(.c, .d) > .inside { & .nested { color: red } }
@media (width < 9px) { .e { color: red } }
@scope (page-x) { .mine { color: red } }
@keyframes k { to { color: red } }
"""
    assert global_classes(sheet) == {"a", "b", "c", "d", "e"}


def test_the_styles_that_are_sent_select_the_same() -> None:
    """Inside a nested rule, the minifier takes the space before `:is(…)` for one after a property."""
    sources = [code_of(name) for name in NAMES if name.endswith(".css")]
    sheet = sent().assets["styles.css"].content.decode()
    assert len(DESCENDANTS.findall(sheet)) == sum(len(DESCENDANTS.findall(source)) for source in sources)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_short_and_its_lines_are_too(name: str) -> None:
    lines = text_of(name).splitlines()
    assert len(lines) <= 300
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_file_turns_text_into_markup_or_names_another_host(name: str) -> None:
    assert MARKUP.findall(text_of(name)) == []
    assert URLS.findall(COMMENTS.sub("", text_of(name)).replace(SVG, "")) == []


class _Page(HTMLParser):
    """The links of a page, and what is inline in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self._element = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element = tag
        for name, value in attrs:
            if name in {"src", "href"} and value:
                self.links.append(value)
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self._element in {"script", "style"} and data.strip():
            self.inline.append(f"{self._element}: {data}")

    def handle_endtag(self, tag: str) -> None:
        self._element = ""


def page() -> _Page:
    found = _Page()
    found.feed(text_of("index.html"))
    return found


def test_the_page_has_no_inline_script_or_style() -> None:
    assert page().inline == []


def targets_of(name: str) -> list[str]:
    """Return the files that a module imports."""
    return [join_path(name, target) for target in IMPORTS.findall(code_of(name))]


def join_path(name: str, target: str) -> str:
    return normpath(join(dirname(name), target))


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_every_import_exists(name: str) -> None:
    assert [target for target in targets_of(name) if target not in NAMES] == []


def test_every_file_is_used() -> None:
    waiting, used = [link.removeprefix("{{base}}/") for link in page().links], {"index.html"}
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += targets_of(name) if name.endswith(".js") else []
    assert set(NAMES) == used


def test_no_module_is_named_twice_by_different_letters() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)


def test_only_known_kinds_of_files_are_here() -> None:
    others = {path.name for path in CONSOLE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    others -= {Path(name).name for name in NAMES}
    assert others <= {"__init__.py", "jsconfig.json", "types.d.ts"}
