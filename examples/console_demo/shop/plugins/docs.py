"""The help pages of the shop."""

from __future__ import annotations

from pathlib import Path

from agentsd import ToolError, tool

SHOP = Path(__file__).resolve().parent.parent
PAGES = SHOP / "help"
STAFF = PAGES / "internal"


@tool(risk="low", idempotent=True)
def search(query: str) -> list[dict[str, str]]:
    """Search the help pages for customers, and return the matching lines.

    Args:
        query: words to look for; a page that contains one of them matches.
    """
    words = query.lower().split()
    return [
        {"path": path.relative_to(SHOP).as_posix(), "line": line}
        for path in sorted(PAGES.rglob("*.md"))
        if not path.is_relative_to(STAFF)
        for line in path.read_text("utf-8").splitlines()
        if any(word in line.lower() for word in words)
    ]


@tool(risk="low", idempotent=True, paths="path")
def read(path: str) -> str:
    """Return one help page.

    Args:
        path: the page, such as help/returns.md.
    """
    page = (SHOP / path).resolve()
    if not page.is_relative_to(PAGES) or not page.is_file():
        raise ToolError(f"there is no help page {path!r}; docs.search lists them")
    return page.read_text("utf-8")
