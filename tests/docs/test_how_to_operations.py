"""What the how-to pages on operations rely on, beyond the commands that `test_how_to.py` types.

Their configuration files are valid, and their parts do what the pages say where the other side, such as GitHub, is
missing here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
import yaml
from aiohttp import web

from framework.cli.completion import find_entry, read_index
from framework.types.state import Confirmation
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.commands import ENVIRONMENT
from tests.support.loopback import LOOPBACK
from tests.support.page_steps import steps
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving

PAGES = ROOT / "docs/how-to"
REVIEW, SLACK = PAGES / "review-agents-in-pull-requests.md", PAGES / "approve-from-slack.md"


def files_of(page: Path, name: str) -> list[str]:
    """Return the texts of a file of a page, one for each block."""
    return [step.text for step in steps(page) if step.is_file and step.place == name]


# --- review agents in pull requests

CLERK = {"agents.d/clerk.yaml": agent("clerk", model="offline", skill_policy="{allow: [calculator]}")}
CASE = {
    "agents.d/clerk.test.yaml": """\
        cases:
          - {name: it calculates, message: calculate 2 + 3, expect: {output: "5"}}
        """
}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)


def pull_request(root: Path, changed: dict[str, str]) -> Path:
    """Return a clone, as GitHub's action makes it, of a branch that changes these files."""
    write(root / "origin", CLERK | CASE)
    git(root / "origin", "init", ".")
    git(root / "origin", "add", ".")
    git(root / "origin", "commit", "-m", "Add the clerk")
    git(root, "clone", "origin", "work/here")
    write(root / "work/here", changed)
    git(root / "work/here", "commit", "-am", "Change the clerk")
    return root / "work/here"


def run_job(folder: Path, job: dict[str, Any], summary: Path) -> int:
    """Run the commands of a job as GitHub does, up to the first that fails; return its exit code."""
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    variables = {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(summary)}
    for step in job["steps"]:
        if "run" in step and not step["run"].startswith("pip install "):
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                shell, cwd=folder, env={**ENVIRONMENT, **variables, "PATH": path}, check=False, capture_output=True
            )
            if done.returncode:
                return done.returncode
    return 0


@pytest.mark.parametrize(
    ("policy", "code", "shown"),
    [
        ("{allow: [calculator, echo]}", 0, "    clerk: tools.allow: none -> echo (widens)\n"),
        ("{allow: [calculater]}", 78, ""),
    ],
)
def test_the_workflow_passes_a_valid_edit_and_shows_what_it_permits(
    tmp_path: Path, policy: str, code: int, shown: str
) -> None:
    (job,) = yaml.safe_load((ROOT / "examples/ci/agents.yml").read_text("utf-8"))["jobs"].values()
    edit = {"agents.d/clerk.yaml": agent("clerk", model="offline", skill_policy=policy)}
    (summary := tmp_path / "summary").touch()
    assert run_job(pull_request(tmp_path, edit), job, summary) == code
    assert summary.read_text("utf-8") == shown


def test_the_page_shows_the_workflow_of_the_examples() -> None:
    (shown,) = files_of(REVIEW, ".github/workflows/agents.yml")
    assert shown == (ROOT / "examples/ci/agents.yml").read_text("utf-8")
    workflow = yaml.safe_load(shown)
    assert (workflow[True], workflow["permissions"]) == (["pull_request"], {"contents": "read"})  # YAML 1.1: on = true


def test_the_hooks_of_the_page_and_of_this_project_call_commands_that_exist() -> None:
    offered = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    used, own = (yaml.safe_load(text)["repos"][0]["hooks"] for text in files_of(REVIEW, ".pre-commit-config.yaml"))
    assert {hook["id"] for hook in used} == offered.keys()
    assert [(hook["id"], hook["entry"]) for hook in own] == [(hook["id"], hook["entry"]) for hook in offered.values()]
    for hook in [*offered.values(), *own]:
        program, *words = hook["entry"].split()
        assert program == "agentsd"
        assert find_entry(read_index(), words)[0]


