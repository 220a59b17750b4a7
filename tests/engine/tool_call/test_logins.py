"""Logins at MCP servers: runs that lack one pause, and continue after it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from framework import Approve, Reject, Runtime
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.logins import Account, LoginStore, account_at
from framework.tools.mcp.login import BegunLogin, Login
from framework.types.errors import ToolError
from framework.types.http import HttpLimits
from framework.types.tool_servers import OAuth
from tests.support.cases import FACTOR
from tests.support.commands import agentsd_process
from tests.support.forks import FORKS
from tests.support.mcp_oauth import Accounts, browse, guarded_api, guarded_server, secretive_server
from tests.support.projects import agent, write

REDIRECT = "http://127.0.0.1:8976/callback"


def project(root: Path, url: str, per: str = "server") -> Path:
    server = f"version: 1\nmcp_servers:\n  air: {{url: '{url}', auth: {{oauth: {{per: {per}, scopes: [read]}}}}}}\n"
    return write(root, {"plugins/servers.yaml": server, "agents.d/a.yaml": agent("a")})


def script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    return calls(("mcp.air.whoami", {})) if last.role == "user" else f"answer: {last.content}"


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Runtime]:
    store = await Store.open(f"sqlite:///{root / 'runs.db'}", root)
    try:
        model = ScriptedModel(script=script)
        async with Runtime.open(root, store=store, models={"scripted": model}, watch=False) as runtime:
            yield runtime
    finally:
        await store.close()


def logins(root: Path) -> LoginStore:
    return LoginStore(root / ".agentsd/logins", HttpLimits)


async def log_in(root: Path, url: str, user: str | None = None, oauth: OAuth | None = None) -> None:
    account = Account("air", url, None, user)
    begun = BegunLogin(Login(logins(root), account, oauth or OAuth(scopes=("read",))), REDIRECT)
    begun.answer(await browse(await begun.address()))
    stored = await begun.finish(10)
    assert stored.tokens


def test_a_run_whose_login_has_ended_pauses_and_continues_after_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts()
        async with guarded_server(accounts) as url:
            root = project(tmp_path, url)
            await log_in(root, url)
            (file,) = (root / ".agentsd/logins").glob("*.json")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            async with opened(root) as runtime:
                assert (await runtime.run("who?")).output == 'answer: {"result": "ann"}'
                accounts.revoke()
                paused = await runtime.run("who?")
            (asked,) = paused.pending
            assert (paused.status, asked.kind, asked.url) == ("paused", "login", url)
            assert asked.description == "log in with: agentsd tools login air"
            accounts.subject = "bob"
            await log_in(root, url)
            async with opened(root) as runtime:
                result = await runtime.resume(paused.run_id, {asked.id: Approve()})
            assert result.output == 'answer: {"result": "bob"}'

    asyncio.run(main())


def test_the_first_login_asks_the_server_where_and_for_what(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as issuer, secretive_server(issuer.removesuffix("/mcp"), "write") as url:
            allowed = LoginStore(tmp_path, lambda: HttpLimits(private_networks=("127.0.0.0/8",)))
            begun = BegunLogin(Login(allowed, Account("air", url), OAuth()), REDIRECT)
            begun.answer(await browse(await begun.address()))
            assert ((await begun.finish(10)).tokens or {})["scope"] == "write"

    asyncio.run(main())


def test_no_token_for_another_resource_is_requested(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts()
        async with (
            guarded_server(accounts) as issuer,
            secretive_server(issuer.removesuffix("/mcp"), "read", "another") as url,
        ):
            allowed = LoginStore(tmp_path, lambda: HttpLimits(private_networks=("127.0.0.0/8",)))
            begun = BegunLogin(Login(allowed, Account("air", url), OAuth()), REDIRECT)
            with pytest.raises(ToolError, match="does not match expected"):
                await begun.address()
        assert (accounts.clients, accounts.access) == ({}, {})

    asyncio.run(main())


def live(root: Path, run_id: str | None) -> None:
    """Start a run, or continue it after a login, and be killed without a chance to clean up."""

    async def main() -> None:
        async with opened(root) as runtime:
            if run_id is None:
                (root / "run.txt").write_text((await runtime.run("who?", user="ann")).run_id, "utf-8")
            else:
                (asked,) = await runtime.pending(run_id, user="ann")
                result = await runtime.resume(run_id, {asked.id: Approve()}, user="ann")
                (root / "answer.txt").write_text(result.output, "utf-8")
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


@pytest.mark.parametrize("number", range(FACTOR))
def test_no_login_is_lost_when_each_process_is_killed(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        accounts = Accounts(subject=f"ann{number}")
        async with guarded_server(accounts) as url:
            root, run_id = project(tmp_path, url, "user"), None
            for user in (None, "ann"):  # the first login is the one with which the tools are listed
                await log_in(root, url, user)
                process = FORKS.Process(target=live, args=(root, run_id))
                process.start()
                await asyncio.to_thread(process.join)
                assert process.exitcode == -signal.SIGKILL
                run_id = (root / "run.txt").read_text("utf-8")
            assert (root / "answer.txt").read_text("utf-8") == f'answer: {{"result": "ann{number}"}}'

    asyncio.run(main())


def test_each_user_has_a_login_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts(subject="operator")
        async with guarded_server(accounts) as url:
            root = project(tmp_path, url, "user")
            await log_in(root, url)  # with which the tools are listed
            async with opened(root) as runtime:
                paused = await runtime.run("who?", user="ann")
                (asked,) = paused.pending
                assert asked.description == "log in with: agentsd tools login air --user ann"
                again = await runtime.resume(paused.run_id, {asked.id: Approve()}, user="ann")
                assert again.status == "paused", "nobody has logged in"
                accounts.subject = "ann"
                await log_in(root, url, "ann")
                result = await runtime.resume(paused.run_id, {again.pending[0].id: Approve()}, user="ann")
                assert result.output == 'answer: {"result": "ann"}'
                assert (await runtime.run("who?", user="bob")).status == "paused"
                refused = await runtime.run("who?", user="cid")
                refused = await runtime.resume(
                    refused.run_id, {refused.pending[0].id: Reject(reason="no account")}, user="cid"
                )
                assert "needs a login, which was rejected: no account" in refused.output

    asyncio.run(main())


def test_a_token_that_is_due_is_renewed_once(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts(lifetime=5)
        async with guarded_server(accounts) as url:
            await log_in(tmp_path, url)
            accounts.lifetime = 3600
            account = Account("air", url)
            several = [Login(logins(tmp_path), account, OAuth()) for _ in range(8)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.token()) for one in several]
            (token,) = {task.result() for task in tasks}
            assert (token is not None, accounts.renewals) == (True, 1)
            assert await several[0].token(refused=token) not in (None, token)
            accounts.revoke()
            assert await several[0].token(refused=await several[0].token()) is None

    asyncio.run(main())


def test_an_authorization_server_at_a_private_address_is_not_contacted(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as url:
            login = Login(logins(tmp_path), Account("air", url), OAuth())
            login.note_challenge('Bearer resource_metadata="http://169.254.169.254/latest"')
            with pytest.raises(ToolError, match=r"169\.254\.169\.254 is not encrypted"):
                await BegunLogin(login, REDIRECT).address()
            login.note_challenge('Bearer resource_metadata="https://10.0.0.1/x"')
            with pytest.raises(ToolError, match="not public"):
                await BegunLogin(login, REDIRECT).address()

    asyncio.run(main())


def test_an_answer_for_another_login_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as url:
            changes = {"State": {"state": "x"}, "iss": {"iss": "https://evil"}, "denied": {"error": "denied"}}
            for why, change in changes.items():
                begun = BegunLogin(Login(logins(tmp_path), Account("air", url), OAuth()), REDIRECT)
                begun.answer({**await browse(await begun.address()), **change})
                with pytest.raises(ToolError, match=why):
                    await begun.finish(10)
            assert [one.tokens for one in logins(tmp_path).all()] in ([], [None])

    asyncio.run(main())


def test_a_login_is_never_used_for_another_account(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as url:
            await log_in(tmp_path, url, "ann")
            (file,) = (tmp_path / ".agentsd/logins").glob("*.json")
            store = logins(tmp_path)
            others = [("air", url, None, "bob"), ("air", url, "t", "ann"), ("air", f"{url}x", None, "ann")]
            for other in (Account(*parts) for parts in others):
                store.path(other).write_bytes(file.read_bytes())
                assert await Login(store, other, OAuth(per="user")).token() is None
            foreign = OAuth(issuer="https://auth.example.com")
            assert await Login(store, Account("air", url, None, "ann"), foreign).token() is None

    asyncio.run(main())


def test_a_server_without_login_has_no_account() -> None:
    with pytest.raises(ToolError, match=r"there is no MCP server or API with `auth\.oauth` named 'air'"):
        account_at({}, "air", None, None)


def test_the_commands_log_in_show_and_log_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded_server(Accounts()) as url:
            root = project(tmp_path, url)
            before = await asyncio.to_thread(agentsd_process, "tools", "status", cwd=root)
            assert before.stdout.split() == ["air", "-", "-", "needed", "-", "-", "-"]
            command = (sys.executable, "-m", "agentsd", "tools", "login", "air", "-C", str(root))
            process = await asyncio.create_subprocess_exec(*command, stderr=PIPE, stdout=PIPE)
            assert process.stderr
            async with asyncio.timeout(60):
                while not (line := (await process.stderr.readline()).decode().strip()).startswith("visit "):
                    pass
                found = await browse(line.removeprefix("visit "), follow=True)
                assert found["state"]
                out, _ = await process.communicate()
            assert out.decode() == f"logged in at air ({url.removesuffix('/mcp')})\n"
            shown = await asyncio.to_thread(agentsd_process, "tools", "status", "--json", cwd=root)
            (row,) = json.loads(shown.stdout)
            assert (row["server"], row["login"], row["scopes"], row["expires"]) == ("air", "yes", "read", "is renewed")
            assert "token" not in shown.stdout
            listed = await asyncio.to_thread(agentsd_process, "tools", "list", cwd=root)
            assert "mcp.air.whoami" in listed.stdout
            ended = await asyncio.to_thread(agentsd_process, "tools", "logout", "air", cwd=root)
            assert ended.stdout == "logged out at air\n"
            listed = await asyncio.to_thread(agentsd_process, "tools", "list", cwd=root)
            assert "it needs a login: run `agentsd tools login air`" in listed.stderr
            for name in ("login", "status"):
                unknown = await asyncio.to_thread(agentsd_process, "tools", name, "fog", cwd=root)
                assert "there is no MCP server or API with `auth.oauth` named 'fog'" in unknown.stderr

    asyncio.run(main())


API = """
openapi: 3.1.0
info: {title: t, version: '1'}
paths:
  /me: {get: {operationId: me, responses: {'200': {description: ok}}}}
  /notes: {post: {operationId: note, responses: {'200': {description: ok}}}}
