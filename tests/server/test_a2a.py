"""`/a2a` as other agents use it: the SDK's client over both bindings, and requests that a client should not send."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, get_data_parts, new_data_part, new_message, new_raw_part, new_url_part
from a2a.utils import errors

from framework.server.a2a import send_pushes
from framework.store.run_links import MAX_PUSHES
from framework.testing import ScriptedModel, Turn, calls
from framework.types.state import Approve
from tests.support.api_keys import key_entry
from tests.support.cases import FACTOR
from tests.support.media import png
from tests.support.projects import agent, write
from tests.support.served import served
from tests.support.serving import Serving, serving
from tests.support.submitted_runs import PATIENCE

State = types.TaskState
STORE = "sqlite:///.agentsd/state.db"
PLUGIN = """
    import asyncio
    from pathlib import Path

    from agentsd import tool


    @tool(risk="high")
    def pay(amount: int) -> str:
        "Pay."
        with (Path(__file__).parent.parent / "paid").open("a") as paid:
            paid.write(f"{amount}\\n")
        return f"paid {amount}"


    @tool
    async def wait() -> str:
        "Wait for ever."
        await asyncio.Event().wait()
        return ""
"""
FILES = {
    "agents.d/billing.yaml": agent("billing", max_risk="high", skill_policy='{allow: ["*"], ask: [books.pay]}'),
    "agents.d/helper.yaml": agent("helper"),
    "agentsd.yaml": "routing: {default_agent: billing}\n",
    "plugins/books.py": PLUGIN,
}
PAYS = (calls(("books.pay", {"amount": 80})), "done")
ASKS = (calls(("ask_user", {"question": "Which colour?"})), "it is blue")
KEYS = {name: f"{name}-{'0123456789abcdef' * 2}" for name in ("alice", "bob", "chatter")}
BINDINGS = ("JSONRPC", "HTTP+JSON")
FREE = "{risk_level: critical, confirm: {from: never}}"
DESK = FILES | {
    "agents.d/front.yaml": agent(
        "front", runtime_policy=FREE, handoffs="[billing]", skill_policy="{allow: [books.pay], ask: [books.pay]}"
    ),
    "agents.d/billing.yaml": agent("billing", runtime_policy=FREE, skill_policy='{allow: ["*"]}'),
}
HANDED = (calls(("handoff.billing", {})), calls(("books.wait", {})), *PAYS[:1], "paid by billing", *PAYS[:1], "again")
"""`front` asks before it pays, and has no `books.wait`; `billing` may call both."""


@asynccontextmanager
async def started(root: Path, *turns: Turn, files: dict[str, str] = FILES) -> AsyncIterator[Serving]:
    models = {"scripted": ScriptedModel(*turns)}
    async with serving(write(root, files), models=models, store=STORE) as server:
        yield server


@asynccontextmanager
async def client(
    server: Serving, agent: str = "billing", binding: str = "JSONRPC", *, key: str | None = None, version: str = ""
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=PATIENCE, headers=headers, trust_env=False, verify=False) as http:
        card = await A2ACardResolver(http, f"{server.url}/a2a/{agent}").get_agent_card()
        for one in [one for one in card.supported_interfaces if version and one.protocol_version != version]:
            card.supported_interfaces.remove(one)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
        yield ClientFactory(config).create(card)


def said(*parts: str | types.Part, task: str = "", context: str = "") -> types.SendMessageRequest:
    made = [types.Part(text=part) if isinstance(part, str) else part for part in parts]
    return types.SendMessageRequest(message=new_message(made, context or None, task or None, role=types.Role.ROLE_USER))


def approval(task: types.TaskStatusUpdateEvent | types.Task, kind: str = "approve") -> types.Part:
    asked = get_data_parts(task.status.message.parts)[0]["confirmations"]
    return new_data_part({"decisions": {one["id"]: {"type": kind} for one in asked}})


async def sent(by: Client, request: types.SendMessageRequest) -> list[types.StreamResponse]:
    return [update async for update in by.send_message(request)]


def states(updates: Sequence[types.StreamResponse]) -> list[int]:
    found = [one.task.status.state if one.HasField("task") else one.status_update.status.state for one in updates]
    return [state for place, state in enumerate(found) if state and (not place or state != found[place - 1])]


def text_of(updates: Sequence[types.StreamResponse]) -> str:
    """Return the text of the artifact, as a client puts it together."""
    text = ""
    for one in updates:
        if one.HasField("artifact_update"):
            piece = get_artifact_text(one.artifact_update.artifact)
            text = text + piece if one.artifact_update.append else piece
    return text


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_message_is_a_run_and_its_answer_an_artifact(tmp_path: Path, binding: str) -> None:
    async def main() -> None:
        turns = ("hello there", "again")
        async with started(tmp_path, *turns) as server, client(server, binding=binding) as user:
            updates = await sent(user, said("hi"))
            assert states(updates) == [State.TASK_STATE_SUBMITTED, State.TASK_STATE_WORKING, State.TASK_STATE_COMPLETED]
            assert text_of(updates) == "hello there"
            first = updates[0].task
            task = await user.get_task(types.GetTaskRequest(id=first.id))
            assert get_artifact_text(task.artifacts[0]) == "hello there"
            assert [(one.role, one.parts[0].text) for one in task.history] == [
                (types.Role.ROLE_USER, "hi"),
                (types.Role.ROLE_AGENT, "hello there"),
            ]
            assert not (await user.get_task(types.GetTaskRequest(id=first.id, history_length=0))).history
            updates = await sent(user, said("and now?", context=first.context_id))
            assert updates[0].task.context_id == first.context_id
            infos = await server.runs()
            assert [info.conversation_id for info in infos] == [first.context_id] * 2
            listed = await user.list_tasks(types.ListTasksRequest(page_size=1, context_id=first.context_id))
            assert (listed.tasks[0].id, listed.total_size) == (infos[-1].run_id, 2)
            more = await user.list_tasks(types.ListTasksRequest(page_size=1, page_token=listed.next_page_token))
            assert [one.id for one in more.tasks] == [first.id]

    asyncio.run(main())


def test_a_task_that_was_handed_over_is_answered_by_the_other_agent_under_both_policies(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, *HANDED, files=DESK) as server, client(server, "front") as user:
            updates: list[types.StreamResponse] = []
            async for update in user.send_message(said("pay 80")):
                updates.append(update)
                if update.status_update.status.state == State.TASK_STATE_AUTH_REQUIRED:
                    task = update.status_update
                    assert "front hands the conversation over to billing" in str(updates)
                    assert "books.wait: denied" in str(updates)
                    await sent(user, said(approval(task), task=task.task_id))
            assert text_of(updates) == "paid by billing"
            first = await user.get_task(types.GetTaskRequest(id=updates[0].task.id))
            assert (first.metadata["agent"], first.metadata["answered_by"]) == ("front", "billing")
            updates = await sent(user, said("pay again", context=first.context_id))
            assert State.TASK_STATE_AUTH_REQUIRED not in states(updates), (
                "the first agent's rules applied to one message"
            )
            assert text_of(updates) == "again"
        assert (tmp_path / "paid").read_text() == "80\n80\n"

    asyncio.run(main())


def test_clients_of_version_0_3_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, *PAYS, *ASKS) as server, client(server, version="0.3") as user:
            updates: list[types.StreamResponse] = []
            async for update in user.send_message(said("pay 80")):
                updates.append(update)
                if update.status_update.status.state == State.TASK_STATE_AUTH_REQUIRED:
                    task = update.status_update
                    with pytest.raises(errors.A2AError, match="words do not give"):
                        await sent(user, said("yes, I approve", task=task.task_id))
                    await sent(user, said(approval(task), task=task.task_id))
            assert states(updates)[-1] == State.TASK_STATE_COMPLETED
            assert text_of(updates) == "done"
            paused = (await sent(user, said("paint it")))[-1].status_update
            assert paused.status.state == State.TASK_STATE_INPUT_REQUIRED
            assert text_of(await sent(user, said("blue", task=paused.task_id))) == "it is blue"
            assert (await user.get_task(types.GetTaskRequest(id=paused.task_id))).status.state
            with pytest.raises(errors.TaskNotFoundError):
                await user.get_task(types.GetTaskRequest(id="run_nope"))
        assert (tmp_path / "paid").read_text() == "80\n"

    asyncio.run(main())


@dataclass
class Hook:
    """A receiver of push notifications."""

    url: str = ""
    status: int = 200
    received: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Headers and body of each, in order."""
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def states(self) -> list[str]:
        return [body["task"]["status"]["state"] for _, body in self.received]

    def settings(self) -> dict[str, str]:
        return {"agentsd.yaml": f'{FILES["agentsd.yaml"]}server: {{a2a_push_hosts: ["{self.url[7:].strip("/")}"]}}\n'}

    def config(self, **more: Any) -> types.TaskPushNotificationConfig:
        return types.TaskPushNotificationConfig(url=self.url, **more)


@contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            hook.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(hook.status)
            self.send_header("content-length", "0")
            self.end_headers()
            hook.arrived.release()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("binding", "version"), [*((one, "1.0") for one in BINDINGS), ("JSONRPC", "0.3")])
def test_pauses_and_the_end_are_pushed_once(tmp_path: Path, binding: str, version: str) -> None:
    async def main() -> None:
        with listening() as hook:
            files = {**FILES, **hook.settings()}
            async with (
                started(tmp_path, *PAYS, files=files) as server,
                client(server, binding=binding, version=version) as user,
            ):
                request = said("pay 80")
                request.configuration.task_push_notification_config.CopyFrom(hook.config(token="seen-before"))
                request.configuration.return_immediately = version == "1.0"
                updates = user.send_message(request)
                task_id = (await anext(updates)).task.id
                await server.runtime.result(task_id)
                for _ in range(2):
                    await send_pushes(server.runtime)
                assert len(hook.received) == 1
                (asked,) = await server.runtime.pending(task_id)
                await server.runtime.decide(task_id, {asked.id: Approve()})
                await server.runtime.result(task_id)
                for _ in range(2):
                    await send_pushes(server.runtime)
        bodies = [body for headers, body in hook.received if headers["x-a2a-notification-token"] == "seen-before"]
        tasks = [body["task"] if version == "1.0" else body for body in bodies]
        auth, end = (
            ("TASK_STATE_AUTH_REQUIRED", "TASK_STATE_COMPLETED") if version == "1.0" else ("auth-required", "completed")
        )
        assert [(one["id"], one["status"]["state"]) for one in tasks] == [(task_id, auth), (task_id, end)]
        assert "may it call books.pay?" in tasks[0]["status"]["message"]["parts"][0]["text"]
        assert tasks[1]["artifacts"][0]["parts"][0]["text"] == "done"

    asyncio.run(main())


