"""The documentation site: it builds without a broken link, and its search answers a newcomer's questions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

from tests.support.console import open_page, run_in_browser
from tests.support.paths import ROOT

QUESTIONS = {
    "first agent": "1. Your first agent",
    "create a plugin": "Write a plugin",
    "deny rule": "Verdicts of the policy",
    "truth table": "Verdicts of the policy",
    "fastapi": "Embed agents in a FastAPI app",
    "mcp server": "Connect an MCP server",
    "ollama": "Use a local model",
    "slack": "Approve from Slack",
    "webhook": "Start runs by schedule or webhook",
    "kubernetes": "Run in Kubernetes",
    "pre-commit": "Review agents in pull requests",
    "langchain": "Migrate from LangChain",
    "docker agent": "Migrate from Docker Agent",
    "guardrail": "Write a guardrail",
    "executor": "Write an executor",
    "fixed plan": "Follow a fixed plan",
    "fixed steps": "Follow a fixed plan",
    "command hook": "Check calls with a command hook",
    "program hook": "Check calls with a command hook",
    "handoff": "Hand a conversation to another agent",
    "hand over conversation": "Hand a conversation to another agent",
    "remember preferences": "Remember across conversations",
    "forget note": "Remember across conversations",
    "embedder": "Remember across conversations",
    "triggers": "Start runs by schedule or webhook",
    "github issue": "Start runs by schedule or webhook",
    "schedule": "Start runs by schedule or webhook",
    "missed run": "Start runs by schedule or webhook",
    "test an agent": "Test agents",
    "budget": "Agent files",
    "prices": "Settings",
    "environment variables": "Keys of agentsd.yaml",
    "exit codes": "Errors and outcomes",
    "error codes": "Errors and outcomes",
    "phoenix": "7. Traces",
    "metrics": "Metrics and attributes",
    "crash": "Stored runs",
    "rollback": "Operate a server",
    "install agentsd": "Install",
    "pip install": "Install",
    "uninstall": "Install",
    "upgrade": "Install",
    "extras": "Install",
    "start a project": "Questions and answers",
    "always allow tool": "Questions and answers",
    "diff before write": "Questions and answers",
    "staging production": "Use environments",
    "dotenv": "Questions and answers",
    ".env": "The command line",
    "environment variable in agent file": "Questions and answers",
    "variables in agent files": "Questions and answers",
    "shared budget": "Keys of agentsd.yaml",
    "sub agents": "Questions and answers",
    "include template": "Agent files",
    "jq": "Questions and answers",
    "completion": "The command line",
    "vscode schema": "Questions and answers",
    "risk_level": "Questions and answers",
    "confirm": "Questions and answers",
    "api key": "Questions and answers",
    "streaming curl": "Questions and answers",
    "cron": "Start runs by schedule or webhook",
    "rag": "Questions and answers",
    "memory across conversations": "Questions and answers",
    "unknown key": "Troubleshooting",
    "offline stand-in": "Troubleshooting",
    "read-only file system": "Run in a container",
    "single file mount": "Run in a container",
    "proxy": "Use proxies and certificates",
    "certificate": "Use proxies and certificates",
    "cors": "HTTP server",
    "jupyter": "Use in Jupyter",
    "celery": "Use with Celery",
    "digest": "Glossary",
    "contract": "Glossary",
    "waterfall": "Glossary",
    "plan approval": "Plans",
    "structured output": "Questions and answers",
    "temperature": "Models",
    "fallback model": "Questions and answers",
    "stop a run": "Questions and answers",
    "images": "Images, PDFs and audio",
    "postgresql": "Questions and answers",
    "tenant": "Embedding",
    "open webui": "OpenAI, AG-UI and MCP",
    "max_steps": "Troubleshooting",
    "hot reload": "Questions and answers",
    "quickstart": "Questions and answers",
    "getting started": "Questions and answers",
    "human in the loop": "Questions and answers",
    "mock model": "Questions and answers",
    "django": "Questions and answers",
    "auth": "Questions and answers",
    "sse": "Questions and answers",
    "custom tool": "Questions and answers",
    "windows": "Questions and answers",
    "nginx": "Questions and answers",
    "gdpr": "Questions and answers",
    "langfuse": "Tracing",
    "vllm": "Models",
    "retention": "Conversations",
    "compare models": "Test agents",
    "long-term memory": "Remember across conversations",
    "prompt injection": "Security",
    "approve_from": "Questions and answers",
    "max_risk": "Questions and answers",
    "max steps": "Questions and answers",
    "fork": "Conversations",
    "workers": "Operate a server",
    "scale": "Operate a server",
    "prometheus": "Operate a server",
    "upgrades": "Operate a server",
    "edit over http": "Operate a server",
    "idempotency-key": "HTTP server",
    "ratings": "HTTP server",
    "cors origins": "HTTP server",
    "last-event-id": "HTTP server",
    "openai clients": "OpenAI, AG-UI and MCP",
    "copilotkit": "OpenAI, AG-UI and MCP",
    "claude code": "OpenAI, AG-UI and MCP",
    "stop asking": "Stop asking for the same thing",
}
"""What a newcomer types into the search, and the heading of the page that answers it."""
FIRST_HITS = {"scaling": "Operate a server", "idempotency": "HTTP server", "idempotency key": "HTTP server"}
"""Questions whose answer is the first hit."""
FIRST = 3
"""The answer is one of so many first hits."""
WIDTHS = {"desk": 1440, "phone": 390}


@dataclass(frozen=True)
class Site:
    """The site, served from a folder."""

    folder: Path
    url: str

    def heading(self, link: str) -> str:
        """Return the heading of a page, by its URL."""
        text = (self.folder / urlsplit(link).path.lstrip("/")).read_text("utf-8")
        found = re.search(r"<h1[^>]*>(.*?)<", text, re.DOTALL)
        return found[1].strip() if found else ""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line on the terminal for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Build the site as `make docs` does, and serve it."""
    project = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "zensical.toml", project)
    shutil.copytree(ROOT / "docs", project / "docs")
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    folder = project / "build/site"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_the_search_answers_questions_among_its_first_hits(site: Site) -> None:
    async def main() -> None:
        async with open_page(site, "index.html") as page:
            await page.get_by_role("button", name="Search").first.click()
            hits = {query: await _hits(page, query) for query in QUESTIONS}
            first = {query: (await _hits(page, query))[0] for query in FIRST_HITS}
        found = {query: [site.heading(link) for link in links] for query, links in hits.items()}
        assert {query: site.heading(link) for query, link in first.items()} == FIRST_HITS
        missed = {query: pages for query, pages in found.items() if QUESTIONS[query] not in pages}
        assert not missed, "\n".join(f"{query}: {pages}, not {QUESTIONS[query]!r}" for query, pages in missed.items())

    run_in_browser(main())


