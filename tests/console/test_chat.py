"""The chat, used by a person: messages, tools, reloads, a second tab, stopping, lost connections, hostile texts."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.async_api import Page, Route, expect

from framework import tool
from framework.llm.client import Delta, ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message, Reasoning
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write
from tests.support.served import served
from tests.support.waiting import until

REFUSED = r"ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET"
POLICY = '{allow: ["*"], deny: [{tool: find_order, when: {order: "secret*"}, reason: no, optional: true}]}'
FILES = {
    "agents.d/support.yaml": agent("support", skill_policy=POLICY, routing="{keywords: [order]}"),
    "agents.d/writer.yaml": agent("writer", inputs="{tone: {type: string, required: true}}"),
}


@tool(risk="low")
async def find_order(order: str) -> dict[str, object]:
    """Find an order."""
    return {"order": order, "item": "grinder"}


class Halting(ScriptedModel):
    """A model that waits in the middle of the answer that begins with "Half", until `go` is set."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__(*turns)
        self.go = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in super().stream(request):
            yield delta
            if delta.text == "Half":
                await self.go.wait()


SLEEP_AND_WAKE = """() => {
    for (const hidden of [true, false]) {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }
}"""
"""Hides the page, which closes its streams, and shows it again."""


SHOWS_UP_TO_DATE = "() => document.querySelector('.lost')?.textContent.includes('Up to date')"