def test_a_push_that_fails_is_repeated_also_by_another_process_and_then_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        with listening() as hook:
            files = {**FILES, **hook.settings()}
            hook.status = 500
            async with started(tmp_path, *PAYS, files=files) as server, client(server) as user:
                request = said("pay 80")
                bearer = types.AuthenticationInfo(scheme="Bearer", credentials="abc")
                request.configuration.task_push_notification_config.CopyFrom(hook.config(authentication=bearer))
                request.configuration.return_immediately = True
                task_id = (await anext(user.send_message(request))).task.id
                await server.runtime.result(task_id)
                await send_pushes(server.runtime)
                clock = server.runtime.store.clock
                for number, wait in enumerate((4, 16, 64, 256), 2):
                    clock.set(clock() + wait - 1)
                    await send_pushes(server.runtime)
                    assert len(hook.received) == number - 1
                    clock.set(clock() + 1)
                    await send_pushes(server.runtime)
                    assert len(hook.received) == number
                clock.set(clock() + 100_000)
                await send_pushes(server.runtime)
                assert len(hook.received) == 5, "given up"
                (asked,) = await server.runtime.pending(task_id)
                await server.runtime.decide(task_id, {asked.id: Approve()})
                await server.runtime.result(task_id)
                assert len(await server.runtime.store.pushes.claim(10)) == 1  # by a process that ends at once
                now = clock()
            hook.status = 200
            async with started(tmp_path, files=files) as server:
                server.runtime.store.clock.set(now + 19)
                await send_pushes(server.runtime)
                assert len(hook.received) == 5, "the other process may be sending"
                server.runtime.store.clock.set(now + 21)
                for _ in range(2):
                    await send_pushes(server.runtime)
        assert hook.states() == ["TASK_STATE_AUTH_REQUIRED"] * 5 + ["TASK_STATE_COMPLETED"]
        assert {headers["authorization"] for headers, _ in hook.received} == {"Bearer abc"}

    asyncio.run(main())


