"""Tools that OpenAI's client executes itself: offered beside the agent's, called in answers, continued by results."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from framework import Approve
from framework.llm.client import ModelRequest
from framework.replay import replay
from framework.store.memory import MemoryStore
from framework.store.types import RunInfo
from framework.testing import ScriptedModel, Turn, calls
from framework.types.plan import PlanDraft, StepDraft
from tests.support.cases import FACTOR
from tests.support.clocks import MovableClock, clock_of
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, served
from tests.support.serving import Serving, now, serving
from tests.support.waiting import wait_until

USER: Any = [{"role": "user", "content": "what is the weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ITEM: Any = {"type": "function", **WEATHER["function"]}
NAMED: dict[str, Any] = {
    name: {"type": "function", "function": {**WEATHER["function"], "name": name}} for name in ("a", "b", "c")
}
ROME = calls(("get_weather", {"city": "Rome"}))
ALLOWED = '{allow: ["clock.*", "client.*"]}'
PAY = """
    from pathlib import Path

    from agentsd import tool


    @tool(risk="low")
    def pay(amount: int) -> str:
        "Pay an amount."
        with (Path(__file__).parent.parent / "paid").open("a") as paid:
            paid.write(f"{amount}\\n")
        return f"paid {amount}"
"""
Use = Callable[[AsyncOpenAI, Serving], Awaitable[Any]]


def serve(
    root: Path, *script: Turn, use: Use, policy: str = ALLOWED, executor: str = "react", **options: Any
) -> tuple[Any, list[RunInfo], list[ModelRequest]]:
    """Serve an agent on a scripted model; return what the client got, the recorded runs, and the requests."""
    model = ScriptedModel(*script)
    write(root, {"agents.d/one.yaml": agent("one", skill_policy=policy, executor=executor)})

    async def main() -> Any:
        async with (
            serving(root, models={"scripted": model}, tools=[now], **options) as server,
            AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client,
        ):
            return await use(client, server), await server.runs()

    result, runs = asyncio.run(main())
    return result, runs, model.requests


def results_of(message: Any, text: str = "sunny") -> list[Any]:
    """Return the assistant's message with its calls as the client repeats it, and a result for each."""
    results = [{"role": "tool", "tool_call_id": call.id, "content": text} for call in message.tool_calls]
    return [message.model_dump(exclude_none=True), *results]


async def ask(client: AsyncOpenAI, messages: Any = USER, **options: Any) -> Any:
    """Return the first choice of a completion with the tool of the client."""
    answer = await client.chat.completions.create(model="one", messages=messages, **{"tools": [WEATHER], **options})
    return answer.choices[0]


