"""The web for agents: pages as readable text, and a search. agentsd.yaml says what may be reached (`tools.http`)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from framework import HttpClient, ToolContext, ToolError, tool

MAX_CHARS = 20_000
MAX_SNIPPET = 500
TAVILY = "https://api.tavily.com"
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/ld+json")
HTML_TYPES = ("", "text/html", "application/xhtml+xml")
_STYLE = "translate(@style, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ ', 'abcdefghijklmnopqrstuvwxyz')"
HIDDEN = f"//*[@hidden or contains({_STYLE}, 'display:none') or contains({_STYLE}, 'visibility:hidden')]"
"""What people do not see, models should not read."""


EXTRACT_SECONDS = 10
EXTRACT = """
import resource, sys
url, hidden, seconds = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
if sys.platform == "linux":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from trafilatura import extract
html = sys.stdin.buffer.read().decode()
options = {"include_comments": False, "include_links": True, "prune_xpath": hidden}
text = extract(html, url=url, output_format="markdown", **options)
sys.stdout.buffer.write((text or "").encode("utf-8", "replace"))
"""
"""Runs in a process with limits: a hostile page keeps the library busy for long, and a thread cannot be ended."""


class SearchNotSetUp(ToolError):
    """There is no service to search with."""

    code = "search_not_set_up"


@tool(risk="medium", idempotent=True, urls="url")
async def read_url(url: str, context: ToolContext) -> str:
    """Fetch a web page (抓取网页) and return its readable text, without menus, scripts and hidden parts.

    Args:
        url: An http(s) address, such as https://example.com/news.
        context: The run.
    """
    reply = await HttpClient(context.http).request("GET", url, headers={"accept": "text/html, text/*;q=0.9, */*;q=0.1"})
    if reply.status >= 400:
        raise ToolError(f"{reply.url} answered {reply.status}")
    if reply.content_type in HTML_TYPES:
        text = await asyncio.to_thread(_readable, reply.text, reply.url)
    elif reply.content_type.startswith(TEXT_TYPES):
        text = reply.text
    else:
        raise ToolError(f"{reply.url} is {reply.content_type}, not text")
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n(the page goes on)"


@tool(risk="medium", idempotent=True)
async def web_search(query: str, limit: int = 5) -> list[dict[str, str]]:
    """Search the internet (联网): titles, addresses and a few lines of the pages found.

    Args:
        query: What to look for.
        limit: How many results at most, up to 20.
    """
    if not 1 <= limit <= 20:
        raise ToolError("limit must be from 1 to 20")
    if key := os.environ.get("TAVILY_API_KEY"):
        found = await _tavily(os.environ.get("TAVILY_URL", TAVILY), key, query, limit)
    elif server := os.environ.get("SEARXNG_URL"):
        found = await _fetch(server, "GET", f"/search?{urlencode({'q': query, 'format': 'json'})}")
    else:
        raise SearchNotSetUp("no search service is set up: the environment needs TAVILY_API_KEY or SEARXNG_URL")
    return [_result(entry) for entry in found[:limit] if isinstance(entry, dict)]


def _readable(html: str, url: str) -> str:
    if find_spec("trafilatura") is None:
        raise ToolError("reading web pages needs a package: pip install 'agentsd[web]'")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", EXTRACT, url, HIDDEN, str(EXTRACT_SECONDS)],
            input=html.encode("utf-8", "replace"),
            capture_output=True,
            timeout=2 * EXTRACT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{url} is too complicated to be read") from None
    if done.returncode != 0:  # killed by its limits, or out of memory
        raise ToolError(f"{url} is too complicated to be read")
    if not (text := done.stdout.decode("utf-8", "replace")):
        raise ToolError(f"{url} has no readable text")
    return text


async def _tavily(server: str, key: str, query: str, limit: int) -> list[Any]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = json.dumps({"query": query, "max_results": limit}).encode()
    return await _fetch(server, "POST", "/search", headers, body)


async def _fetch(
    server: str, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> list[Any]:
    """What a search service found; its address comes from the environment, so the operator chose it, not the model."""
    client = HttpClient.to(server)
    reply = await client.request(method, server.rstrip("/") + target, headers=headers, body=body, follow=False)
    try:
        found = json.loads(reply.body)["results"]
    except (ValueError, KeyError, TypeError):
        found = None
    if reply.status != 200 or not isinstance(found, list):
        raise ToolError(f"the search service answered {reply.status} without results")
    return found


def _result(entry: dict[str, Any]) -> dict[str, str]:
    title, url, text = (str(entry.get(key) or "") for key in ("title", "url", "content"))
    return {"title": title[:200], "url": url, "text": text[:MAX_SNIPPET]}