@pytest.mark.parametrize("headers", [{}, {"a2a-version": ""}, {"a2a-version": "0.3"}])
def test_a_client_without_a_version_gets_push_notifications_of_0_3(tmp_path: Path, headers: dict[str, str]) -> None:
    message = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}], "kind": "message"}

    async def main() -> None:
        with listening() as hook:
            async with (
                started(tmp_path, "hello", files={**FILES, **hook.settings()}) as server,
                httpx.AsyncClient(trust_env=False, verify=False) as http,
            ):
                params = {"message": message, "configuration": {"pushNotificationConfig": {"url": hook.url}}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
                answer = (await http.post(f"{server.url}/a2a/billing", json=body, headers=headers)).json()
                assert answer["result"]["status"]["state"] == "completed", answer
                await send_pushes(server.runtime)
        [(_, told)] = hook.received
        assert (told["kind"], told["status"]["state"]) == ("task", "completed")

    asyncio.run(main())


def test_a_receiver_that_cannot_be_read_does_not_end_the_notifications_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        with listening() as hook:
            async with started(tmp_path, "hi", files={**FILES, **hook.settings()}) as server, client(server) as user:
                request = said("hello")
                request.configuration.task_push_notification_config.CopyFrom(hook.config())
                task_id = (await sent(user, request))[0].task.id
                later = {"config": json.dumps({"field_of_a_later_version": 1}), "pages": "", "version": "1.0"}
                await server.runtime.store.pushes.save(task_id, "later", json.dumps(later))
                await send_pushes(server.runtime)
                for wait in (4, 16, 64, 256, 100_000):
                    server.runtime.store.clock.set(server.runtime.store.clock() + wait)
                    await send_pushes(server.runtime)
                assert not await server.runtime.store.pushes.claim(10), "given up"
        assert hook.states() == ["TASK_STATE_COMPLETED"]

    asyncio.run(main())


@pytest.mark.parametrize("binding", BINDINGS)
def test_push_notification_configs_belong_to_their_task(tmp_path: Path, binding: str) -> None:
    async def main() -> None:
        with listening() as hook:
            roles = ["chat", "decide", "read"]
            keys = [key_entry(name, KEYS[name], tenant=name, roles=roles) for name in ("alice", "bob")]
            hosts = json.loads(hook.settings()["agentsd.yaml"].partition("a2a_push_hosts: ")[2][:-2])
            settings = {"server": {"api_keys": keys, "a2a_push_hosts": hosts}}
            files = {**FILES, "agentsd.yaml": json.dumps(settings)}
            async with (
                started(tmp_path, *ASKS, files=files) as server,
                client(server, binding=binding, key=KEYS["alice"]) as alice,
                client(server, binding=binding, key=KEYS["bob"]) as bob,
                client(server, "helper", binding, key=KEYS["alice"]) as helper,
            ):
                task = (await sent(alice, said("paint it")))[0].task.id
                config = hook.config(task_id=task, id="mine", token="secret")
                config.authentication.CopyFrom(types.AuthenticationInfo(scheme="Bearer", credentials="abc"))
                made = await alice.create_task_push_notification_config(config)
                config.ClearField("token")
                config.authentication.ClearField("credentials")
                assert made == config, "without the secrets"
                first = types.GetTaskPushNotificationConfigRequest(task_id=task, id="mine")
                every = types.ListTaskPushNotificationConfigsRequest(task_id=task)
                gone = types.DeleteTaskPushNotificationConfigRequest(task_id=task, id="mine")
                assert await alice.get_task_push_notification_config(first) == config
                assert (await alice.list_task_push_notification_configs(every)).configs == [config]
                for other in (bob, helper):
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.create_task_push_notification_config(config)
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.get_task_push_notification_config(first)
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.list_task_push_notification_configs(every)
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.delete_task_push_notification_config(gone)
                for number in range(1, MAX_PUSHES):
                    await alice.create_task_push_notification_config(hook.config(task_id=task, id=f"{number}"))
                with pytest.raises(errors.InvalidParamsError, match="delete one"):
                    await alice.create_task_push_notification_config(hook.config(task_id=task, id="another"))
                for number in range(1, MAX_PUSHES):
                    await alice.delete_task_push_notification_config(
                        types.DeleteTaskPushNotificationConfigRequest(task_id=task, id=f"{number}")
                    )
                for _ in range(2):
                    await alice.delete_task_push_notification_config(gone)
                with pytest.raises(errors.TaskNotFoundError):
                    await alice.get_task_push_notification_config(first)
                await send_pushes(server.runtime)
        assert hook.received == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://127.0.0.1:1/", ""),
        ("https://10.0.0.1/", ""),
        ("https://localhost/", ""),
        ("http://169.254.169.254/latest/meta-data", ""),
        ("http://[::1]/", ""),
        ("http://2130706433/", ""),
        ("https://no-such-host.invalid/", ""),
        ("https://example.com:8443/", ""),
        ("https://user:pass@example.com/", ""),
        ("file:///etc/passwd", ""),
        ("https://93.184.216.34/", "a\r\nhost: x"),
        ("", ""),
    ],
)
def test_push_notifications_go_nowhere_else(tmp_path: Path, url: str, token: str) -> None:
    async def main() -> None:
        settings = {"agentsd.yaml": 'routing: {default_agent: billing}\nserver: {a2a_push_hosts: ["*"]}\n'}
        async with started(tmp_path, "hi", files={**FILES, **settings}) as server, client(server) as user:
            request = said("hello")
            config = types.TaskPushNotificationConfig(url=url, token=token)
            request.configuration.task_push_notification_config.CopyFrom(config)
            with pytest.raises(errors.InvalidParamsError):
                await sent(user, request)
            assert await server.runs() == [], "nothing has started"

    asyncio.run(main())


