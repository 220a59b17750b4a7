"""The inbox of approvals in a browser: decisions of a person, of others, and of nobody."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import Page, expect

from framework import Approve, Decision, Respond, Tool, ToolContext, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.form import checked_form
from framework.tools.logins import LOGINS_FOLDER, Account, LoginStore
from framework.tools.mcp.login import BegunLogin, Login
from framework.tools.tool import Inquiry
from framework.types.http import HttpLimits
from framework.types.tool_servers import OAuth
from tests.support.api_keys import key_entry
from tests.support.console import ConsoleServing, check_axe, open_page, run_in_browser, serve_console
from tests.support.mcp_oauth import Accounts, browse, guarded_server
from tests.support.plans import draft, model_step, tool_step
from tests.support.projects import agent
from tests.support.submitted_runs import PATIENCE

ANN, BEN, READER = "ann-key-0123456789", "ben-key-0123456789", "reader-key-0123456789"
DECIDER = "decider-key-0123456789"
ASKING = '{allow: ["*"], ask: [{tool: refund, reason: money leaves}]}'
BIG = 9007199254740993
ORDER = {"order": BIG, "amount": 89.0, "note": "damaged on arrival"}


class Shop:
    """A tool that needs approval, and its calls."""

    def __init__(self) -> None:
        self.refunds: list[dict[str, Any]] = []

    def tools(self) -> list[Tool]:
        @tool(risk="medium")
        async def refund(order: int, amount: float, note: str = "", notify: bool = True) -> str:
            """Pay an order back.

            Args:
                order: Number of the order.
                amount: Amount in euros.
                note: Reason shown to the customer.
                notify: Whether the customer gets a message.
            """
            self.refunds.append({"order": order, "amount": amount, "note": note})
            return "refunded"

        return [refund]


def asks_first(request: ModelRequest) -> Turn:
    """Call the tool that needs approval, then answer."""
    return calls(("refund", ORDER)) if request.messages[-1].role == "user" else "That is settled."


@asynccontextmanager
async def inbox(
    root: Path, shop: Shop, model: ScriptedModel | None = None, entries: list[dict[str, Any]] | None = None, **keys: str
) -> AsyncIterator[tuple[ConsoleServing, httpx2.AsyncClient]]:
    """Serve a project whose agent asks before it refunds; yield the server and a client of its API."""
    settings = {"agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"} if entries else {}
    files = {"agents.d/support.yaml": agent("support", skill_policy=ASKING, **keys), **settings}
    async with serve_console(root, files, model or ScriptedModel(script=asks_first), tools=shop.tools()) as server:
        headers = {"authorization": f"Bearer {ANN}"} if entries else {}
        async with httpx2.AsyncClient(base_url=f"{server.url}/agent", headers=headers, timeout=PATIENCE) as http:
            yield server, http


async def ask(http: httpx2.AsyncClient, message: str = "Refund order 10482, please", **fields: str) -> str:
    """Start a run that pauses, and return its id."""
    response = await http.post("/chat", json={"message": message, **fields})
    assert response.status_code == 202, response.text
    return str(response.json()["run_id"])


async def status_of(http: httpx2.AsyncClient, run_id: str) -> str:
    """Wait until a run has ended, and return its status."""
    async with http.stream("GET", f"/runs/{run_id}/events", params={"wait": True}) as events:
        await events.aread()
    return str((await http.get(f"/runs/{run_id}")).json()["status"])


OPEN = ".ask footer[data-seen] [data-act=respond]:enabled"
"""In a card whose keys act: it is loaded, and has been in view for a while."""


async def focus_card(page: Page) -> None:
    """Give the card the focus, and wait until it has been in view long enough for its keys."""
    await page.locator(".ask footer[data-seen]").wait_for()
    await page.locator(".ask").focus()


def test_a_call_is_approved_and_another_rejected_by_keys(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop()
        async with inbox(tmp_path, shop) as (server, http):
            runs = [await ask(http, f"Refund {name}", user="ann") for name in ("one", "two")]
            async with open_page(server, f"#/approvals/{runs[0]}") as page:
                await expect(page.locator("a.item")).to_have_count(2)
                await expect(page.locator(".because")).to_contain_text("money leaves")
                place = page.locator(".because a.place")
                await expect(place).to_have_attribute(
                    "href", re.compile(r"#/config/files/agents\.d/support\.yaml\?line=")
                )
                await check_axe(page)
                await focus_card(page)
                await page.keyboard.press("a")
                await expect(page.locator(".decided")).to_contain_text("approved by local")
                assert (await status_of(http, runs[0]), shop.refunds) == ("completed", [ORDER])

                await expect(page.locator("a.item")).to_have_count(1)
                await page.keyboard.press("j")
                await expect(page.locator("h2.h18")).to_have_text("Refund two")
                await page.keyboard.press("Enter")
                await focus_card(page)
                await page.keyboard.press("r")
                await page.keyboard.type("ask the carrier first, a e r")
                await page.keyboard.press("Tab")
                await page.keyboard.press("Enter")
                await expect(page.locator(".decided")).to_contain_text("rejected by local")
                assert (await status_of(http, runs[1]), len(shop.refunds)) == ("completed", 1)

                await page.get_by_role("tab", name="Decided").click()
                await expect(page.locator("a.item p").first).to_contain_text("ask the carrier first")
                await expect(page.locator("a.item")).to_have_count(2)

    run_in_browser(main())


def test_a_call_is_edited_and_nothing_else_of_it_changes(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop()
        async with inbox(tmp_path, shop) as (server, http):
            run_id = await ask(http)
            async with open_page(server, "#/approvals") as page:
                await focus_card(page)
                await page.keyboard.press("e")
                amount = page.get_by_label("amount")
                await amount.fill("12,5")
                await expect(page.locator(".problem", has_text="not a number")).to_be_visible()
                await expect(page.locator("[data-act=approve]")).to_be_disabled()
                await amount.fill("74.50")
                await expect(page.locator(".diff .add")).to_have_text('+   "amount": 74.5,')
                await check_axe(page)
                await page.get_by_role("button", name="Approve with 1 change").click()
                await expect(page.locator(".decided")).to_contain_text("with 1 change")
                assert await status_of(http, run_id) == "completed"
                assert shop.refunds == [{**ORDER, "amount": 74.5}]
                await page.get_by_role("tab", name="Decided").click()
                await page.locator("a.item").click()
                await expect(page.locator(".diff .del")).to_have_text('−   "amount": 89,')
                await check_axe(page)

    run_in_browser(main())


def test_printed_keys_act_wherever_no_field_has_the_focus(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop()
        async with inbox(tmp_path, shop) as (server, http):
            runs = [await ask(http, f"Refund {name}", conversation_id=name) for name in ("one", "two", "three")]
            async with open_page(server, f"#/approvals/{runs[0]}") as page:
                await page.locator(OPEN).wait_for()
                await page.keyboard.press("e")
                await page.get_by_label("amount").fill("74.50")
                await page.keyboard.press("Control+Enter")
                await expect(page.locator(".decided")).to_contain_text("with 1 change")
                await page.locator(f"a.item[href*='{runs[1]}']").focus()
                await page.keyboard.press("Enter")
                await expect(page.locator(".ask")).to_be_focused()
                await page.locator(OPEN).wait_for()
                await page.keyboard.press("s")
                await page.keyboard.type("later")
                await page.keyboard.press("Control+Enter")
                await expect(page.locator(".decided")).to_contain_text("“later”")
                assert {await status_of(http, run) for run in runs[:2]} == {"completed"}

            async with open_page(server, "#/chat/three") as page:
                await page.locator(OPEN).wait_for()
                letters = page.locator(".ask kbd")
                await expect(letters.first).to_be_visible()
                await page.locator("#msg").fill("a")
                await expect(letters.first).to_be_hidden()
                await page.keyboard.press("Escape")
                await expect(letters.first).to_be_visible()
                await page.keyboard.press("a")
                await expect(page.locator(".decided")).to_contain_text("approved by local")
            assert (await status_of(http, runs[2]), [one["amount"] for one in shop.refunds]) == (
                "completed",
                [74.5, 89],
            )

    run_in_browser(main())


def test_a_plan_is_approved_without_a_step_and_with_other_arguments(tmp_path: Path) -> None:
    plan = draft(
        tool_step("s1", "calculator", expression="1+1"),
        tool_step("s2", "calculator", "s1", expression="2+2"),
        tool_step("s3", "calculator", "s2", expression="3+3"),
        model_step("s4"),
        goal="Add it up",
    )

    async def main() -> None:
        answers = ScriptedModel(made, "It is 42.")
        async with inbox(tmp_path, Shop(), answers, executor="plan", plan="{approval: always}") as (server, http):
            run_id = await ask(http, "Add it up")
            async with open_page(server, "#/approvals", dark=True) as page:
                await expect(page.get_by_role("button", name="Approve 4 steps")).to_be_visible()
                await check_axe(page)
                await page.get_by_label("Keep step s2").uncheck()
                await expect(page.get_by_label("Keep step s3")).not_to_be_checked()
                await expect(page.get_by_role("button", name="Approve 2 of 4 steps")).to_be_visible()
                await page.get_by_label("Keep step s3").check()
                await expect(page.get_by_label("Keep step s2")).to_be_checked()
                await page.get_by_label("Keep step s3").uncheck()
                await page.get_by_label("Keep step s4").uncheck()
                await page.locator("[data-act=edit]").click()
                await page.get_by_label("expression").first.fill("40+2")
                await page.get_by_role("button", name="Approve with 3 changes").click()
                await expect(page.locator(".decided")).to_contain_text("approved by local")
            assert await status_of(http, run_id) == "completed"
            steps = (await http.get(f"/runs/{run_id}")).json()["plan"]["steps"]
            assert [(one["id"], one["status"], one["result"]) for one in steps] == [
                ("s1", "done", "42"),
                ("s2", "done", "4"),
            ]

    made = plan.model_dump_json(exclude_defaults=True)
    run_in_browser(main())


def test_all_calls_of_one_turn_are_decided_at_once_in_the_chat(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop()
        three = calls(*(("refund", {**ORDER, "order": number}) for number in (1, 2, 3)))
        model = ScriptedModel(script=lambda request: three if request.messages[-1].role == "user" else "Settled.")
        async with inbox(tmp_path, shop, model) as (server, http):
            run_id = await ask(http, conversation_id="c1")
            async with open_page(server, "#/chat/c1", allowed=["status of 409"]) as page:
                buttons = page.locator("approval-card [data-act=approve]:not([disabled])")
                await expect(buttons).to_have_count(3)
                await buttons.evaluate_all("(all) => all.forEach((button) => button.click())")
                await expect(page.locator(".decided", has_text="approved by local")).to_have_count(3)
            assert await status_of(http, run_id) == "completed"
            assert sorted(refund["order"] for refund in shop.refunds) == [1, 2, 3]

    run_in_browser(main())


def test_an_approval_that_expires_turns_into_a_line(tmp_path: Path) -> None:
    async def main() -> None:
        policy = "{confirm: {from: never, expires: 15s}}"
        async with (
            inbox(tmp_path, Shop(), runtime_policy=policy) as (server, http),
            open_page(server, "#/approvals") as page,
        ):
            await expect(page.locator(".empty")).to_contain_text("Nothing waits for you")
            run_id = await ask(http)
            await page.reload()
            await expect(page.locator(".left b").first).to_have_text(re.compile(r"^0:[01]\d left$"))
            await expect(page.locator(".ask [role=alert]")).to_contain_text("The approval of refund expires in 0:")
            await expect(page.locator(".decided")).to_have_text(
                re.compile("^refund ?expired .* ago, so it was rejected")
            )
            await page.get_by_role("tab", name="Decided").click()
            await expect(page.locator("a.item")).to_have_count(1)
            await page.goto(f"{server.url}/#/runs/{run_id}")
            await expect(page.locator(".insp")).to_contain_text(re.compile(r"refund expired .*, so it was rejected"))
            await page.get_by_role("tab", name="Events").click()
            await expect(page.locator(".ev", has_text="The approval expired: no decision was made")).to_be_visible()

    run_in_browser(main())


def test_a_decision_made_elsewhere_keeps_unsent_edits_and_the_servers_clock_counts(tmp_path: Path) -> None:
    async def main() -> None:
        entries = [key_entry(name, key, roles=["chat", "decide", "read"]) for name, key in (("ann", ANN), ("ben", BEN))]
        policy = "{confirm: {from: never, expires: 30m}}"
        async with inbox(tmp_path, Shop(), entries=entries, runtime_policy=policy) as (server, http):
            run_id = await ask(http, user="cleo")
            async with open_page(server, "#/approvals", key=ANN) as page:
                await page.clock.install(time=datetime.now(UTC) + timedelta(hours=5))
                await page.reload()
                await expect(page.locator(".ask .left")).to_have_text(re.compile(r"^(30:00|29:\d\d) left$"))
                await page.locator("[data-act=edit]").click()
                await page.get_by_label("amount").fill("74.50")
                (pending,) = (await http.get(f"/runs/{run_id}")).json()["pending"]
                headers = {"authorization": f"Bearer {BEN}"}
                edited = {"type": "edit", "arguments": {**ORDER, "amount": 60}}
                body = {"decisions": {pending["id"]: edited}}
                assert (await http.post(f"/runs/{run_id}/decisions", json=body, headers=headers)).status_code == 202
                await expect(page.locator(".decided")).to_have_text(
                    re.compile("approved by ben, .* ago, with 1 change")
                )
                await expect(page.locator(".unsent")).to_contain_text("Your changes were not sent")
                await expect(page.locator(".unsent pre")).to_contain_text(f'"order": {BIG}')
                await expect(page.locator(".unsent pre")).to_contain_text('"amount": 74.5')
                await expect(page.locator(".rail .n")).to_be_hidden()
                await check_axe(page)

    run_in_browser(main())


def test_the_form_of_a_server_is_filled_in_and_its_address_is_shown_with_its_host(tmp_path: Path) -> None:
    seat = {"type": "string", "title": "Seat", "oneOf": [{"const": "w", "title": "Window"}, {"const": "a"}]}
    fields = {"seat": seat, "bags": {"type": "integer", "maximum": 3, "default": 1}}
    form = checked_form("", {"type": "object", "properties": fields, "required": ["seat"]})
    answers: list[Decision] = []

    @tool(risk="low")
    async def book(context: ToolContext) -> str:
        """Book a flight."""
        seats = Inquiry("elicitation", "1", "Which seat?", "booked at once", form=form)
        pay = Inquiry("elicitation", "2", "Pay first", url="https://pay.xn--exmple-cua.com/7")
        answers[:] = [*await context.inquire([seats], {}), *await context.inquire([pay], {})]
        return "booked"

    async def main() -> None:
        model = ScriptedModel(
            script=lambda request: calls(("book", {})) if request.messages[-1].role == "user" else "Done."
        )
        server = serve_console(tmp_path, {"agents.d/support.yaml": agent("support")}, model, tools=[book])
        async with server as served, httpx2.AsyncClient(base_url=f"{served.url}/agent", timeout=PATIENCE) as http:
            run_id = await ask(http)
            async with open_page(served, "#/approvals") as page:
                await expect(page.locator(".ask .lead")).to_have_text("Which seat?")
                await expect(page.locator(".ask .because")).to_contain_text("booked at once")
                await expect(page.get_by_label("bags")).to_have_value("1")
                await page.get_by_label("bags").fill("7")
                await expect(page.get_by_role("button", name="Send")).to_be_disabled()
                await page.get_by_label("bags").fill("2")
                await page.get_by_label("seat").select_option("w")
                await check_axe(page)
                await page.get_by_role("button", name="Send").click()
                await expect(page.locator(".ask .because b")).to_have_text("pay.xn--exmple-cua.com")
                await check_axe(page)
                await page.get_by_role("button", name="I have been there").click()
                assert await status_of(http, run_id) == "completed"
        assert answers == [Respond(values={"seat": "w", "bags": 2}), Approve()]

    run_in_browser(main())


def test_a_person_logs_in_from_the_card_and_the_run_continues(tmp_path: Path) -> None:
    async def main() -> None:
        accounts = Accounts()
        async with guarded_server(accounts) as url:
            servers = {"version": 1, "mcp_servers": {"air": {"url": url, "auth": {"oauth": {}}}}}
            files = {"agents.d/support.yaml": agent("support"), "plugins/air.yaml": json.dumps(servers)}
            model = ScriptedModel(calls(("mcp.air.whoami", {})), "Done.")
            store = LoginStore(tmp_path / LOGINS_FOLDER, HttpLimits)
            begun = BegunLogin(Login(store, Account("air", url), OAuth()), "http://127.0.0.1:8976/callback")
            begun.answer(await browse(await begun.address()))
            await begun.finish(PATIENCE)
            server = serve_console(tmp_path, files, model)
            async with server as served, httpx2.AsyncClient(base_url=f"{served.url}/agent", timeout=PATIENCE) as http:
                accounts.revoke()
                run_id = await ask(http)
                accounts.subject = "bob"
                async with open_page(served, "#/approvals") as page:
                    await expect(page.locator(".ask header")).to_contain_text("mcp.air.whoami needs a login")
                    await check_axe(page)
                    await page.get_by_role("button", name="Log in").click()
                    address = await page.get_by_role("link", name="Log in at 127.0.0.1").get_attribute("href")
                    done = await page.context.request.get(address or "")  # with the cookies of this browser
                    assert "Logged in at air." in await done.text()
                    assert await status_of(http, run_id) == "completed"
                    assert "bob" in (await http.get(f"/runs/{run_id}")).text

    run_in_browser(main())


def test_what_waits_elsewhere_or_for_a_client_does_not_look_like_an_approval(tmp_path: Path) -> None:
    async def far(context: ToolContext) -> str:
        """Pay at another server, where a person decides."""
        await context.inquire([Inquiry("login", "1", "It waits", waits_for="waits for a decision")], {})
        return "paid"

    async def main() -> None:
        remote = tool(risk="low")(far).named("agent.far", "python")
        weather = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}
        model = ScriptedModel(calls(("agent.far", {})), calls(("client.weather", {})))
        files = {"agents.d/support.yaml": agent("support", skill_policy='{allow: ["*", "client.*"]}')}
        async with serve_console(tmp_path, files, model, tools=[remote]) as served:
            assert (await served.runtime.run("go")).status == "paused"
            assert (await served.runtime.run("go", client_tools={"tools": [weather]})).status == "paused"
            async with open_page(served, "#/approvals") as page:
                names = page.locator("b.cut")
                await expect(names.filter(has_text="agent.far waits for a decision elsewhere")).to_have_count(1)
                await expect(names.filter(has_text="client.weather waits for its client")).to_have_count(1)
                await expect(page.get_by_role("button", name="Log in")).to_have_count(0)

    run_in_browser(main())


def test_a_question_is_answered_on_a_phone_and_only_with_the_role(tmp_path: Path) -> None:
    async def main() -> None:
        question = calls(("ask_user", {"question": "Which account?", "choices": ["Malmö", "Lund"]}))
        model = ScriptedModel(script=lambda request: question if request.messages[-1].role == "user" else "Closed.")
        entries = [
            key_entry("ann", ANN, roles=["chat", "decide", "read"]),
            key_entry("reader", READER, roles=["chat", "read"]),
            key_entry("decider", DECIDER, roles=["decide"]),
        ]
        async with inbox(tmp_path, Shop(), model, entries) as (server, http):
            run_id = await ask(http, "Close the account")
            async with open_page(server, "#/approvals", key=READER) as page:
                await expect(page.locator(".empty")).to_contain_text("The key reader has the roles: chat, read.")
                await check_axe(page)
            async with open_page(server, "#/approvals", key=DECIDER, width=360, height=780, language="zh") as page:
                await expect(page.locator(".doc")).to_be_hidden()
                await page.locator("a.item").click()
                await expect(page.locator(".side")).to_be_hidden()
                await check_axe(page)
                await page.get_by_role("button", name="Malmö").click()
                await expect(page.locator(".decided")).to_contain_text("Malmö")
                await page.locator("a.only").click()
                await expect(page.locator(".side")).to_be_visible()
            assert await status_of(http, run_id) == "completed"

    run_in_browser(main())