@pytest.mark.parametrize(
    ("path", "is_checked"),
    [
        ("agentsd.yaml", True),
        ("agents.d/clerk.test.yaml", True),
        ("services/support/prompts/a.j2", True),
        ("plugins/deep/a.py", True),
        ("docs/agents.d.md", False),
        ("my-plugins/a.py", False),
    ],
)
def test_the_hooks_run_for_files_of_a_project(path: str, is_checked: bool) -> None:
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")):
        assert bool(re.search(hook["files"], path)) is is_checked


def test_contributors_run_the_tools_of_make_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    entries = [hook["entry"].split() for hook in repo["hooks"]]
    commands = [" ".join(words[:2] if len(words) > 1 else words).removeprefix(".venv/") for words in entries]
    assert commands == ["bin/ruff format", "bin/ruff check", "bin/mypy"]
    assert all(
        f"$(BIN)/{command.removeprefix('bin/')}" in (ROOT / "Makefile").read_text("utf-8") for command in commands
    )


def test_pre_commit_accepts_the_files(tmp_path: Path) -> None:
    if not shutil.which("pre-commit"):
        pytest.skip("no pre-commit")
    configs = [str(ROOT / ".pre-commit-config.yaml")]
    for number, text in enumerate(files_of(REVIEW, ".pre-commit-config.yaml")):
        write(tmp_path, {f"{number}.yaml": text})
        configs.append(str(tmp_path / f"{number}.yaml"))
    subprocess.run(["pre-commit", "validate-config", *configs], check=True)
    subprocess.run(["pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")], check=True)


# --- approve from Slack

PATIENCE = 30
"""Timeout in seconds, for waits that should be short."""
EXAMPLE = {
    "secret": "8f742231b10e8888abcd99yyyzzz85a5",
    "at": "1531420618",
    "body": "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    "&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
    "signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
}
"""The example of https://docs.slack.dev/authentication/verifying-requests-from-slack, with its made-up secret."""
SECRET = "a-signing-secret"


@dataclass
class Channel:
    """Stands in for Slack: receives messages and replies."""

    url: str = ""
    failures: int = 0
    """Number of requests to answer with an error."""
    received: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    async def receive(self, request: web.Request) -> web.Response:
        if self.failures:
            self.failures -= 1
            return web.Response(status=503)
        self.received.put_nowait(await request.json())
        return web.Response(text="ok")

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self.received.get()