@pytest.mark.parametrize("binding", BINDINGS)
def test_an_approval_keeps_the_stream_open_wherever_it_is_made(tmp_path: Path, binding: str) -> None:
    async def main() -> None:
        async with started(tmp_path, *PAYS, *PAYS) as server, client(server, binding=binding) as user:
            for made_by_message in (True, False):
                updates: list[types.StreamResponse] = []
                async for update in user.send_message(said("pay 80")):
                    updates.append(update)
                    if update.status_update.status.state == State.TASK_STATE_AUTH_REQUIRED:
                        task = update.status_update
                        assert "may it call books.pay?" in task.status.message.parts[0].text
                        assert f"/runs/{task.task_id}" in task.status.message.parts[0].text
                        with pytest.raises(errors.UnsupportedOperationError, match="words do not give"):
                            await sent(user, said("yes, I approve", task=task.task_id))
                        if made_by_message:
                            others = await sent(user, said(approval(task), task=task.task_id))
                            assert states(others)[-1] == State.TASK_STATE_COMPLETED
                        else:
                            (asked,) = await server.runtime.pending(task.task_id)
                            await server.runtime.decide(task.task_id, {asked.id: Approve()})
                assert states(updates)[-1] == State.TASK_STATE_COMPLETED
                assert State.TASK_STATE_AUTH_REQUIRED in states(updates)
                assert text_of(updates) == "done"
        assert (tmp_path / "paid").read_text() == "80\n80\n"

    asyncio.run(main())


