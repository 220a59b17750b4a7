"""The page of agents: what each may do, its prompt with sample inputs, its problems, and edits that go live."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from playwright.async_api import expect

from framework import Approve, Reject, Runtime
from framework.store.types import CaseResult
from framework.testing import ScriptedModel, Turn, calls
from framework.types.grant import Remember
from tests.support.api_keys import key_entry
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write

POLICY = """
  deny: [{tool: read_file, when: {path: "internal/*"}, reason: not for customers}]
  ask: [{tool: calculator, when: {expression: "*9*"}, reason: nines are rare}]
  allow: [read_file, calculator]"""
SUPPORT = {
    "agents.d/support.yaml": agent(
        "support",
        model="offline",
        instructions="{template: support.j2, vars: {shop: Harbor}}",
        inputs="{customer: {required: true, description: the buyer}, orders: {type: integer, default: 2}}",
        routing="{keywords: [refund], priority: 3}",
        skill_policy=POLICY,
        runtime_policy="{max_steps: 7}",
        sub_agents="[writer]",
    ),
    "agents.d/writer.yaml": agent("writer", model="offline"),
    "prompts/support.j2": "Welcome to {{ shop }}, {{ customer }}.\n{{ 12 // orders }} orders a month.",
    "prompts/support.de.j2": "Willkommen, {{ customer }}.",
}


def test_the_permissions_of_an_agent_name_the_rules_and_conditions(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, SUPPORT) as server, open_page(server, "#/agents/support") as page:
            table = page.locator("table.pol")
            await expect(table.locator("tr", has_text="internal/*")).to_have_text(
                "read_filelowdenywhen path internal/*: not for customerssupport.yaml:7"
            )
            rows = table.locator("tbody tr")
            names = await rows.evaluate_all("rows => rows.map(row => row.cells[0].textContent)")
            offered = ["agent.writer", "calculator", "calculator", "read_file", "read_file"]
            assert names[:5] == offered, "a row for each condition; tools that are not offered come last"
            assert names[5:7] == ["result.read", "result.search"], "a run adds them when it needs them"
            assert names[7:] == sorted(names[7:])
            await expect(rows.nth(5)).to_contain_text("once a run needs it")
            await expect(rows.nth(2)).to_contain_text("otherwise calculator")
            await expect(rows.nth(7)).to_contain_text("not offered")
            place = table.locator("a.place", has_text="support.yaml:8").first
            await expect(place).to_have_attribute("href", "#/config/files/agents.d/support.yaml?line=8")
            await page.get_by_role("button", name="ask 1").click()
            await expect(rows).to_have_count(2)
            await page.get_by_label("Find a tool").fill("read")
            await expect(table).to_contain_text("No tool matches.")
            limits = page.locator(".card", has=page.get_by_role("heading", name="Limits"))
            await expect(limits.locator("dl div", has_text="limits.steps")).to_have_text("limits.steps7")
            await expect(limits.locator("dl div", has_text="limits.tool_calls")).to_have_text(
                "limits.tool_calls20 default"
            )
            await expect(limits).to_contain_text("approve_from.expires")
            chosen = page.locator(".card", has=page.get_by_role("heading", name="When this agent is chosen"))
            await expect(chosen.locator("dl div", has_text="keywords")).to_have_text("keywordsrefund")
            await page.get_by_role("tab", name="Permissions").focus()
            await page.keyboard.press("j")
            await expect(page.get_by_role("heading", name="writer")).to_have_count(2)

    run_in_browser(main())


def test_the_skills_of_an_agent_name_what_they_ask_for_and_those_that_are_denied(tmp_path: Path) -> None:
    own = "{allow: ['*'], deny: [{skill: audit, reason: secret}]}"
    head = "---\nname: {0}\ndescription: About {0}.\nallowed-tools: Bash(*)\n---\nText.\n"
    files = {
        "agents.d/support.yaml": agent("support", model="offline", skills=own),
        "skills/refunds/SKILL.md": head.format("refunds"),
        "skills/audit/SKILL.md": head.format("audit"),
    }

    async def main() -> None:
        async with serve_console(tmp_path, files) as server, open_page(server, "#/agents/support") as page:
            skills = page.locator(".card", has=page.get_by_role("heading", name="Skills"))
            await expect(skills).to_contain_text("It asks for Bash(*), which permits nothing.")
            await expect(skills).to_contain_text("auditdenied skills.deny audit: secret")
            await expect(skills.locator('a.place[href*="skills/refunds/SKILL.md"]')).to_have_count(1)
            await check_axe(page)

    run_in_browser(main())


def test_a_prompt_is_rendered_with_sample_inputs_while_they_are_typed(tmp_path: Path) -> None:
    async def main() -> None:
        address = "#/agents/support?tab=prompt"
        async with (
            serve_console(tmp_path, SUPPORT) as server,
            open_page(server, address, dark=True, width=360, height=800, allowed=["status of 400"]) as page,
        ):
            prompt = page.locator("#prompt-text")
            await expect(prompt).to_contain_text("Welcome to Harbor, <customer>.")
            await page.get_by_label("customer").fill("<img src=x>{{ shop }}")
            await expect(prompt).to_contain_text("Welcome to Harbor, <img src=x>{{ shop }}.\n6 orders a month.")
            await page.get_by_label("orders").fill("0")
            problem = prompt.locator(".problem")
            await expect(problem).to_contain_text("integer division or modulo by zero")
            await expect(problem.locator(".hit")).to_have_text("{{ 12 // orders }} orders a month.")
            await page.get_by_label("orders").fill("many")
            await expect(page.get_by_role("alert").filter(has_text="orders")).to_contain_text("valid integer")
            await expect(page.get_by_label("orders")).to_have_attribute("aria-invalid", "true")
            await page.get_by_label("orders").fill("3")
            await expect(prompt).to_contain_text("4 orders a month.")
            await page.get_by_label("Language").select_option("de")
            await expect(prompt).to_contain_text("Willkommen, <img src=x>{{ shop }}.")
            await page.get_by_role("tab", name="Template").click()
            await expect(prompt.locator(".mono mark.k-plan")).to_have_text("{{ customer }}")
            await expect(prompt.locator(".legend")).to_have_text("customer input of the request")
            await check_axe(page)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    run_in_browser(main())


def test_edits_go_live_and_a_broken_file_is_shown_as_a_problem(tmp_path: Path) -> None:
    async def main() -> None:
        files = {**SUPPORT, "agentsd.yaml": "server: {allow_edit: true}\nreload: {quiet: 20ms, widening_grace: 20ms}\n"}
        async with (
            serve_console(tmp_path, files, watch=True) as server,
            open_page(server, "#/agents/support", allowed=["status of 404"]) as page,
        ):
            limits = page.locator(".card", has=page.get_by_role("heading", name="Limits"))
            await expect(limits).to_contain_text("limits.steps7")
            good = SUPPORT["agents.d/support.yaml"]
            write(tmp_path, {"agents.d/support.yaml": good.replace("max_steps: 7", "max_steps: 5")})
            await expect(limits).to_contain_text("limits.steps5")
            write(tmp_path, {"agents.d/support.yaml": good.replace("max_steps: 7", "max_stesp: 5")})
            problem = page.locator("page-agents .problem").first
            await expect(problem).to_contain_text("unknown key 'max_stesp'")
            await expect(problem.locator(".car")).to_contain_text("^^^^^^^^^ did you mean 'max_steps'?")
            await expect(page.get_by_text("Its last valid version is live")).to_be_visible()
            await expect(problem).to_contain_text("is NOT in effect")
            await expect(page.locator("page-agents .problem")).to_have_count(1)
            await expect(limits).to_contain_text("limits.steps5")
            side = page.get_by_role("complementary", name="Agents")
            await expect(side.locator("a", has_text="support").locator(".tag")).to_have_text("stale")
            await check_axe(page, "page-agents")
            await page.get_by_role("button", name="Write max_steps").click()
            await expect(page.locator("page-agents .problem.k-danger")).to_have_count(0)
            await expect(limits).to_contain_text("limits.steps5")
            assert (tmp_path / "agents.d/support.yaml").read_text("utf-8") == good.replace(": 7", ": 5")
            write(tmp_path, {"prompts/support.j2": "Hello {{ customer }}."})
            await page.get_by_role("tab", name="History").click()
            newest = page.locator("#agent-panel section.card").first
            await expect(newest.locator(".add")).to_have_text("+ Hello {{ customer }}.")
            await expect(newest.locator(".del").first).to_contain_text("Welcome to {{ shop }}")
            await check_axe(page, "page-agents")
            (tmp_path / "agents.d/support.yaml").unlink()
            await expect(page.locator(".doc").get_by_role("alert")).to_contain_text("no agent named 'support'")
            await expect(side.locator("a")).to_have_count(1)
            write(tmp_path, {"agents.d/support.yaml": good.replace("max_steps: 7", "max_stesp: 5")})
            await expect(page.get_by_text("Its file has no valid version yet")).to_be_visible()
            await expect(problem).to_contain_text("unknown key 'max_stesp'")
            await check_axe(page, "page-agents")
            await page.get_by_role("button", name="Write max_steps").click()
            await expect(page.get_by_role("tab", name="History")).to_be_visible()
            await expect(page.locator("page-agents .problem.k-danger")).to_have_count(0)

    run_in_browser(main())


def test_a_key_for_some_agents_sees_only_those(tmp_path: Path) -> None:
    entry = key_entry("reader", "reader-key-0123456789", roles=["read"], agents=["writer"])
    files = {**SUPPORT, "agentsd.yaml": f"server: {{api_keys: {json.dumps([entry])}}}\n"}

    async def main() -> None:
        async with (
            serve_console(tmp_path, files) as server,
            open_page(server, "#/agents", key="reader-key-0123456789", allowed=["status of 40[34]"]) as page,
        ):
            await expect(page.get_by_role("heading", name="writer")).to_have_count(2)
            await expect(page.get_by_role("complementary", name="Agents").get_by_role("link")).to_have_count(1)
            await expect(page.get_by_role("link", name="Chat with it")).to_have_count(0)
            await expect(page.get_by_role("link", name="Show the file")).to_have_count(0)
            await page.goto(f"{server.url}/#/agents/support")
            await expect(page.get_by_role("alert")).to_contain_text("no agent named 'support'")
            await check_axe(page)

    run_in_browser(main())


def test_what_decisions_suggest_is_in_the_language_of_the_console(tmp_path: Path) -> None:
    rules = "{allow: [calculator, read_file], ask: [calculator, read_file]}"
    files = {"agents.d/desk.yaml": agent("desk", skill_policy=rules)}
    turns: Iterator[Turn] = itertools.cycle(
        [calls(("calculator", {"expression": "2 + 3"}), ("read_file", {"path": "a.txt"})), "done"]
    )
    model = ScriptedModel(script=lambda _: next(turns))

    async def main() -> None:
        async with serve_console(tmp_path, files, model) as server:
            for _ in range(5):
                paused = await server.runtime.run("go", agent="desk")
                decided = {one.id: Reject() if one.tool == "read_file" else Approve() for one in paused.pending}
                await server.runtime.resume(paused.run_id, decided)
            async with open_page(server, "#/agents/desk?tab=decisions", language="zh") as page:
                cards = page.locator("#agent-panel .card")
                await expect(cards.nth(0)).to_contain_text("询问 5 次 · 批准 5 次 · 涉及 1 人此修改会放行其中 5 次")
                await expect(cards.nth(1)).to_contain_text(
                    "询问 5 次 · 驳回或改动 5 次 · 涉及 1 人此修改会拒绝所有这些调用。"
                )
                await expect(cards.nth(2)).to_contain_text("写入命令： agentsd policy suggest --apply")

    run_in_browser(main())


def test_remembered_approvals_are_listed_and_revoked(tmp_path: Path) -> None:
    rules = "{allow: [calculator], ask: [calculator]}"
    files = {"agents.d/desk.yaml": agent("desk", skill_policy=rules), "agents.d/other.yaml": agent("other")}
    made = calls(("calculator", {"expression": "2 + <b>3</b>"}))
    model = ScriptedModel(script=lambda request: "done" if request.messages[-1].role == "tool" else made)

    async def remember(runtime: Runtime, **remembered: object) -> None:
        paused = await runtime.run("go", agent="desk", user="ann", conversation="c1")
        decision = Approve(remember=Remember.model_validate({"ttl": "3d", **remembered}))
        await runtime.resume(paused.run_id, {paused.pending[0].id: decision}, user="ann")

    async def main() -> None:
        async with serve_console(tmp_path, files, model) as server:
            await remember(server.runtime, width="call", **{"for": "run"})
            await remember(server.runtime, width="arguments", when={"expression": "2 + *"}, **{"for": "conversation"})
            await server.runtime.run("go", agent="desk", user="ann", conversation="c1")
            async with open_page(server, "#/agents/desk?tab=decisions", width=390, height=844) as page:
                rows = page.locator(".grants .card")
                await expect(rows).to_have_count(2)
                await expect(rows.nth(0)).to_contain_text("calculatorexpression 2 + *")
                await expect(rows.nth(0)).to_contain_text("one conversation · approved by ann")
                await expect(rows.nth(0)).to_contain_text("used 1 times, at most 10/day · ")
                await expect(rows.nth(1)).to_contain_text('Exactly this callexpression "2 + <b>3</b>"')
                await check_axe(page)
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                await rows.nth(0).get_by_role("button", name="Revoke").click()
                await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
                await expect(rows).to_have_count(1)
                write(tmp_path, {"agents.d/desk.yaml": agent("desk", skill_policy=rules, instructions="Changed.")})
                await server.runtime.reload()
                await page.reload()
                await expect(rows.locator(".tag")).to_have_text("void")
                await expect(rows).to_contain_text("agents.d/desk.yaml has changed since")
                await page.goto(page.url.replace("/desk", "/other"))
                await expect(page.locator(".grants")).to_contain_text("No approval is remembered.")

    run_in_browser(main())


def test_results_of_cases_have_a_rate_and_a_history(tmp_path: Path) -> None:
    files = {"agents.d/desk.yaml": agent("desk", model="offline")}
    old = CaseResult(agent="desk", name="it <b>greets</b>", source="test", digest="a" * 16, attempts=3, passed=3)
    new = old.model_copy(
        update={"source": "gate", "digest": "b" * 16, "passed": 1, "failure": "expected output with 'hi'"}
    )
    scored = old.model_copy(
        update={"name": "", "source": "runs", "attempts": 1, "passed": 1, "run_id": "run_1", "cost_usd": 0.02}
    )

    async def main() -> None:
        async with serve_console(tmp_path, files) as server:
            for one in (old, scored, new):
                await server.runtime.store.case_results.add([one])
            async with open_page(server, "#/agents/desk?tab=cases", width=390, height=844, dark=True) as page:
                cards = page.locator("#agent-panel .card")
                await expect(cards.nth(0)).to_contain_text("it <b>greets</b>6.1\u2009% – 79\u2009%1/3")
                await expect(cards.nth(0)).to_contain_text("expected output with 'hi'")
                await expect(cards.nth(0).locator("details p")).to_have_count(2)
                await expect(cards.nth(0).locator("details p").nth(0)).to_contain_text("1/3 · bbbbbbbb · reload.gate")
                await expect(cards.nth(0).locator("details p").nth(1)).to_contain_text("3/3 · aaaaaaaa · agentsd test")
                await cards.nth(1).locator("summary").click()
                await expect(cards.nth(1)).to_contain_text("1/1 · aaaaaaaa · agentsd test --runs · $0.02 · run_1")
                await check_axe(page)
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    run_in_browser(main())
