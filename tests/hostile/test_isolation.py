"""What belongs to another tenant, user or agent does not exist: it gets the answer of an unknown id, on every route."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from framework import Runtime
from framework.config.api_keys import ROLES
from framework.llm.client import ModelRequest
from framework.server import router
from framework.server.identity import Identity
from framework.store.run_links import insert_grants
from framework.store.types import RunQuery
from framework.testing import ScriptedModel, calls
from framework.types.grant import Grant
from framework.types.memory import Note, NoteOwner
from tests.support.api_keys import key_entry
from tests.support.cases import cases
from tests.support.projects import agent, write
from tests.support.server_routes import ServerRoute, server_routes
from tests.support.submitted_runs import PATIENCE, Gate

OWNER = "owner-key-0123456789"
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "another tenant": {"tenant": "b"},
    "no tenant": {},
    "another user": {"tenant": "a", "user": "bob"},
    "another agent": {"tenant": "a", "agents": ["zebra"]},
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SECRET = "the-owners-own-words"
FINISHED, PAUSED, RUNNING = "talk-finished", "talk-paused", "talk-running"
"""Conversations of the owner, by the state of their run."""
BODIES: tuple[Any, ...] = (None, {}, {"decisions": {"nosuch": {"type": "approve"}}}, {"message": "hi"})
AGENT_PARAMETERS = ("agent", "model", "name")
"""Parameters of paths that name an agent."""
VOLATILE = {"content-length", "date", "mcp-session-id", "x-request-id"}


def key_of(name: str) -> str:
    return f"{name.replace(' ', '-')}-0123456789"


@dataclass
class World:
    """An app in which the owner has runs in every state, and the ids of these."""

    runtime: Runtime
    http: httpx2.AsyncClient
    routes: list[ServerRoute]
    ids: dict[str, list[str]] = field(default_factory=dict)
    """By the name of a path's parameter."""
    confirmation: str = ""

    async def send(self, key: str, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)

    async def ask(self, key: str, status: int, method: str, path: str, **options: Any) -> Any:
        response = await self.send(key, method, path, **options)
        assert response.status_code == status, response.text
        return response.json()

    def owned_paths(self) -> Iterator[tuple[str, list[str], str]]:
        """Yield each path with a parameter, the ids of the owner for it, and an unknown one."""
        shared = {route.path for route in self.routes if any(role.all_agents for role in route.roles)}
        templates = dict.fromkeys(route.path for route in self.routes if "{" in route.path)
        for template in (one for one in templates if one not in shared):  # the project belongs to no tenant
            template = template.removesuffix("{rest:path}")
            (name,) = re.findall(r"\{(\w+)", template)
            if name in ("server", "hook"):  # of the project's files: a login is the caller's own, a hook has no caller
                continue
            yield template, self.ids[name], "nosuch" if name in AGENT_PARAMETERS else f"run_{uuid4().hex}"

    async def snapshot(self) -> Any:
        """Return everything that the owner sees."""
        details = [await self.ask(OWNER, 200, "GET", f"/agent/runs/{one}") for one in self.ids["run_id"]]
        talks = [
            await self.ask(OWNER, 200, "GET", f"/agent/conversations/{one}?user=alice")
            for one in self.ids["conversation_id"]
        ]
        notes = [await self.ask(OWNER, 200, "GET", f"/agent/memory/{one}") for one in self.ids["note_id"]]
        return details, talks, notes


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    """Open the app, and let the owner have a finished, a paused, a queued and a running run."""
    everyone = {"roles": [*ROLES]}
    entries = [key_entry("owner", OWNER, tenant="a", **everyone)]
    entries += [key_entry(key_of(name), key_of(name), **rights, **everyone) for name, rights in OTHERS.items()]
    policy = '{allow: ["*"], ask: [pay]}'
    files = {
        f"agents.d/{name}.yaml": agent(name, skill_policy=policy, runtime_policy="{tool_timeout: 10m, timeout: 10m}")
        for name in ("one", "zebra")
    }
    write(root, {**files, "agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})
    gate = Gate()
    model = ScriptedModel(SECRET, calls(("pay", {})), calls(("hold", {})), *["theirs"] * 5000)
    models = {"scripted": model}
    async with (
        asyncio.timeout(PATIENCE * 4),
        Runtime.open(root, models=models, tools=gate.tools(), watch=False) as runtime,
    ):
        app = FastAPI(openapi_url=None)
        app.router.routes.extend(router(runtime).routes)  # cheaper than `include_router`
        transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            found = World(runtime, http, [*server_routes(app.routes)])
            await _begin_runs(found, gate)
            try:
                yield found
            finally:
                gate.opened.set()


async def _begin_runs(found: World, gate: Gate) -> None:
    bodies: list[tuple[int, str, dict[str, Any]]] = [
        (200, "/agent/chat", {"conversation_id": FINISHED}),
        (202, "/agent/chat", {"conversation_id": PAUSED}),
        (202, "/agent/runs", {"conversation_id": PAUSED, "queue": True}),
        (202, "/agent/runs", {"conversation_id": RUNNING}),
    ]
    runs = []
    for status, path, body in bodies:
        message = {"message": SECRET, "agent": "one", "user": "alice", **body}
        runs.append(await found.ask(OWNER, status, "POST", path, json=message))
    await gate.began.wait()
    owner = NoteOwner("user", "a", "alice", "one")
    now = found.runtime.store.now()
    note = Note(
        id="note_of_alice",
        text=SECRET,
        run_id=runs[0]["run_id"],
        untrusted=False,
        created_at=now,
        used_at=now,
        **asdict(owner),
    )
    await found.runtime.store.notes.save(note, 1)
    about = {"agent": "one", "tool": "pay", "width": "tool", "scope": "user", "by": "alice", "contract": ""}
    owner_of_grant = {"tenant": "a", "user": "alice", "created_at": now, "expires_at": now + 1000}
    rest = {"files": {}, "run_id": runs[0]["run_id"], "confirmation_id": "c", "rule": SECRET}
    grant = Grant.model_validate({"id": "grant_of_alice", **about, **owner_of_grant, **rest})
    await found.runtime.store._database.write(lambda connection: insert_grants(connection, [grant]))
    found.ids = {
        "grant_id": [grant.id],
        "note_id": [note.id],
        "run_id": [run["run_id"] for run in runs],
        "conversation_id": [FINISHED, PAUSED, RUNNING],
        **{name: ["one"] for name in AGENT_PARAMETERS},
    }
    found.confirmation = runs[1]["pending"][0]["id"]


def shape(response: httpx2.Response, sent: str) -> tuple[int, Mapping[str, str], str]:
    """Return what a client sees of a response, without the id that it has sent."""
    headers = {name: value for name, value in response.headers.items() if name not in VOLATILE}
    return response.status_code, headers, response.text.replace(sent, "ID")


async def in_world(root: Path, work: Callable[[World], Any]) -> None:
    async with world(root) as found:
        before = await found.snapshot()
        await work(found)
        assert await found.snapshot() == before, "nothing of the owner's has changed"


@pytest.mark.hostile(39)
@pytest.mark.parametrize("who", OTHERS)
def test_asi03_ids_of_others_are_unknown_on_every_route(tmp_path: Path, who: str) -> None:
    async def work(found: World) -> None:
        decisions = {"decisions": {found.confirmation: {"type": "approve"}}}
        checked = 0
        for template, all_owned, unknown in found.owned_paths():
            if any(f"{{{name}" in template for name in AGENT_PARAMETERS) and who != "another agent":
                continue  # agents belong to no tenant
            reads = {route.method for route in found.routes if route.path.removesuffix("{rest:path}") == template}
            for method in METHODS:
                for body in (*BODIES, decisions) if method in reads - {"GET", "DELETE"} else (None,):
                    other, *others = [
                        await found.send(key_of(who), method, re.sub(r"\{[^}]+\}", sent, template), json=body)
                        for sent in (unknown, *all_owned)
                    ]
                    for owned, one in zip(all_owned, others, strict=True):
                        assert shape(one, owned) == shape(other, unknown), (method, template, body)
                        assert SECRET not in one.text
                    is_rpc = template == "/a2a/{agent}" and '"error":' in other.text  # which JSON-RPC answers with 200
                    assert is_rpc or other.status_code in {400, 404, 405}, (method, template, body, other.text)
                    checked += len(others) * (other.status_code == 404)
        assert checked >= 20

    asyncio.run(in_world(tmp_path, work))


@pytest.mark.hostile(39)
@pytest.mark.parametrize("who", OTHERS)
def test_asi03_lists_and_filters_reveal_nothing_of_others(tmp_path: Path, who: str) -> None:
    async def work(found: World) -> None:
        run, key = found.ids["run_id"][0], key_of(who)
        await found.ask(key, 200, "POST", "/agent/chat", json={"message": "hi", "agent": "zebra"})
        for route in found.routes:
            about_all = any(role.all_agents for role in route.roles) or route.path == "/agent/openapi.json"
            if route.method != "GET" or "{" in route.path or about_all:
                continue
            filters = [
                {},
                {"conversation_id": PAUSED},
                {"user": "alice"},
                {"agent": "one"},
                {"status": "paused"},
                {"q": "e"},
            ]
            for query in (*filters, {"tenant": "a"}, {"before": run}, {"cursor": run}, {"limit": "100"}):
                response = await found.send(key, "GET", route.path, params=query)
                assert response.status_code in {200, 400}, (route.path, query)
                words = {SECRET, *found.ids["run_id"], FINISHED, PAUSED, RUNNING} - {*query.values()}
                assert not [word for word in words if word in response.text], (route.path, query, response.text)
                has_pages = route.path != "/agent/usage"  # it shows the time of the request
                if has_pages and ("before" in query or "cursor" in query):
                    unknown = {name: f"run_{uuid4().hex}" for name in query}
                    other = await found.send(key, "GET", route.path, params=unknown)
                    assert shape(other, unknown.popitem()[1]) == shape(response, run), (route.path, query)

    asyncio.run(in_world(tmp_path, work))


@pytest.mark.hostile(39)
@pytest.mark.parametrize("who", OTHERS)
def test_asi03_a_message_joins_no_conversation_of_others(tmp_path: Path, who: str) -> None:
    """Another tenant or user begins its own conversation with this id. One of another agent is no secret of its user,
    whom a key that is limited to agents names: it is refused, as the agent is."""
    is_refused = "agents" in OTHERS[who]

    async def write_to(found: World, conversation: str) -> None:
        user = {} if "user" in OTHERS[who] else {"user": "alice"}
        body = {"message": "repeat everything", "agent": "zebra", **user}
        for queue in (False, True):
            own = {**body, "queue": queue, "conversation_id": conversation}
            response = await found.send(key_of(who), "POST", "/agent/chat", json=own)
            assert SECRET not in response.text
            if is_refused:
                assert response.status_code == 404, response.text
                assert response.json()["error"]["code"] == "conversation_not_found"
            else:
                assert response.json()["response"] == "theirs"
        messages = [{"role": "user", "content": "repeat everything"}]
        chat, headers = {"model": "zebra", "messages": messages, **user}, {"x-conversation-id": conversation}
        response = await found.send(key_of(who), "POST", "/v1/chat/completions", json=chat, headers=headers)
        assert response.status_code == (404 if is_refused else 200), response.text
        assert not any(word in response.text for word in (SECRET, *found.ids["run_id"]))
        assert len(await found.runtime.store.runs(RunQuery(tenant="a", user="alice"))) == 4

    async def work(found: World) -> None:
        for conversation in (FINISHED, PAUSED, RUNNING):
            await write_to(found, conversation)

    asyncio.run(in_world(tmp_path, work))


@pytest.mark.hostile(39)
def test_asi03_an_idempotency_key_finds_no_run_of_another_key(tmp_path: Path) -> None:
    async def work(found: World) -> None:
        headers, body = {"idempotency-key": "same"}, {"message": "hi", "agent": "zebra"}
        runs = [
            (await found.ask(key_of(who), 202, "POST", "/agent/runs", json=body, headers=headers))["run_id"]
            for who in OTHERS
        ]
        assert len({*runs}) == len(OTHERS)
        again = await found.ask(key_of("no tenant"), 202, "POST", "/agent/runs", json=body, headers=headers)
        assert again["run_id"] == runs[1]

    asyncio.run(in_world(tmp_path, work))


IDS = st.one_of(
    st.text(min_size=1, max_size=60),
    st.sampled_from(["..", ".", "%00", "..%2f..%2fruns", "null", "*", "' OR 1=1 --", "\u202e", "a" * 300, "0", "-1"]),
    st.binary(min_size=1, max_size=20).map(lambda raw: raw.decode("latin-1")),
)


@pytest.mark.hostile(39)
def test_asi03_made_up_ids_are_unknown(tmp_path: Path) -> None:
    async def work(found: World) -> None:
        templates = [path for path in dict.fromkeys(route.path for route in found.routes) if "{" in path]
        loop = asyncio.get_running_loop()

        @given(text=IDS, template=st.sampled_from(templates), method=st.sampled_from(METHODS), mangled=st.booleans())
        @cases(200)
        def check(text: str, template: str, method: str, mangled: bool) -> None:
            text = f"{found.ids['run_id'][0]}{text}" if mangled else text
            path = re.sub(r"\{[^}]+\}", lambda _: quote(text, safe="", errors="replace").replace(".", "%2E"), template)
            key = key_of("another tenant")
            sent = asyncio.run_coroutine_threadsafe(found.send(key, method, path, json={"message": "x"}), loop)
            response = sent.result(PATIENCE)
            assert response.status_code in {200, 400, 404, 405} if "openapi" in path else {400, 404, 405}
            assert SECRET not in response.text

        await asyncio.to_thread(check)

    asyncio.run(in_world(tmp_path, work))


IDS_OF_ALL = ("c1", "c2")
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["chat", "v1", "runs"]), st.sampled_from(IDS_OF_ALL), st.sampled_from(["hi", "pay"])),
    st.tuples(st.sampled_from(["decide", "show", "delete"]), st.sampled_from(IDS_OF_ALL), st.just("")),
)
ACTORS: Mapping[str, Mapping[str, Any]] = {
    "ann": {"user": "ann"},
    "bob": {"user": "bob"},
    "ann of another": {"user": "ann", "tenant": "another"},
    "program": {},
    "program for eve": {},
}
"""Keys of one tenant, and one of another. A program names a user in each request: here eve, or none."""
NAMED: Mapping[str, Mapping[str, str]] = {"program for eve": {"user": "eve"}}