def test_the_search_leaves_out_what_is_not_for_users(site: Site) -> None:
    """Design records, benchmarks and the other language are read from links, and would hide what answers a question."""
    pages = {item["location"].split("#")[0] for item in json.loads((site.folder / "search.json").read_text())["items"]}
    assert "agents.html" in pages
    assert [page for page in sorted(pages) if page.startswith(("design/", "benchmarks", "zh/"))] == []


def test_a_table_of_keys_is_read_on_a_phone_without_scrolling_sideways(site: Site) -> None:
    async def main() -> None:
        async with open_page(site, "reference/agent-file.html", width=WIDTHS["phone"]) as page:
            meaning = page.get_by_role("cell", name="Purpose of the agent").first
            await expect(meaning).to_be_visible()
            box = await meaning.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= WIDTHS["phone"]

    run_in_browser(main())


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_shown_without_other_servers(site: Site, width: int, dark: bool) -> None:
    async def main() -> None:
        async with open_page(site, "tools.html", width=width, dark=dark) as page:
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            is_as_wide = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert is_as_wide, "the page scrolls sideways"
            background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (max(int(part) for part in re.findall(r"\d+", background)[:3]) < 100) is dark

    run_in_browser(main())


async def _hits(page: Page, query: str) -> list[str]:
    """Type a query into the open search; return the links of its first hits."""
    box = page.get_by_role("combobox", name="Search")
    await box.fill("")
    await expect(page.get_by_role("option")).to_have_count(0)  # hits of the query before
    await box.fill(query)
    await expect(page.get_by_role("option").first).to_be_visible()
    links: list[str] = await page.get_by_role("option").evaluate_all("found => found.map(one => one.href)")
    return links[:FIRST]