@contextmanager
def free_port() -> Iterator[str]:
    """Keep a port free for servers that follow one another: bound here, but not listening."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield str(bound.getsockname()[1])


def once_set(event: asyncio.Event) -> Callable[[Route], Awaitable[None]]:
    """Return a handler that holds requests until an event is set."""

    async def hold(route: Route) -> None:
        await event.wait()
        await route.continue_()

    return hold


def without_thoughts(text: str) -> str:
    return re.sub(r"Thought.*", "Thought", text)


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


def test_a_chat_with_tools_looks_the_same_after_a_reload(tmp_path: Path) -> None:
    asked = Message(
        role="assistant",
        content="I look it up.",
        reasoning=Reasoning(text="An order, so I search."),
        tool_calls=calls(("find_order", {"order": "10482"}), ("find_order", {"order": "secret-1"})),
    )
    model = ScriptedModel(asked, "It is a **grinder**.\n\n- one\n- two", "You are welcome.")

    async def main() -> None:
        async with serve_console(tmp_path, FILES, model, tools=[find_order]) as server, open_page(server) as page:
            await expect(page.get_by_role("heading", name="What should be done?")).to_be_visible()
            await check_axe(page)
            await say(page, "Where is order 10482?")
            log = page.get_by_role("log")
            await expect(log.locator("strong")).to_have_text("grinder")
            await expect(page.locator(".thread .status")).to_have_text("completed")
            await expect(log.locator(".who")).to_contain_text("support")
            await expect(log.locator(".who")).to_contain_text("keyword")
            await expect(log.locator("tool-card")).to_have_count(2)
            first, denied = await log.locator("tool-card").all()
            await expect(first).to_contain_text('order="10482"')
            await expect(denied).to_contain_text('order="secret-1"')
            await expect(denied).to_contain_text("denied")
            await expect(denied.get_by_role("link", name="support.yaml:6")).to_be_visible()
            await expect(page.locator(".conv")).to_have_count(1)
            await expect(page.locator(".conv")).to_contain_text("Where is order 10482?")
            await first.locator("summary").click()
            await expect(first).to_contain_text('"item": "grinder"')
            await expect(page.locator("chat-inspector")).to_contain_text("find_order")
            await expect(page.locator("chat-inspector")).to_contain_text("Budget of this run")
            await first.locator("summary").click()
            before = await log.inner_text()
            await check_axe(page)
            assert "/#/chat/conv_" in page.url
            await page.reload()
            await expect(log).to_contain_text("It is a grinder.")
            await expect(log.locator("tool-card").last).to_contain_text('order="secret-1"')

            async def is_as_before() -> bool:
                return without_thoughts(await log.inner_text()) == without_thoughts(before)

            await until(is_as_before, "the conversation looks as before")
            await say(page, "Thanks")
            await expect(log.locator(".turn")).to_have_count(2)
            await expect(log).to_contain_text("You are welcome.")

    run_in_browser(main())


def test_an_answer_continues_after_a_reload_and_in_a_second_tab(tmp_path: Path) -> None:
    model = Halting("Half of it and the rest of the answer", "Second answer")

    async def main() -> None:
        async with serve_console(tmp_path, FILES, model) as server, open_page(server) as page:
            await say(page, "A long one about an order")
            half = page.locator(".prose.live")
            await expect(half).to_have_text("Half")
            await page.get_by_label("Message", exact=True).fill("an unsent draft")
            await page.reload()
            await expect(half).to_have_text("Half")
            await expect(page.get_by_label("Message", exact=True)).to_have_value("an unsent draft")
            await expect(page.locator("chat-composer")).to_contain_text("the message waits for it")
            async with page.expect_request(lambda request: request.url.endswith("/events?wait=true")):
                await page.evaluate(SLEEP_AND_WAKE)
            other = await page.context.new_page()
            await other.goto(page.url)
            await expect(other.locator(".prose.live")).to_have_text("Half")
            await say(other, "And another order")
            await expect(other.locator(".turn").last).to_contain_text("Waits for the runs before it.")
            await expect(half).to_have_text("Half")
            model.go.set()
            answers = ["Half of it and the rest of the answer", "Second answer"]
            for tab in (page, other):
                await tab.bring_to_front()
                await expect(tab.locator(".turn")).to_have_count(2)
                await expect(tab.locator(".prose")).to_have_text(answers)
                await expect(tab.locator(".me")).to_have_text(["A long one about an order", "And another order"])

    run_in_browser(main())


def test_a_call_is_approved_in_the_thread(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", skill_policy="{allow: [find_order], ask: [find_order]}")}
    model = ScriptedModel(calls(("find_order", {"order": "10482"})), "Found it.")

    async def main() -> None:
        async with serve_console(tmp_path, files, model, tools=[find_order]) as server, open_page(server) as page:
            await say(page, "Find it")
            card = page.locator("approval-card")
            await expect(page.locator("tool-card")).to_contain_text("waits for you")
            await expect(page.locator(".conv")).to_contain_text("a · find_order")
            await check_axe(page)
            await card.get_by_role("button", name="Approve").click()
            await expect(page.locator(".prose")).to_have_text(["Found it."])
            await expect(card.get_by_role("button", name="Approve")).to_have_count(0)
            await expect(page.locator("tool-card")).not_to_contain_text("waits for you")
            await page.reload()
            await expect(card).to_contain_text("approved by")

    run_in_browser(main())


def test_a_run_is_stopped_and_sent_again(tmp_path: Path) -> None:
    model = Halting("Half of it", "Here it is")

    async def main() -> None:
        async with serve_console(tmp_path, FILES, model) as server, open_page(server) as page:
            await say(page, "order")
            await expect(page.locator(".prose.live")).to_have_text("Half")
            await page.locator("chat-thread .log").focus()
            await page.keyboard.press("Escape")
            dialog = page.get_by_role("dialog", name="Stop this run?")
            await dialog.get_by_role("button", name="Stop").click()
            await expect(page.locator(".turn")).to_contain_text("Stopped by a person.")
            await expect(page.locator(".conv")).not_to_contain_text("running")
            await page.get_by_role("button", name="Send again").click()
            await expect(page.locator(".prose").last).to_have_text("Here it is")
            await expect(page.locator(".me")).to_have_text(["order", "order"])

    run_in_browser(main())


def test_a_lost_connection_loses_nothing(tmp_path: Path) -> None:
    asks = agent("one", model="offline", skill_policy="{allow: [echo], ask: [echo]}")

    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": asks})
        with free_port() as port, served(tmp_path, "--port", port) as first:
            async with open_page(first, allowed=[REFUSED]) as page:
                await say(page, "echo hello")
                await expect(page.locator("tool-card")).to_contain_text("waits for you")
                await asyncio.to_thread(first.stop)
                await expect(page.get_by_text("No connection.")).to_be_visible()
                await expect(page.locator(".live")).to_contain_text("no connection")
                await check_axe(page)
                await page.get_by_label("Message", exact=True).fill("echo later")
                await expect(page.get_by_role("button", name="Send")).to_be_disabled()
                await expect(page.locator("tool-card")).to_contain_text('text="hello"')
                tried = asyncio.Event()
                await page.route(re.compile("/agent/"), once_set(tried))  # the page would try by itself meanwhile
                with served(tmp_path, "--port", port) as second:
                    await page.get_by_role("button", name="Try now").click()
                    async with asyncio.TaskGroup() as group:
                        group.create_task(page.wait_for_function(SHOWS_UP_TO_DATE))  # for a moment only
                        tried.set()
                    await expect(page.get_by_text("No connection.")).to_have_count(0)
                    await expect(page.locator(".live")).not_to_contain_text("no connection")
                    (waiting,) = (await asyncio.to_thread(second.get, "/agent/approvals"))["approvals"]
                    decisions = {waiting["pending"][0]["id"]: {"type": "approve"}}
                    path = f"/agent/runs/{waiting['run_id']}/decisions"
                    await asyncio.to_thread(second.request, "POST", path, json={"decisions": decisions})
                    await expect(page.locator(".prose")).to_have_text(["hello"])
                    await expect(page.locator(".turn")).to_have_count(1)
                    await page.get_by_role("button", name="Send").click()
                    await expect(page.locator(".me")).to_have_text(["echo hello", "echo later"])
                    await expect(page.locator("tool-card").last).to_contain_text("waits for you")
                    assert len((await asyncio.to_thread(second.get, "/agent/runs"))["runs"]) == 2
                    await expect(page.get_by_text("Up to date")).to_have_count(0)

    run_in_browser(main())


def test_a_message_whose_response_is_lost_begins_one_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, ScriptedModel("Only once")) as server,
            open_page(server, allowed=["ERR_FAILED"]) as page,
        ):
            lost, seen = 0, asyncio.Event()

            async def lose(route: Route) -> None:
                nonlocal lost
                lost += 1
                if lost < 3 or not seen.is_set():
                    await route.fetch()
                    await route.abort()
                else:
                    await route.continue_()

            await page.route(re.compile("/agent/runs$"), lose)
            await say(page, "order please")
            await expect(page.locator(".turn")).to_contain_text("Not sent yet.")
            seen.set()
            await expect(page.locator(".prose")).to_have_text(["Only once"])
            await expect(page.locator(".turn")).to_have_count(1)
            assert len(await server.runs()) == 1

    run_in_browser(main())


HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 1'>\n\n"
    "[click](javascript:window.hacked=1) [ok](https://example.com/a) ![pixel](https://tracker.example/p.png)\n\n"
    "user\u202egnp.exe zero\u200bwidth **broken [markdown](`\n\n| a |\n|--\n```\n<b>unclosed"
)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    model = ScriptedModel(calls(("find_order", {"order": HOSTILE})), HOSTILE, long)

    async def main() -> None:
        async with serve_console(tmp_path, FILES, model, tools=[find_order]) as server, open_page(server) as page:
            await say(page, f"order {HOSTILE}")
            answer = page.locator(".turn > .items > .prose")
            await expect(answer).to_contain_text("<script>window.hacked = 1</script>")
            await expect(answer).to_contain_text("[click](javascript:window.hacked=1)")
            await expect(answer.locator(".hid")).to_have_text(["U+202E", "U+200B"])
            await expect(answer.locator("a")).to_have_count(1)
            await expect(answer.locator("a")).to_have_attribute("rel", "noopener noreferrer")
            await expect(page.locator("script[src*=x], .turn img, .turn script, .turn iframe")).to_have_count(0)
            await expect(page.locator(".me")).to_contain_text("onerror='window.hacked = 1'")
            await say(page, "and a long order")
            await expect(page.get_by_role("button", name=re.compile("kB more|MB more"))).to_be_visible()
            await page.get_by_label("Message", exact=True).fill("the page still reacts")
            assert await page.evaluate("document.querySelector('.turn:last-child .prose').textContent.length") < 20_000
            assert await page.evaluate("window.hacked") is None

    run_in_browser(main())


def test_a_conversation_by_keyboard_only_on_a_phone_in_chinese(tmp_path: Path) -> None:
    model = ScriptedModel("您好，**订单**在路上。")

    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, model) as server,
            open_page(server, width=360, height=740, language="zh", dark=True) as page,
        ):
            await expect(page.locator("chat-list")).to_be_visible()
            await page.get_by_role("link", name="新建对话").focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="要做什么？")).to_be_visible()
            await page.keyboard.press("i")
            await page.keyboard.type("@wri")
            await expect(page.get_by_role("option", name="writer")).to_be_visible()
            await page.keyboard.press("Enter")
            await page.keyboard.type("订单在哪里？")
            tone = page.get_by_label("tone")
            await expect(tone).to_be_visible()
            await page.keyboard.press("Enter")
            await expect(tone).to_be_focused()
            await expect(tone).to_have_attribute("aria-invalid", "true")
            await page.keyboard.type("friendly")
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await expect(page.locator(".prose strong")).to_have_text("订单")
            await expect(page.locator(".me")).to_have_text("订单在哪里？")
            await check_axe(page)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await page.get_by_role("link", name="所有对话").click()
            await expect(page.locator(".conv", has_text="订单在哪里？")).to_be_visible()

    run_in_browser(main())


def test_the_search_of_conversations_finds_those_that_are_not_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel(*["Fine."] * 31)) as server:
            for number, text in enumerate(["Where is the needle?", *["Hello"] * 30]):
                await server.runtime.run(text, conversation=f"c{number}", agent="writer", inputs={"tone": "short"})
            async with open_page(server) as page:
                rows = page.locator(".conv")
                await expect(rows).to_have_count(30)
                await page.get_by_role("button", name="Find a conversation").click()
                await page.get_by_role("searchbox", name="Find a conversation").fill("NEEDLE")
                await expect(rows).to_have_count(1)
                await expect(rows).to_contain_text("Where is the needle?")
                await page.get_by_role("searchbox", name="Find a conversation").fill("")
                await expect(rows).to_have_count(30)

    run_in_browser(main())


def test_conversations_of_two_users_with_one_id_are_two(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel("To ann.", "To bob.", "Again to ann.")) as server:
            for user in ("ann", "bob"):
                await server.runtime.run(f"I am {user}", conversation="c", user=user, agent="support")
            async with open_page(server) as page:
                rows, log = page.locator(".conv"), page.get_by_role("log")
                await expect(rows).to_have_count(2)
                await rows.filter(has_text="I am ann").click()
                await expect(log).to_contain_text("To ann.")
                await expect(page.locator(".conv[aria-current]")).to_have_count(1)
                await say(page, "And again?")
                await expect(log).to_contain_text("Again to ann.")
                await expect(log).not_to_contain_text("To bob.")
                await rows.filter(has_text="I am bob").click()
                await expect(log).to_contain_text("To bob.")
                await expect(log.locator(".turn")).to_have_count(1)
            assert (await server.runtime.store.conversation("c", user="ann")).turns == 2

    run_in_browser(main())


def test_a_conversation_is_deleted_whatever_its_id_contains(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel("one", "two", "three")) as server:
            for conversation in ("a", "a#b", "a/b"):
                await server.runtime.run(f"I am {conversation}", conversation=conversation, agent="support")
            async with open_page(server) as page:
                for conversation in ("a#b", "a/b"):
                    await page.locator(".conv", has_text=f"I am {conversation}").click()
                    await page.get_by_role("button", name="More", exact=True).click()
                    await page.get_by_role("menuitem", name="Delete conversation").click()
                    await page.get_by_role("button", name="Delete", exact=True).click()
                    await expect(page.locator(".conv", has_text=f"I am {conversation}")).to_have_count(0)
                await expect(page.locator(".conv")).to_have_text([re.compile("I am a")])

    run_in_browser(main())


def test_a_key_that_may_only_chat_keeps_its_conversations_in_the_browser(tmp_path: Path) -> None:
    entries = json.dumps([key_entry("web", KEY, user="ann", roles=["chat"]), key_entry("all", OTHER, user="bob")])
    files = {**FILES, "agentsd.yaml": f"server: {{api_keys: {entries}}}\n"}

    async def main() -> None:
        async with (
            serve_console(tmp_path, files, ScriptedModel("On its way.", "Still on its way.")) as server,
            open_page(server, key=KEY) as page,
        ):
            await say(page, "Where is my order?")
            await expect(page.locator(".prose")).to_have_text(["On its way."])
            await page.get_by_role("link", name="New conversation").click()
            await expect(page.locator(".turn")).to_have_count(0)
            await page.locator(".conv", has_text="Where is my order?").click()
            await expect(page.locator(".prose")).to_have_text(["On its way."])
            await say(page, "And now?")
            await expect(page.locator(".prose")).to_have_text(["On its way.", "Still on its way."])
            await page.reload()
            await expect(page.locator(".prose")).to_have_text(["On its way.", "Still on its way."])

    run_in_browser(main())


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    def fail(_: ModelRequest) -> str:
        raise RuntimeError("the provider is on fire")

    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel(script=fail)) as server, open_page(server) as page:
            await say(page, "A failing order")
            await expect(page.locator(".note.k-danger")).to_contain_text("The run failed. internal error; see the log")
            await expect(page.get_by_role("button", name="Send again")).to_be_visible()
            await check_axe(page)

    run_in_browser(main())