class Observer:
    """A client of a server, which writes down what it sees, without the parts that differ between any two servers."""

    def __init__(self, runtime: Runtime, http: httpx2.AsyncClient, tenant: str) -> None:
        self.seen: list[Any] = []
        self._runtime, self._http, self._tenant = runtime, http, tenant
        self._known: dict[str, str] = {}

    async def act(self, who: str, action: str, conversation: str, text: str) -> None:
        """Do one thing in a conversation, and wait until the runs that can end or pause have done so."""
        user, about = NAMED.get(who, {}), f"/agent/conversations/{conversation}"
        body = {"message": text, "conversation_id": conversation, **user}
        match action:
            case "chat":
                await self.send(who, "POST", "/agent/chat", json=body)
            case "v1":
                chat = {"model": "one", "messages": [{"role": "user", "content": text}], **user}
                headers = {"x-conversation-id": conversation}
                await self.send(who, "POST", "/v1/chat/completions", json=chat, headers=headers)
            case "runs":
                await self.send(who, "POST", "/agent/runs", json={**body, "queue": True})
            case "decide":
                found = await self.send(who, "GET", about, params=user)
                if run_id := found.get("open_run"):
                    (asked,) = (await self.send(who, "GET", f"/agent/runs/{run_id}"))["pending"]
                    decisions = {asked["id"]: {"type": "approve"}}
                    await self.send(who, "POST", f"/agent/runs/{run_id}/decisions", json={"decisions": decisions})
            case _:
                await self.send(who, "DELETE" if action == "delete" else "GET", about, params=user)
        await self._settle()

    async def look(self, who: str) -> None:
        """Look at everything that shows only data of this user."""
        user = NAMED.get(who, {})
        for name in ("runs", "conversations", *(() if user else ("approvals", "approvals/decided", "usage"))):
            await self.send(who, "GET", f"/agent/{name}", params=user)
        for conversation in IDS_OF_ALL:
            await self.send(who, "GET", f"/agent/conversations/{conversation}", params=user)
            asked = {"conversation_id": conversation, **user}
            for run in (await self.send(who, "GET", "/agent/runs", params=asked))["runs"]:
                await self.send(who, "GET", f"/agent/runs/{run['run_id']}")
                if run["status"] != "queued":  # the events of a run that waits for another one have no end yet
                    await self.send(who, "GET", f"/agent/runs/{run['run_id']}/events")

    async def send(self, who: str, method: str, path: str, **options: Any) -> Any:
        headers = {"x-who": json.dumps({"tenant": self._tenant, **ACTORS[who]}), **options.pop("headers", {})}
        response = await self._http.request(method, path, headers=headers, **options)
        begins = response.status_code == 202 and path != "/agent/chat"  # how far the run is, is a matter of time
        self.seen.append((method, self._plain(path), response.status_code, begins or self._plain(response.text)))
        return {} if path.endswith("/events") else response.json()

    async def _settle(self) -> None:
        """Wait until each run has ended, has paused, or waits for a paused one."""
        while moving := [
            run
            for run in await self._runtime.store.runs(RunQuery(statuses=["queued", "running"]))
            if run.waits_for != "conversation"
        ]:
            await self._runtime.result(moving[0].run_id, user=moving[0].user, tenant=moving[0].tenant)

    def _plain(self, text: str) -> str:
        """Replace ids that are made up by the order in which they were seen, and leave out times."""
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+", "TIME", text)
        text = re.sub(r'(_ms|created)":\s*[\d.e-]+', r"\1", text)
        text = text.replace(self._tenant, "TENANT")
        for made in re.findall(r"[0-9a-f]{32}", text):
            self._known.setdefault(made, f"<{len(self._known)}>")
        return re.sub(r"[0-9a-f]{32}", lambda id_: self._known[id_[0]], text)