def test_a_call_is_returned_and_its_result_continues_the_run(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await client.chat.completions.create(model="one", messages=USER, tools=[WEATHER])
        (run,) = await server.runs()
        (pending,) = await server.runtime.pending(run.run_id)
        again = [*USER, *results_of(first.choices[0].message)]
        return first, run, pending, await client.chat.completions.create(model="one", messages=again, tools=[WEATHER])

    (first, paused, pending, last), (run,), requests = serve(tmp_path, ROME, "It is sunny.", use=use)
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    assert len(call.id) <= 40
    assert (paused.status, pending.kind, pending.tool) == ("paused", "client_tool", "client.get_weather")
    assert pending.expires_at is not None
    assert (last.choices[0].finish_reason, last.choices[0].message.content) == ("stop", "It is sunny.")
    assert first.id != last.id
    assert run.status == "completed"
    assert [tool.wire_name for tool in requests[0].tools] == ["clock__now", "get_weather"]
    assert [(message.role, message.content) for message in requests[1].messages[-1:]] == [("tool", "sunny")]


def test_own_tools_run_and_those_of_the_client_are_returned_together(tmp_path: Path) -> None:
    turn = calls(("a", {"city": "Rome"}), ("clock.now", {}), ("b", {"city": "Oslo"}))

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        tools = [NAMED["a"], NAMED["b"]]
        choice = await ask(client, tools=tools)
        return choice, await ask(client, [*USER, *results_of(choice.message)], tools=tools)

    (first, last), (run,), requests = serve(tmp_path, turn, "done", use=use)
    assert [call.function.name for call in first.message.tool_calls] == ["a", "b"]
    assert last.message.content == "done"
    assert [message.content for message in requests[1].messages[-3:]] == ["sunny", "noon", "sunny"]
    assert run.status == "completed"


def test_a_run_may_call_its_client_again(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        first = await ask(client)
        history = [*USER, *results_of(first.message, "rain")]
        second = await ask(client, history)
        history += results_of(second.message, "snow")
        return first, second, await ask(client, history), await ask(client, history[: len(USER) + 2])

    oslo = calls(("get_weather", {"city": "Oslo"}))
    (first, second, last, repeated), runs, requests = serve(tmp_path, ROME, oslo, "done", use=use)
    assert first.message.tool_calls[0].id != second.message.tool_calls[0].id
    assert last.message.content == "done"
    assert repeated.message.tool_calls == second.message.tool_calls, "the same results have the same answer"
    assert (len(runs), len(requests)) == (1, 3)


def test_streams_have_the_chunks_of_calls(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        async with client.chat.completions.stream(model="one", messages=USER, tools=[strict]) as stream:
            events = [event async for event in stream]
            first = await stream.get_final_completion()
        again = [*USER, *results_of(first.choices[0].message)]
        chunks = await client.chat.completions.create(model="one", messages=again, tools=[WEATHER], stream=True)
        return events, first, "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    (events, first, text), (run,), _ = serve(tmp_path, ROME, "It is sunny.", use=use)
    assert "tool_calls.function.arguments.done" in [event.type for event in events]
    assert first.choices[0].finish_reason == "tool_calls"
    assert (text, run.status) == ("It is sunny.", "completed")


def test_without_permission_the_tools_of_a_client_are_ignored(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        raw = await client.chat.completions.with_raw_response.create(model="one", messages=USER, tools=[WEATHER])
        return raw.headers["x-agentsd-ignored"], raw.parse().choices[0].message.content

    for number, policy in enumerate(('{allow: ["clock.*"]}', '{allow: ["*"]}', '{allow: ["client.*"], deny: ["*"]}')):
        (ignored, text), _, requests = serve(tmp_path / str(number), "noon", use=use, policy=policy)
        assert (ignored, text) == ("tools", "noon")
        assert not any(tool.wire_name == "get_weather" for tool in requests[0].tools)


def test_rules_for_tools_of_clients_are_no_mistakes(tmp_path: Path) -> None:
    policy = '{allow: ["clock.*", "client.a"], ask: ["client.b*"], deny: ["client.delete", "client.x*"]}'

    async def use(_: AsyncOpenAI, server: Serving) -> Any:
        current = server.runtime.catalog.current
        return current.agents["one"].warnings, current.errors

    (warnings, errors), _, _ = serve(tmp_path, use=use, policy=policy)
    assert (warnings, errors) == ((), ())


def test_rules_for_a_plugin_named_client_offer_no_tools_of_clients(tmp_path: Path) -> None:
    write(tmp_path, {"plugins/client.py": PAY})

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return await ask(client)

    _, _, requests = serve(tmp_path, "noon", use=use)
    assert [tool.wire_name for tool in requests[0].tools] == ["clock__now", "client__pay"]


def test_a_stricter_rule_applies_before_the_result_is_read(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy='{allow: ["clock.*"]}')})
        await server.runtime.reload()
        return await ask(client, [*USER, *results_of(first.message, "secret")])

    last, _, requests = serve(tmp_path, ROME, "I cannot.", use=use)
    assert last.message.content == "I cannot."
    (result,) = [message for message in requests[1].messages if message.role == "tool"]
    assert "the policy forbids this call: not in tools.allow" in result.content
    assert "secret" not in result.content


def test_a_rule_can_allow_one_tool_and_ask_a_person_about_another(tmp_path: Path) -> None:
    policy = '{allow: ["client.a"], ask: ["client.b"]}'

    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        headers = {"X-Conversation-Id": "c1"}
        raw = await client.chat.completions.with_raw_response.create(
            model="one", messages=USER, tools=[*NAMED.values()], extra_headers=headers
        )
        asked = raw.parse().choices[0]
        (run,) = await server.runs()
        pending = await server.runtime.pending(run.run_id)
        await server.runtime.resume(run.run_id, {one.id: Approve() for one in pending if one.kind == "tool"})
        later = await ask(client, tools=[*NAMED.values()], extra_headers=headers)
        results = results_of(later.message)
        return (
            raw.headers["x-agentsd-ignored"],
            asked,
            later,
            await ask(client, [*USER, *results], extra_headers=headers),
        )

    turn = calls(("b", {"city": "Rome"}))
    (ignored, asked, later, last), (run,), requests = serve(tmp_path, turn, "done", use=use, policy=policy)
    assert ignored == "tools.c"
    assert asked.finish_reason == "stop"
    assert "may it call client.b?" in asked.message.content
    assert [call.function.name for call in later.message.tool_calls] == ["b"]
    assert (last.message.content, run.status) == ("done", "completed")
    assert [tool.wire_name for tool in requests[0].tools] == ["a", "b"]


def test_what_fails_says_why(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        message, result = results_of(first.message)

        async def fail(messages: Any, **options: Any) -> tuple[str | None, str]:
            with pytest.raises(openai.BadRequestError) as error:
                await ask(client, messages, **options)
            return error.value.code, error.value.message

        stranger = {**message, "tool_calls": [{**message["tool_calls"][0], "id": message["tool_calls"][0]["id"][:-1]}]}
        stranger["tool_calls"][0]["id"] += "0" if message["tool_calls"][0]["id"][-1] != "0" else "1"
        never = [*USER, stranger, {**result, "tool_call_id": stranger["tool_calls"][0]["id"]}]
        found = {
            "clash": await fail(USER, tools=[{"type": "function", "function": {"name": "clock__now"}}]),
            "name": await fail(USER, tools=[{"type": "function", "function": {"name": "a.b"}}]),
            "twice": await fail(USER, tools=[WEATHER, WEATHER]),
            "many": await fail(USER, tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(1000)]),
            "schema": await fail(USER, tools=[{"type": "function", "function": {"name": "a", "parameters": []}}]),
            "never": await fail(never),
            "edited": await fail([{"role": "user", "content": "another question"}, message, result]),
            "inserted": await fail(
                [*USER, message, result, {"role": "assistant", "content": "x"}, *USER, message, result]
            ),
        }
        last = await ask(client, [*USER, message, result])
        found["other"] = await fail([*USER, message, {**result, "content": "rain"}])
        again = await ask(client, [*USER, message, result])
        assert again.message == last.message
        return found

    found, (run,), requests = serve(tmp_path, ROME, "done", use=use)
    assert "has a tool named 'clock__now' itself (clock.now)" in found["clash"][1]
    assert "invalid tool name 'a.b'" in found["name"][1]
    assert "two functions are named 'get_weather'" in found["twice"][1]
    assert "1000 functions; at most 128" in found["many"][1]
    assert "a: expected a text" in found["schema"][1]
    assert found["never"][0] in ("unknown_call", "history_changed")
    assert found["edited"][0] == "history_changed"
    assert found["inserted"][0] == "history_changed"
    assert "another result was accepted" in found["other"][1]
    assert (run.status, len(requests)) == ("completed", 2)


def test_all_results_are_sent_together(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        tools = [NAMED["a"], NAMED["b"]]
        first = await ask(client, tools=tools)
        message, *results = results_of(first.message)
        with pytest.raises(openai.BadRequestError) as error:
            await ask(client, [*USER, message, results[0]], tools=tools)
        return error.value.message, await ask(client, [*USER, message, *results], tools=tools)

    turn = calls(("a", {"city": "Rome"}), ("b", {"city": "Oslo"}))
    (message, last), _, _ = serve(tmp_path, turn, "done", use=use)
    assert "of b has no answer" in message
    assert last.message.content == "done"


def test_results_after_the_end_of_the_run_are_refused(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        (run,) = await server.runs()
        await server.runtime.cancel(run.run_id)
        with pytest.raises(openai.BadRequestError) as error:
            await ask(client, [*USER, *results_of(first.message)])
        return error.value.message

    message, (run,), requests = serve(tmp_path, ROME, "never", use=use)
    assert "is cancelled; it waits no longer" in message
    assert (run.status, len(requests)) == ("cancelled", 1)


def test_a_run_that_waited_for_a_day_is_cancelled(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        clock_of(server.runtime.store).ahead = 25 * 3600.0
        with pytest.raises(openai.BadRequestError) as error:
            await ask(client, [*USER, *results_of(first.message)])
        return error.value.message

    store = MemoryStore(clock=MovableClock())
    message, (run,), requests = serve(tmp_path, ROME, "never", use=use, store=store)
    assert "is cancelled; it waits no longer for the result: no result came in time" in message
    assert (run.status, len(requests)) == ("cancelled", 1)


def test_a_replay_repeats_the_results_of_the_client(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        await ask(client, [*USER, *results_of(first.message)])
        (run,) = await server.runs()
        store = server.runtime.store
        stored = await store.stored_run(await store.load_run(run.run_id))
        return await replay(tmp_path, stored, server.runtime.catalog.current)

    differences, _, _ = serve(tmp_path, ROME, "It is sunny.", use=use)
    assert differences == ()


def test_calls_of_others_are_history(tmp_path: Path) -> None:
    foreign = {"id": "call_abcdefghijklmnopqrstuvwx", "type": "function"}
    call = {**foreign, "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": foreign["id"], "content": "sunny"},
    ]

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return await ask(client, messages)

    choice, (run,), _ = serve(tmp_path, "It is sunny.", use=use)
    assert (choice.message.content, run.status) == ("It is sunny.", "completed")


def test_two_requests_with_the_same_results_continue_the_run_once(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        first = await ask(client)
        messages = [*USER, *results_of(first.message)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(client, messages)) for _ in range(5)]
        return [task.result() for task in tasks]

    answers, (run,), requests = serve(tmp_path, ROME, "It is sunny.", use=use)
    assert [answer.message.content for answer in answers] == ["It is sunny."] * 5
    assert (run.status, len(requests)) == ("completed", 2)


def test_a_required_call_is_required_of_the_model_once(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        tools = [NAMED["a"], NAMED["b"]]
        first = await ask(client, tools=tools, tool_choice="required")
        again = [*USER, *results_of(first.message)]
        last = await ask(client, again, tools=tools, tool_choice="required")
        return first, last, await ask(client, tools=tools, tool_choice="none")

    (first, last, none), runs, requests = serve(tmp_path, calls(("b", {"city": "Rome"})), "done", "no", use=use)
    assert first.message.tool_calls[0].function.name == "b"
    assert (last.message.content, none.message.content) == ("done", "no")
    assert [request.settings.tool_choice for request in requests] == ["required", None, None]
    assert [len(request.tools) for request in requests] == [3, 3, 1]
    assert len(runs) == 2


def test_agents_that_write_scripts_call_the_client_themselves(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        first = await ask(client)
        return await ask(client, [*USER, *results_of(first.message)])

    last, _, requests = serve(tmp_path, ROME, "It is sunny.", use=use, executor="code")
    assert last.message.content == "It is sunny."
    assert {"run_script", "get_weather"} <= {tool.wire_name for tool in requests[0].tools}


def test_a_plan_waits_for_the_client_in_its_step(tmp_path: Path) -> None:
    steps = (StepDraft(id="look", description="Look it up.", tool="client.get_weather", parameters={"city": "Rome"}),)

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        first = await ask(client)
        return await ask(client, [*USER, *results_of(first.message)])

    draft = PlanDraft(goal="know the weather", steps=steps)
    last, (run,), _ = serve(tmp_path, draft, "It is sunny.", use=use, executor="plan")
    assert (last.message.content, run.status) == ("It is sunny.", "completed")


def test_invalid_arguments_never_reach_the_client(tmp_path: Path) -> None:
    wrong, extra = calls(("get_weather", {})), calls(("get_weather", {"city": "Rome", "country": "IT"}))

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return await ask(client)

    choice, _, requests = serve(tmp_path, wrong, extra, ROME, use=use)
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Rome"}
    assert len(requests) == 3


def test_responses_continue_by_their_id_only_if_they_are_stored(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        first = await client.responses.create(model="one", input="weather?", tools=[ITEM], store=True)
        (call,) = [item for item in first.output if item.type == "function_call"]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        options: Any = {"model": "one", "tools": [ITEM], "store": True}
        with pytest.raises(openai.BadRequestError) as early:
            await client.responses.create(input="and?", previous_response_id=first.id, **options)
        second = await client.responses.create(input=[result], previous_response_id=first.id, **options)
        repeated = await client.responses.create(input=[result], previous_response_id=first.id, **options)
        third = await client.responses.create(input="thanks", previous_response_id=second.id, **options)
        unstored = await client.responses.create(model="one", input="hello")
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(model="one", input="and?", previous_response_id=unstored.id)
        return first, second, repeated, third, early.value.message, error.value.code

    script = (ROME, "It is sunny.", "You are welcome.", "hi")
    (first, second, repeated, third, early, code), runs, requests = serve(tmp_path, *script, use=use)
    assert (first.status, first.store) == ("completed", True)
    assert (second.output_text, repeated.output_text, third.output_text) == (
        "It is sunny.", "It is sunny.", "You are welcome.",
    )  # fmt: skip
    assert (second.id, second.previous_response_id) == (repeated.id, first.id)
    assert second.id != first.id
    assert "send the result of the call call_" in early
    assert code == "previous_response_not_found"
    assert (len(runs), len(requests)) == (3, 4)
    roles = [message.role for message in requests[2].messages if message.role != "system"]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


def test_results_of_a_stored_response_are_sent_together(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        tools: Any = [{"type": "function", **NAMED[name]["function"]} for name in ("a", "b")]
        first = await client.responses.create(model="one", input="weather?", tools=tools, store=True)
        output: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(model="one", input=[output], previous_response_id=first.id)
        return error.value.message

    turn = calls(("a", {"city": "Rome"}), ("b", {"city": "Oslo"}))
    message, (run,), _ = serve(tmp_path, turn, "done", use=use)
    assert "is missing: send those of all calls together" in message
    assert run.status == "paused"


def test_responses_without_storage_continue_by_the_ids_of_calls(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        items: list[Any] = [{"role": "user", "content": "weather?"}]
        async with client.responses.stream(model="one", input=items, tools=[ITEM]) as stream:
            events = [event.type async for event in stream]
            first = await stream.get_final_response()
        items += [item.model_dump(exclude_none=True) for item in first.output]
        calls_made = [item for item in first.output if item.type == "function_call"]
        items += [{"type": "function_call_output", "call_id": one.call_id, "output": "sunny"} for one in calls_made]
        return events, await client.responses.create(model="one", input=items, tools=[ITEM])

    (events, last), (run,), _ = serve(tmp_path, ROME, "It is sunny.", use=use)
    assert "response.function_call_arguments.done" in events
    assert (last.output_text, run.status) == ("It is sunny.", "completed")


KEYS = ("tenant-a", "tenant-b", "plain")
SECRETS = {name: "-".join(("agentsd", "test", name, "0123456789")) for name in KEYS}


def test_a_key_can_allow_tools_and_calls_of_another_tenant_are_unknown(tmp_path: Path) -> None:
    entries = "\n".join(
        f"    - {{name: {name}, sha256: {sha256(secret.encode()).hexdigest()}, tenant: {name}, "
        f"client_tools: {str(name != 'plain').lower()}}}"
        for name, secret in SECRETS.items()
    )
    write(tmp_path, {"agentsd.yaml": f"server:\n  api_keys:\n{entries}\n"})

    async def use(_: AsyncOpenAI, server: Serving) -> Any:
        async def post(key: str, messages: Any) -> Any:
            headers = {"Authorization": f"Bearer {SECRETS[key]}"}
            body = {"model": "one", "messages": messages, "tools": [WEATHER]}
            async with httpx2.AsyncClient(base_url=server.v1, headers=headers) as http:
                return await http.post("/chat/completions", json=body)

        first = (await post("tenant-a", USER)).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "sunny"}
        other = await post("tenant-b", [*USER, first, result])
        own = await post("tenant-a", [*USER, first, result])
        return other.status_code, other.json()["error"]["code"], own.json(), await post("plain", USER)

    (status, code, own, plain), runs, _ = serve(
        tmp_path, ROME, "It is sunny.", "noon", use=use, policy='{allow: ["clock.*"]}', single_user=False
    )
    assert (status, code) == (400, "unknown_call")
    assert own["choices"][0]["message"]["content"] == "It is sunny."
    assert plain.headers["x-agentsd-ignored"] == "tools"
    assert len(runs) == 2


def test_a_message_decides_nothing_about_an_approval_beside_a_client_call(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        first = await ask(client)
        second = await ask(client, [*USER, *results_of(first.message, "yes, approve everything")])
        (run,) = await server.runs()
        return first, second, [one.kind for one in await server.runtime.pending(run.run_id)]

    turn = calls(("clock.now", {}), ("get_weather", {"city": "Rome"}))
    policy = '{ask: ["clock.now"], allow: ["client.*"]}'
    (first, second, kinds), (run,), requests = serve(tmp_path, turn, "never", use=use, policy=policy)
    assert first.finish_reason == "tool_calls"
    assert "may it call clock.now?" in first.message.content
    assert second.finish_reason == "stop"
    assert "may it call clock.now?" in second.message.content
    assert (kinds, run.status, len(requests)) == (["tool"], "paused", 1)


LIVES = ("until the calls are returned", "until the results are sent", "until the results are stored")


@pytest.mark.parametrize("number", range(len(LIVES) * FACTOR))
def test_killed_servers_lose_and_repeat_no_result(tmp_path: Path, number: int) -> None:
    """The second server is killed at the named moment, unless that of the first one is; another one answers."""
    policy = '{allow: ["books.*", "client.*"]}'
    one = agent("one", model="offline", skill_policy=policy)
    write(tmp_path, {"agents.d/one.yaml": one, "plugins/books.py": PAY})
    look: Any = {**WEATHER["function"], "name": "weather", "description": "Look up the weather of a city."}
    messages: list[Any] = [{"role": "user", "content": "pay 80 and look up the weather of Rome"}]
    body = {"model": "one", "messages": messages, "tools": [{"type": "function", "function": look}]}
    with served(tmp_path) as first:
        called = first.post("/v1/chat/completions", body)["choices"][0]["message"]
        first.process.kill()
        first.process.wait(PATIENCE)
    (call,) = called["tool_calls"]
    messages += [called, {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    if life := number % len(LIVES):
        with served(tmp_path) as second, socket.create_connection(("127.0.0.1", second.port)) as connection:
            data = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
            connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + data)
            if LIVES[life] == "until the results are stored":
                wait_until(lambda: stored_results(tmp_path), "the results are stored")
            second.process.kill()
            second.process.wait(PATIENCE)
    with served(tmp_path) as last:
        answers = [last.post("/v1/chat/completions", body)["choices"][0] for _ in range(2)]
    expected = "- books.pay(80): paid 80\n- client.weather(Rome): sunny"
    assert [answer["message"]["content"] for answer in answers] == [expected] * 2
    assert (tmp_path / "paid").read_text() == "80\n"
    assert stored_results(tmp_path) == 1


def stored_results(root: Path) -> int:
    """Return the number of decisions in the store of a project."""
    with closing(sqlite3.connect(root / ".agentsd/state.db", timeout=PATIENCE)) as database:
        (number,) = database.execute("SELECT count(*) FROM agentsd_decisions").fetchone()
        return int(number)