def test_the_next_message_of_a_task_answers_its_question(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, *ASKS) as server, client(server) as user:
            updates = await sent(user, said("paint it"))
            assert states(updates)[-1] == State.TASK_STATE_INPUT_REQUIRED
            task = updates[0].task
            assert "Which colour?" in updates[-1].status_update.status.message.parts[0].text
            with pytest.raises(errors.InvalidParamsError, match="contextId"):
                await sent(user, said("blue", task=task.id, context="another"))
            updates = await sent(user, said("blue", task=task.id, context=task.context_id))
            assert states(updates)[-1] == State.TASK_STATE_COMPLETED
            assert text_of(updates) == "it is blue"
            with pytest.raises(errors.UnsupportedOperationError, match="takes no message"):
                await sent(user, said("red", task=task.id))

    asyncio.run(main())


@pytest.mark.parametrize("number", [2, 5])
def test_of_messages_at_once_to_a_paused_task_one_decides(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        async with started(tmp_path, *PAYS) as server, client(server) as user:
            request = said("pay 80")
            request.configuration.return_immediately = True
            task_id = (await anext(user.send_message(request))).task.id
            await server.runtime.result(task_id)
            task = await user.get_task(types.GetTaskRequest(id=task_id))

            async def approve() -> bool:
                try:
                    await sent(user, said(approval(task), task=task_id))
                except errors.A2AError:
                    return False
                return True

            async with asyncio.TaskGroup() as group:
                tries = [group.create_task(approve()) for _ in range(number)]
            assert [one.result() for one in tries].count(True) == 1
            assert (await server.runtime.result(task_id)).status == "completed"
        assert (tmp_path / "paid").read_text() == "80\n"

    asyncio.run(main())


def test_a_client_that_does_not_wait_follows_later_and_cancels(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, calls(("books.wait", {}))) as server, client(server) as user:
            request = said("wait")
            request.configuration.return_immediately = True
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                body: dict[str, Any] = {
                    "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "wait"}]}
                }
                body["configuration"] = {"returnImmediately": True}
                url, headers = f"{server.url}/a2a/billing/message:send", {"a2a-version": "1.0"}
                first, again = [
                    (await http.post(url, json=body, headers=headers)).json()["task"]["id"] for _ in range(2)
                ]
                assert first == again  # the same message is one task
                body["message"]["parts"] = [{"text": "something else"}]
                assert (await http.post(url, json=body, headers=headers)).status_code == 400
            updates = []
            async for update in user.subscribe(types.SubscribeToTaskRequest(id=first)):
                updates.append(update)
                if len(updates) == 1:
                    await user.cancel_task(types.CancelTaskRequest(id=first))
            assert states(updates)[-1] == State.TASK_STATE_CANCELED
            again = await user.cancel_task(types.CancelTaskRequest(id=first))
            assert again.status.state == State.TASK_STATE_CANCELED
            with pytest.raises(errors.UnsupportedOperationError):
                await anext(user.subscribe(types.SubscribeToTaskRequest(id=first)))
            assert len(await server.runs()) == 1

    asyncio.run(main())


def test_a_message_to_two_agents_is_two_tasks(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, "one", "two") as server:
            tasks = []
            request = said("hello")
            for name in ("billing", "helper"):
                async with client(server, name) as user:
                    tasks.append([answer async for answer in user.send_message(request)][-1])
            assert tasks[0] != tasks[1]
            assert {run.agent for run in await server.runs()} == {"billing", "helper"}

    asyncio.run(main())


def test_data_and_files_arrive_and_links_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, "seen") as server, client(server) as user:
            image = new_raw_part(png(), media_type="image/png", filename="cat.png")
            await sent(user, said("look", new_data_part({"a": [1]}), image))
            (info,) = await server.runs()
            message = (await server.runtime.store.load_run(info.run_id)).messages[0]
            assert '{"a": [1' in message.content
            assert [part.media_type for part in message.media] == ["image/png"]
            with pytest.raises(errors.ContentTypeNotSupportedError):
                await sent(user, said(new_url_part("file:///etc/passwd")))
            with pytest.raises(errors.InvalidParamsError):
                await sent(user, said(new_raw_part(b"no image", media_type="image/png")))
            assert len(await server.runs()) == 1

    asyncio.run(main())