def test_asi03_what_a_user_sees_does_not_depend_on_the_ids_of_others(tmp_path: Path, local_url: str | None) -> None:
    """Each case is one of two tenants: in one, others act too; in the other, the user is alone."""
    budgets = "budgets: {talk: {max_total_tokens: 45, per: conversation}}\n"
    policy = '{allow: ["*"], ask: [pay]}'
    files = {"agents.d/one.yaml": agent("one", skill_policy=policy, budgets="[talk]"), "agentsd.yaml": budgets}

    def answer(request: ModelRequest) -> Any:
        text = request.messages[-1].content
        return calls(("pay", {})) if text == "pay" else f"I see {len(request.messages)} messages"

    def identify(connection: HTTPConnection) -> Identity:
        return Identity("key", **json.loads(connection.headers["x-who"]))

    async def seen_by(runtime: Runtime, app: FastAPI, who: str, done: list[tuple[str, Any]]) -> list[Any]:
        tenant = uuid4().hex
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as http:
            observer, others = Observer(runtime, http, tenant), Observer(runtime, http, tenant)
            for actor, action in done:
                await (observer if actor == who else others).act(actor, *action)
            await observer.look(who)
        return observer.seen

    async def main() -> None:
        models, tools = {"scripted": ScriptedModel(script=answer)}, Gate().tools()
        async with Runtime.open(
            write(tmp_path, files), models=models, tools=tools, watch=False, store=local_url or "memory:"
        ) as runtime:
            loop, app = asyncio.get_running_loop(), FastAPI(openapi_url=None)
            app.router.routes.extend(router(runtime, identify=identify).routes)  # cheaper than `include_router`

            @given(
                who=st.sampled_from(["ann", "program for eve"]),
                done=st.lists(st.tuples(st.sampled_from([*ACTORS]), ACTIONS), min_size=1, max_size=8),
            )
            @cases(8)
            def check(who: str, done: list[tuple[str, Any]]) -> None:
                # A program that names no user finds the only conversation with an id: it decides and deletes for all.
                done = [(actor, act) for actor, act in done if actor != "program" or act[0] not in ("decide", "delete")]
                alone = [one for one in done if one[0] == who]
                with_others, without = (
                    asyncio.run_coroutine_threadsafe(seen_by(runtime, app, who, each), loop).result(PATIENCE)
                    for each in (done, alone)
                )
                assert with_others == without

            await asyncio.to_thread(check)

    asyncio.run(main())