"""


def test_apis_and_http_tools_pause_for_a_login_and_continue_after_it(tmp_path: Path) -> None:
    """Both entries name a server that does not describe itself: the file names the one that issues tokens."""

    def calling(request: ModelRequest) -> Turn:
        last = request.messages[-1]
        return calls((last.content, {})) if last.role == "user" else last.content

    async def main() -> None:
        accounts = Accounts()
        async with guarded_server(accounts) as issuer, guarded_api(accounts) as api:
            oauth = f"{{oauth: {{per: user, scopes: [read], issuer: '{issuer.removesuffix('/mcp')}'}}}}"
            entries = (
                f"version: 1\nopenapi:\n  crm: {{document: openapi/crm.yaml, base_url: '{api}', auth: {oauth}}}\n"
                f"http_tools:\n  desk.me: {{get: '{api}/me', auth: {oauth}}}\n"
                f"  desk.note: {{post: '{api}/notes', auth: {oauth}}}\n"
            )
            files = {"plugins/api.yaml": entries, "openapi/crm.yaml": API, "agents.d/a.yaml": agent("a")}
            root = write(tmp_path, files)
            store = await Store.open(f"sqlite:///{root / 'runs.db'}", root)
            models = {"scripted": ScriptedModel(script=calling)}
            for name, tools in {"crm": ("crm.me", "crm.note"), "desk": ("desk.me", "desk.note")}.items():
                async with Runtime.open(root, store=store, models=models, watch=False) as runtime:
                    paused = await runtime.run(tools[1], user="ann")
                    assert paused.status == "paused", (paused.output, runtime.catalog.problems)
                    (asked,) = paused.pending
                    account, config = account_at(runtime.catalog.current.external.configs, name, None, "ann")
                assert (asked.kind, asked.rule) == ("login", f"{name} needs a login")
                assert asked.description == f"log in with: agentsd tools login {name} --user ann"
                begun = BegunLogin(Login(logins(root), account, config), REDIRECT)
                begun.answer(await browse(await begun.address()))
                assert (await begun.finish(10)).tokens
                async with Runtime.open(root, store=store, models=models, watch=False) as runtime:
                    assert (
                        await runtime.resume(paused.run_id, {asked.id: Approve()}, user="ann")
                    ).status == "completed"
                    said = json.loads((await runtime.run(tools[0], user="ann")).output)
                    assert said["user"] == "ann"
                    assert said["token"] not in accounts.access, "tokens in responses are masked"
                    assert (await runtime.run(tools[0], user="bob")).status == "paused", "a login is one user's"
                    accounts.access.clear()  # tokens end early: they are renewed
                    assert (await runtime.run(tools[1], user="ann")).status == "completed"
                    accounts.revoke()
                    assert (await runtime.run(tools[0], user="ann")).pending[0].kind == "login"
            assert accounts.notes == 4, "each note was sent once"
            await store.close()

    asyncio.run(main())