def test_a_run_without_an_answer_has_failed_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        files = {**FILES, "agents.d/billing.yaml": agent("billing", limits="{steps: 1}")}
        turns = (calls(("ask_user", {"question": 7})), "x")
        async with started(tmp_path, *turns, files=files) as server, client(server) as user:
            end = (await sent(user, said("go")))[-1].status_update.status
            assert end.state == State.TASK_STATE_FAILED
            assert "max_steps" in end.message.parts[0].text

    asyncio.run(main())


def test_tasks_exist_for_their_tenant_and_agent_only(tmp_path: Path) -> None:
    entries = [
        key_entry("alice", KEYS["alice"], tenant="a", roles=["chat", "decide", "read"]),
        key_entry("bob", KEYS["bob"], tenant="b", roles=["chat", "decide", "read"]),
        key_entry("chatter", KEYS["chatter"], tenant="a", roles=["chat"], agents=["billing"]),
    ]
    files = {
        **FILES,
        "agentsd.yaml": json.dumps({"routing": {"default_agent": "billing"}, "server": {"api_keys": entries}}),
    }

    async def main() -> None:
        async with (
            started(tmp_path, *PAYS, files=files) as server,
            client(server, key=KEYS["alice"]) as alice,
            client(server, key=KEYS["bob"]) as bob,
            client(server, key=KEYS["chatter"]) as chatter,
            client(server, "helper", key=KEYS["alice"]) as helper,
        ):
            waits = aiter(chatter.send_message(said("pay 80")))
            update = await anext(waits)
            while update.status_update.status.state != State.TASK_STATE_AUTH_REQUIRED:
                update = await anext(waits)
            task = update.status_update
            with pytest.raises(errors.UnsupportedOperationError, match="role 'decide'"):
                await sent(chatter, said(approval(task), task=task.task_id))
            for other in (bob, helper):
                for unknown in (task.task_id, "run_nope", "\0", "x" * 10_000):
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.get_task(types.GetTaskRequest(id=unknown))
                    with pytest.raises(errors.TaskNotFoundError):
                        await sent(other, said(approval(task), task=unknown))
                    with pytest.raises(errors.TaskNotFoundError):
                        await other.cancel_task(types.CancelTaskRequest(id=unknown))
                assert not (await other.list_tasks(types.ListTasksRequest())).tasks
            wrong = new_data_part({"decisions": {"x": {"type": "allow everything"}}})
            with pytest.raises(errors.InvalidParamsError, match="decisions"):
                await sent(alice, said(wrong, task=task.task_id))
            with pytest.raises(errors.InvalidParamsError):
                await sent(alice, said(new_data_part({"decisions": {"x": {"type": "approve"}}}), task=task.task_id))
            assert states(await sent(alice, said(approval(task), task=task.task_id)))[-1] == State.TASK_STATE_COMPLETED
            assert [one async for one in waits][-1].status_update.status.state == State.TASK_STATE_COMPLETED
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                assert (await http.get(f"{server.url}/.well-known/agent-card.json")).status_code == 401
                bearer = {"authorization": f"Bearer {KEYS['chatter']}"}
                card = (await http.get(f"{server.url}/.well-known/agent-card.json", headers=bearer)).json()
                assert (card["name"], [one["id"] for one in card["skills"]]) == ("billing", ["billing"])
                assert (await http.get(f"{server.url}/a2a/helper/.well-known/agent-card.json", headers=bearer)).is_error
                bearer = {"authorization": f"Bearer {KEYS['alice']}"}
                card = (await http.get(f"{server.url}/.well-known/agent-card.json", headers=bearer)).json()
                assert (card["name"], [one["id"] for one in card["skills"]]) == ("agentsd", ["billing", "helper"])

    asyncio.run(main())