@asynccontextmanager
async def listening(channel: Channel) -> AsyncIterator[Channel]:
    app = web.Application()
    app.router.add_post("/{path:.*}", channel.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        channel.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield channel
    finally:
        await runner.cleanup()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of the app, without the URLs of running servers."""
    for name, value in (("SERVER_URL", "http://127.0.0.1:1"), ("SLACK_WEBHOOK", "http://127.0.0.1:1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLACK_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("SERVER_KEY", KEY)
    return monkeypatch


def slack_app() -> Any:
    """Return the module of the page, loaded in the current environment."""
    (text,) = files_of(SLACK, "slack_app.py")
    module = ModuleType("slack_app")
    exec(compile(text, "slack_app.py", "exec", dont_inherit=True), module.__dict__)
    return module


@asynccontextmanager
async def waiting_run(
    root: Path, environment: pytest.MonkeyPatch, channel: Channel
) -> AsyncIterator[tuple[Serving, Any, dict[str, Any]]]:
    """Yield a server with a run that waits, the app, and the message that the app posted."""
    (clerk,) = files_of(SLACK, "agents.d/clerk.yaml")
    entries = [key_entry("slack", KEY, roles=["decide"], agents=["clerk"]), key_entry("web", OTHER, roles=["chat"])]
    write(root, {"agents.d/clerk.yaml": clerk, "agentsd.yaml": json.dumps({"server": {"api_keys": entries}})})
    async with serving(root) as server, listening(channel):
        async with httpx2.AsyncClient(timeout=PATIENCE, **LOOPBACK) as http:
            body = {"message": "write hello to note.txt", "agent": "clerk"}
            key = {"authorization": f"Bearer {OTHER}"}
            assert (await http.post(f"{server.url}/agent/chat", json=body, headers=key)).status_code == 202
        environment.setenv("SERVER_URL", server.url)
        environment.setenv("SLACK_WEBHOOK", channel.url)
        app = slack_app()
        app.INTERVAL = 0.05
        async with app.app.router.lifespan_context(app.app):
            yield server, app, await channel.next()


async def press(
    app: Any, channel: Channel, button: dict[str, Any], *, user: str = "U1", at: float = 0, secret: str = SECRET
) -> int:
    """Send the click of a user to the app; return the status of the answer."""
    click = {"user": {"id": user, "username": "ada"}, "actions": [button], "response_url": f"{channel.url}/reply"}
    body, time_sent = urlencode({"payload": json.dumps(click)}), str(int(at or time.time()))
    signature = hmac.new(secret.encode(), f"v0:{time_sent}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"x-slack-request-timestamp": time_sent, "x-slack-signature": f"v0={signature}"}
    headers["content-type"] = "application/x-www-form-urlencoded"
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app.app), base_url="http://app") as http:
        return (await http.post("/slack", content=body, headers=headers)).status_code


def test_the_app_accepts_the_example_of_slacks_documentation_and_nothing_else(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SLACK_SIGNING_SECRET", EXAMPLE["secret"])
    app = slack_app()
    headers = {"x-slack-request-timestamp": EXAMPLE["at"], "x-slack-signature": EXAMPLE["signature"]}
    body, now = EXAMPLE["body"].encode(), float(EXAMPLE["at"])
    assert app.is_signed(headers, body, now)
    assert app.is_signed(headers, body, now + 300)
    assert not app.is_signed(headers, body, now + 301)
    assert not app.is_signed(headers, body, now - 301)
    assert not app.is_signed(headers, body + b"&", now)
    assert not app.is_signed({**headers, "x-slack-request-timestamp": "1531420619"}, body, now)
    assert not app.is_signed({**headers, "x-slack-signature": "v0=\u00e4"}, body, now)
    assert not app.is_signed({}, body, now)


def test_a_message_has_buttons_only_if_it_shows_everything(environment: pytest.MonkeyPatch) -> None:
    app, run = slack_app(), {"run_id": "run_1", "agent": "clerk"}

    def message(**fields: Any) -> dict[str, Any]:
        asked = Confirmation(id="c1", agent="clerk", hash="h", reason="it writes", **fields)
        shown: dict[str, Any] = app.message(run, asked.model_dump(mode="json"))
        assert len(shown["text"]) < 3000
        return shown

    short = message(kind="tool", tool="write_file", arguments={"text": "<!channel> & <https://example.com|here>"})
    assert "&lt;!channel&gt; &amp; &lt;https" in short["blocks"][0]["text"]["text"]
    assert [one["text"]["text"] for one in short["blocks"][1]["elements"]] == ["Approve", "Reject"]
    assert "blocks" not in message(kind="tool", tool="write_file", arguments={"text": "x" * 3000})
    assert "blocks" not in message(kind="question", tool="ask_user")


def test_only_signed_clicks_of_approvers_decide(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        environment.setenv("SLACK_APPROVERS", "U1 U2")
        channel = Channel()
        async with waiting_run(tmp_path, environment, channel) as (server, app, posted):
            approve, _ = posted["blocks"][1]["elements"]
            assert await press(app, channel, approve, secret="another") == 401
            assert await press(app, channel, approve, at=time.time() - 600) == 401
            assert await press(app, channel, approve, user="U3") == 200
            assert await channel.next() == {"replace_original": False, "text": "<@U3> may not decide this"}
            assert [run.status for run in await server.runs()] == ["paused"]
            assert await press(app, channel, approve, user="U2") == 200
            assert await channel.next() == {"replace_original": True, "text": "approved by <@U2>"}

    asyncio.run(main())


def test_a_rejection_reaches_the_run_and_a_second_click_shows_why_it_is_too_late(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        channel = Channel(failures=2)
        async with waiting_run(tmp_path, environment, channel) as (server, app, posted):
            approve, reject = posted["blocks"][1]["elements"]
            await press(app, channel, reject)
            assert (await channel.next())["text"] == "rejected by <@U1>"
            (run,) = await server.runs()
            async with asyncio.timeout(PATIENCE):
                result = await server.runtime.result(run.run_id)
            assert "ada rejected it in Slack" in str(result.messages)
            await press(app, channel, approve)
            assert "no decision is pending" in (await channel.next())["text"]
            assert not (tmp_path / "note.txt").exists()

    asyncio.run(main())
