"""The console's static files: their size, what they may not contain, and that each of them is used."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from framework.server.process import ConsoleFiles
from tests.support.built_console import built_console, packages
from tests.support.cases import each
from tests.support.node_modules import CONSOLE

PAGE_LIMIT = 208 * 1000
"""Bytes that the first visit of a page may load, uncompressed."""
COMPRESSED_PAGE_LIMIT = 69 * 1000
"""The same as it is sent to browsers."""
LIMIT = 940 * 1000
"""Bytes of all files that browsers may load, uncompressed."""
COMPRESSED_LIMIT = 330 * 1000
"""The same, compressed."""
KNOWN = {"__init__.py", "build.mjs", "jsconfig.json", "libraries.d.ts", "package.json", "types.d.ts"}
OF_A_BUILD = CONSOLE / "built"
SERVED = sorted(
    path
    for path in CONSOLE.rglob("*")
    if path.suffix in {".html", ".js", ".css", ".svg"} and OF_A_BUILD not in path.parents
)
NAMES = [path.relative_to(CONSOLE).as_posix() for path in SERVED]
SVG = "http://www.w3.org/2000/svg"
IMPORTS = re.compile(r"""(?:^(?:import|export)\b[^"'();]*|\bimport\()\s*["'](\.\.?/[^"']+)["']""", re.MULTILINE)
"""Relative imports, static and dynamic."""
BUILT_IMPORTS = re.compile(r"""\b(?:from|import)"(\.\.?/[^"]+)\"""")
"""Static imports of a built script."""
LIBRARIES = ("@codemirror/view", "highlight.js", "lowlight", "marked")
"""Some of those in the built console."""
STATIC_IMPORTS = re.compile(r"""^import\b[^"'();]*["'](\.\.?/[^"']+)["']""", re.MULTILINE)
PAGES = sorted(name for name in NAMES if name.endswith("/page.js"))
COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)
DESCENDANTS = re.compile(r"[^\s{},;>+~(&:*]\s+:(?:is|not|where|has|first|last|nth|hover|focus|disabled|checked|only)\b")
"""Selectors of descendants by a pseudo-class, such as `.card :not(p)`."""
COMMAS = re.compile(r",(?![^(]*\))")
"""Between selectors, not between those in brackets."""
COMBINATORS = re.compile(r"[\s>+~](?![^(]*\))")
CLASSES = re.compile(r"\.([a-z][\w-]*)")
PATHS = re.compile(r"(?<!apiPath)`/[a-z]+/[^`]*\$\{(?![\w.]+\.split\()")
"""Paths of the API with a value that is not encoded, not even in parts."""
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
    """Return the files of the built console as the server sends them."""
    built = built_console()
    return ConsoleFiles.of({path.relative_to(built).as_posix(): path.read_bytes() for path in files_in(built)})


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "sources.txt"]


def loaded(name: str) -> set[str]:
    """Return a script of the built console with all that it imports at once, in any number of steps."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        if (script := waiting.pop()) not in found:
            found.add(script)
            text = sent().assets[script].content.decode()
            waiting += [join_path(script, target) for target in BUILT_IMPORTS.findall(text)]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_little(page: str) -> None:
    """What a first visit of a page loads: the frame, the styles of all pages, and the scripts of this one."""
    names = {"styles.css", "icon.svg", *loaded("main.js"), *loaded(page)}
    assert len(sent().page) + sum(len(sent().assets[name].content) for name in names) <= PAGE_LIMIT
    assert sum(len(sent().assets[name].compressed) for name in names) <= COMPRESSED_PAGE_LIMIT


def test_all_files_together_stay_small() -> None:
    sizes = {name: len(asset.content) for name, asset in sent().assets.items() if name != "licenses.txt"}
    assert sum(sizes.values()) <= LIMIT, sizes
    assert sum(len(sent().assets[name].compressed) for name in sizes) <= COMPRESSED_LIMIT


def test_what_a_page_imports_is_known_before_its_script_has_arrived() -> None:
    """The page preloads the script of shared modules, so no script is found only when another one has arrived."""
    [chunk] = loaded("main.js") - {"main.js"}
    assert f'<link rel="modulepreload" href="/console/{sent().digest}/{chunk}">' in sent().page.decode()
    for page in PAGES:
        assert len(loaded(page) - {chunk, page}) <= 1, "the approval card, which two pages show"


def test_the_licenses_of_the_libraries_are_sent() -> None:
    text = sent().assets["licenses.txt"].content.decode()
    for name in LIBRARIES:
        assert f"{name} {pinned()[name]} (" in text
    assert "licenses.txt" in sent().assets["main.js"].content.decode()


def pinned() -> dict[str, str]:
    found: dict[str, str] = json.loads((CONSOLE / "package.json").read_text("utf-8"))["dependencies"]
    return found


def test_each_package_from_npm_has_an_exact_version() -> None:
    assert [name for name, version in pinned().items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    folder = packages()
    if folder is None:
        pytest.skip("the packages are not installed: `make test` installs them")
    installed = json.loads((folder / ".package-lock.json").read_text("utf-8"))["packages"]
    found = {name.removeprefix("node_modules/"): package["version"] for name, package in installed.items()}
    assert {name: version for name, version in found.items() if not name.startswith("@esbuild/")} == pinned()


def test_a_bare_checkout_has_a_module_with_the_names_of_the_libraries() -> None:
    plain, real = (
        set(re.findall(r"^export (?:const|\{) (\w+)", text_of(name), re.MULTILINE))
        for name in ("core/libraries.js", "libraries/npm.js")
    )
    assert plain == real


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


@each("name", NAMES)
def test_a_file_is_short_and_its_lines_are_too(name: str) -> None:
    lines = text_of(name).splitlines()
    assert len(lines) <= 300
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


@each("name", NAMES)
def test_no_file_turns_text_into_markup_or_names_another_host(name: str) -> None:
    assert MARKUP.findall(text_of(name)) == []
    assert URLS.findall(COMMENTS.sub("", text_of(name)).replace(SVG, "")) == []


@each("name", [name for name in NAMES if name.endswith(".js")])
def test_values_in_paths_of_the_api_are_encoded(name: str) -> None:
    assert PATHS.findall(text_of(name)) == []


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


@each("name", [name for name in NAMES if name.endswith(".js")])
def test_every_import_exists(name: str) -> None:
    assert [target for target in targets_of(name) if target not in NAMES] == []


def test_every_file_is_used() -> None:
    waiting, used = [link.removeprefix("{{base}}/") for link in page().links], {"index.html"}
    waiting.append("libraries/npm.js")  # of a build, in the place of core/libraries.js
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += targets_of(name) if name.endswith(".js") else []
    assert set(NAMES) == used


def test_no_module_is_named_twice_by_different_letters() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)


def test_only_known_kinds_of_files_are_here() -> None:
    others = {path.name for path in CONSOLE.rglob("*") if path.is_file() and OF_A_BUILD not in path.parents}
    others -= {Path(name).name for name in NAMES}
    assert {name for name in others if not name.endswith(".pyc")} <= KNOWN