SEND = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({}, {"method": "SendMessage", "params": SEND}, "not supported"),  # no version is 0.3
        ({"a2a-version": "2.0"}, {"method": "SendMessage", "params": SEND}, "not supported"),
        (None, {"method": "SendMessage", "params": {}}, ""),
        (None, {"method": "SendMessage", "params": {"message": {**SEND["message"], "parts": []}}}, ""),
        (
            None,
            {"method": "SendMessage", "params": {"message": {**SEND["message"], "role": "ROLE_AGENT"}}},
            "ROLE_USER",
        ),
        (None, {"method": "SendMessage", "params": [1]}, ""),
        (None, {"method": "NoSuch"}, "not found"),
        (None, {"method": "GetTask", "params": {"id": ["x"]}}, ""),
        (None, {"method": "ListTasks", "params": {"pageSize": 100_000}}, "pageSize"),
        (None, {"method": "ListTasks", "params": {"pageToken": "nope"}}, ""),
        (None, {"method": "GetTask", "params": {"id": "x", "historyLength": -1}}, ""),
        (
            None,
            {"method": "CreateTaskPushNotificationConfig", "params": {"taskId": "x", "url": "http://10.0.0.1/"}},
            "Push",
        ),
    ],
)
def test_requests_that_do_not_fit_are_errors_of_the_protocol(
    tmp_path: Path, headers: dict[str, str] | None, body: dict[str, Any], message: str
) -> None:
    async def main() -> None:
        async with started(tmp_path) as server, httpx.AsyncClient(trust_env=False, verify=False) as http:
            sends = {"a2a-version": "1.0"} if headers is None else headers
            answer = await http.post(
                f"{server.url}/a2a/billing", json={"jsonrpc": "2.0", "id": 1, **body}, headers=sends
            )
            error = answer.json()["error"]
            assert error["code"] < -32000
            assert message in error["message"]
            assert "Traceback" not in answer.text
            assert await server.runs() == []
            deep = "[" * 200 + "]" * 200
            answer = await http.post(f"{server.url}/a2a/billing", content=deep, headers=sends)
            assert answer.status_code == 400

    asyncio.run(main())


@pytest.mark.parametrize("number", range(FACTOR))
def test_a_killed_server_loses_nothing_and_repeats_nothing(tmp_path: Path, number: int) -> None:
    """The client approves, or a person elsewhere."""
    with listening() as hook:
        files = {**FILES, **hook.settings()}
        write(tmp_path, {name: text.replace("model: scripted", "model: offline") for name, text in files.items()})

        async def main() -> None:
            with served(tmp_path) as first:
                async with client(Serving(first.url, None)) as user:  # type: ignore[arg-type]  # only its address is used
                    request = said("pay 80")
                    request.configuration.task_push_notification_config.CopyFrom(hook.config())
                    async for update in user.send_message(request):
                        if update.status_update.status.state == State.TASK_STATE_AUTH_REQUIRED:
                            task = update.status_update
                            break
                first.process.kill()
                first.process.wait(PATIENCE)
            with served(tmp_path) as second:
                async with client(Serving(second.url, None)) as user:  # type: ignore[arg-type]  # likewise
                    if number % 2 == 0:
                        updates = await sent(user, said(approval(task), task=task.task_id))
                        assert states(updates)[-1] == State.TASK_STATE_COMPLETED
                    else:
                        asked = get_data_parts(task.status.message.parts)[0]["confirmations"][0]["id"]
                        body = {"decisions": {asked: {"type": "approve"}}}
                        path = f"/agent/runs/{task.task_id}/decisions"
                        accepted = await asyncio.to_thread(second.request, "POST", path, json=body)
                        assert accepted.status_code == 202
                while not hook.received or hook.states()[-1] != "TASK_STATE_COMPLETED":
                    assert await asyncio.to_thread(hook.arrived.acquire, timeout=PATIENCE)

        asyncio.run(main())
    assert (tmp_path / "paid").read_text() == "80\n"
