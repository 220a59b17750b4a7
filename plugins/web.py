"""The web for agents: pages as readable text, and a search. `tools.http` in agentsd.yaml lists the allowed hosts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any
from urllib.parse import urlencode

from agentsd import HttpClient, ToolContext, ToolError, tool

MAX_CHARS = 20_000
MAX_SNIPPET = 500
TAVILY = "https://api.tavily.com"
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/ld+json")
HTML_TYPES = ("", "text/html", "application/xhtml+xml")
_STYLE = "translate(@style, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ ', 'abcdefghijklmnopqrstuvwxyz')"
HIDDEN = f"//*[@hidden or contains({_STYLE}, 'display:none') or contains({_STYLE}, 'visibility:hidden')]"
"""XPath of invisible elements: text that people do not see is not shown to models either."""


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
"""Script for a process with limits: a hostile page can keep the library busy, and a thread cannot be stopped."""


class SearchNotSetUp(ToolError):
    """No search service is configured."""

    code = "search_not_set_up"


@tool(risk="medium", idempotent=True, urls="url", needs={"trafilatura": "agentsd[web]"})
async def read_url(url: str, context: ToolContext) -> str:
    """Fetch a web page (抓取网页) and return its readable text, without menus, scripts and hidden parts.

    Args:
        url: An http(s) URL, such as https://example.com/news.
        context: The run.
    """
    reply = await HttpClient(context.http).request("GET", url, headers={"accept": "text/html, text/*;q=0.9, */*;q=0.1"})
    if reply.status >= 400:
        raise ToolError(f"{reply.url} returned status {reply.status}")
    if reply.content_type in HTML_TYPES:
        text = await asyncio.to_thread(_readable, reply.text, reply.url)
    elif reply.content_type.startswith(TEXT_TYPES):
        text = reply.text
    else:
        raise ToolError(f"{reply.url} is {reply.content_type}, not text")
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n(truncated: the page is longer)"


@tool(risk="medium", idempotent=True)
async def web_search(query: str, limit: int = 5) -> list[dict[str, str]]:
    """Search the internet (联网): titles, addresses and a few lines of the pages found.

    Args:
        query: The search terms.
        limit: Maximum number of results, up to 20.
    """
    if not 1 <= limit <= 20:
        raise ToolError("limit must be from 1 to 20")
    if key := os.environ.get("TAVILY_API_KEY"):
        results = await _tavily(os.environ.get("TAVILY_URL", TAVILY), key, query, limit)
    elif server := os.environ.get("SEARXNG_URL"):
        results = await _fetch(server, "GET", f"/search?{urlencode({'q': query, 'format': 'json'})}")
    else:
        raise SearchNotSetUp("no search service is set up: the operator must set TAVILY_API_KEY or SEARXNG_URL")
    return [_result(entry) for entry in results[:limit] if isinstance(entry, dict)]


def _readable(html: str, url: str) -> str:
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", EXTRACT, url, HIDDEN, str(EXTRACT_SECONDS)],
            input=html.encode("utf-8", "replace"),
            capture_output=True,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},  # no keys
            timeout=2 * EXTRACT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{url} is too complex to read") from None
    if process.returncode != 0:  # killed by its CPU limit, or out of memory
        raise ToolError(f"{url} is too complex to read")
    if not (text := process.stdout.decode("utf-8", "replace")):
        raise ToolError(f"{url} has no readable text")
    return text


async def _tavily(server: str, key: str, query: str, limit: int) -> list[Any]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = json.dumps({"query": query, "max_results": limit}).encode()
    return await _fetch(server, "POST", "/search", headers, body)


async def _fetch(
    server: str, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> list[Any]:
    """Return the results of a search service. The operator chose its address, so it may be on a private network."""
    client = HttpClient.to(server)
    reply = await client.request(method, server.rstrip("/") + target, headers=headers, body=body, follow=False)
    try:
        results = json.loads(reply.body)["results"]
    except (ValueError, KeyError, TypeError):
        results = None
    if reply.status != 200 or not isinstance(results, list):
        raise ToolError(f"the search service returned status {reply.status} without results")
    return results


def _result(entry: dict[str, Any]) -> dict[str, str]:
    title, url, text = (str(entry.get(key) or "") for key in ("title", "url", "content"))
    return {"title": title[:200], "url": url, "text": text[:MAX_SNIPPET]}
