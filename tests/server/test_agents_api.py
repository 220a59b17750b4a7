"""`/agent/agents/{name}`: what an agent may do, its inputs, its prompt, its history, and the problems of its files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from framework import Runtime
from framework.server import Identity, router
from framework.store.types import CaseResult
from tests.support.api_keys import key_entry
from tests.support.projects import agent, write
from tests.support.served import Served, served

SECRETS = {name: f"{name}-" + "k" * 24 for name in ("acme", "other")}


def test_an_agent_is_shown_with_its_policy_inputs_prompt_and_problems(tmp_path: Path) -> None:
    keys = {
        "instructions": "{template: one.j2}",
        "inputs": "{who: {type: string, required: true, description: the reader}}",
        "skill_policy": "{allow: [echo, calculator], ask: [echo]}",
    }
    prompts = {"prompts/one.j2": "You help {{ who }}. api_key: hunter2hunter2", "prompts/one.de.j2": "Hilf {{ who }}."}
    write(
        tmp_path,
        {
            "agents.d/one.yaml": agent("one", model="offline", **keys),
            "agents.d/two.yaml": agent("two", model="offline"),
            **prompts,
        },
    )
    with served(tmp_path) as server:
        found = server.get("/agent/agents/one")
        assert (found["name"], found["generation"], len(found["digest"])) == ("one", 1, 16)
        tools = {tool["tool"]: tool["verdict"] for tool in found["policy"]["tools"]}
        assert (tools["echo"], tools["calculator"], tools["write_file"]) == ("ask", "allow", "deny")
        assert found["policy"]["limits"]["max_steps"] == 10
        assert found["inputs"]["who"]["required"] is True
        prompt = found["prompt"]
        assert prompt["template"] == "one.j2"
        assert prompt["source"] == "You help {{ who }}. api_key: ***", "secrets in files are masked"
        assert "You help <who>." in prompt["rendered"]
        assert server.get("/agent/agents/one?locale=de")["prompt"]["rendered"].startswith("Hilf <who>.")
        assert found["problems"] == []
        with server.event_stream() as events:
            write(tmp_path, {"agents.d/two.yaml": "name: ["})
            next(events)
        problems = server.get("/agent/agents/two")["problems"]
        assert {problem["path"] for problem in problems} == {"agents.d/two.yaml"}
        assert server.get("/agent/agents/one")["problems"] == []
        missing = server.request("GET", "/agent/agents/onee")
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "agent")
        assert "did you mean one" in missing.json()["error"]["message"]


GREETING = {
    "agents.d/one.yaml": agent(
        "one",
        model="offline",
        instructions="{template: one.j2, vars: {shop: Harbor}}",
        inputs="{who: {type: string, required: true}, n: {type: integer, default: 2}, tags: {type: array}}",
    ),
    "prompts/one.j2": "{{ shop }} greets {{ who }}.{% for i in range(n) %} {{ agent.name }}{% endfor %}",
    "prompts/one.de.j2": "Gr\u00fc\u00dfe, {{ who }}.",
}


def test_a_prompt_is_rendered_with_sample_inputs(tmp_path: Path) -> None:
    write(tmp_path, {**GREETING, "agents.d/two.yaml": agent("two", model="offline")})
    with served(tmp_path) as server:
        plain = server.post("/agent/agents/one/prompt", {})
        assert plain["rendered"].startswith("Harbor greets <who>. one one\n")
        assert (plain["path"], plain["locales"], plain["tokens"] > 0) == ("prompts/one.j2", ["de"], True)
        origins = {variable["name"]: variable["origin"] for variable in plain["variables"]}
        assert origins == {"agent": "runtime", "n": "input", "shop": "vars", "who": "input"}
        sample = {"inputs": {"who": "{{ 7 * 7 }}", "n": 1}, "locale": None}
        assert server.post("/agent/agents/one/prompt", sample)["rendered"].startswith(
            "Harbor greets {{ 7 * 7 }}. one\n"
        ), "values are never rendered as templates"
        german = server.post("/agent/agents/one/prompt", {"inputs": {"who": "Ben"}, "locale": "de-AT"})
        assert german["rendered"].startswith("Gr\u00fc\u00dfe, Ben.")
        assert (german["path"], german["source"]) == ("prompts/one.de.j2", "Gr\u00fc\u00dfe, {{ who }}.")
        assert server.post("/agent/agents/two/prompt", {})["path"] == "agents.d/two.yaml"


def test_a_prompt_that_fails_names_the_line_of_the_template(tmp_path: Path) -> None:
    broken = {"prompts/one.j2": "Hello\n{{ 12 // n }} api_key: hunter2hunter2"}
    write(tmp_path, {**GREETING, **broken})
    with served(tmp_path) as server:
        assert "Hello" in server.post("/agent/agents/one/prompt", {"inputs": {"n": 3}})["rendered"]
        failed = server.post("/agent/agents/one/prompt", {"inputs": {"n": 0}})
        assert "rendered" not in failed
        details = failed["details"]
        assert (details["path"], details["line"]) == ("prompts/one.j2", 2)
        assert details["message"] == "integer division or modulo by zero"
        assert details["excerpt"] == "{{ 12 // n }} api_key: ***"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": {"whoo": "x"}}, "unknown input 'whoo' of agent 'one'; did you mean who?"),
        ({"inputs": {"n": "3"}}, "input 'n' of agent 'one': Input should be a valid integer"),
        ({"inputs": {"who": None}}, "input 'who' of agent 'one': Input should be a valid string"),
        ({"inputs": {"tags": {}}}, "input 'tags' of agent 'one': Input should be a valid list"),
        ({"inputs": []}, "inputs: Input should be a valid dictionary"),
        ({"input": {}}, "unknown field"),
        ({"locale": "x" * 36}, "locale: String should have at most 35 characters"),
    ],
)
def test_invalid_sample_inputs_are_refused_with_their_names(shared_server: Served, body: object, message: str) -> None:
    refused = shared_server.request("POST", "/agent/agents/one/prompt", json=body)
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    write(root, GREETING)
    with served(root) as server:
        yield server


def test_the_policy_lists_conditions_with_their_rules_and_places(tmp_path: Path) -> None:
    policy = """
  deny: [{tool: read_file, when: {path: "internal/*"}, reason: not for customers}]
  ask: [{tool: calculator, when: {expression: "*9*"}}]
  allow: [read_file]
  files: {deny: ["*.pem"]}"""
    write(
        tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=policy, routing="{keywords: [tea]}")}
    )
    with served(tmp_path) as server:
        found = server.get("/agent/agents/one")
        tools = {tool["tool"]: tool for tool in found["policy"]["tools"]}
        shown = [
            (one["verdict"], one["condition"], one["rule"], one["place"], one["reason"])
            for one in tools["read_file"]["conditions"]
        ]
        file = "agents.d/one.yaml"
        assert shown == [
            (
                "deny",
                "path internal/*",
                "deny read_file",
                f"{file}:{found_line(tmp_path, 'deny: [{')}",
                "not for customers",
            ),
            ("deny", "a file matches *.pem", "files.deny", f"{file}:{found_line(tmp_path, 'files:')}", ""),
        ]
        assert (tools["calculator"]["offered"], tools["calculator"]["verdict"]) == (True, "deny")
        (asked,) = tools["calculator"]["conditions"]
        assert (asked["verdict"], asked["condition"]) == ("ask", "expression *9*"), "only an ask rule offers it"
        assert (found["policy"]["not_contacted"], found["policy"]["unavailable"]) == ([], [])
        assert found["places"]["skill_policy"] == f"{file}:{found_line(tmp_path, 'skill_policy:')}"
        assert "runtime_policy.max_steps" not in found["places"], "it has its default"
        assert (found["routing"]["keywords"], found["routing"]["is_default"]) == (["tea"], True)


def found_line(root: Path, text: str) -> int:
    lines = (root / "agents.d/one.yaml").read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_history_of_an_agent_has_its_changes_and_the_texts_of_its_files(tmp_path: Path) -> None:
    first = agent("one", model="offline", instructions="{template: one.j2}", runtime_policy="{max_steps: 3}")
    write(
        tmp_path,
        {"agents.d/one.yaml": first, "prompts/one.j2": "One.", "agents.d/two.yaml": agent("two", model="offline")},
    )
    edits: list[dict[str, str]] = [
        {"agents.d/one.yaml": first.replace("max_steps: 3", "max_steps: 5")},
        {"prompts/one.j2": "Two. password: hunter2hunter2"},
        {"agents.d/two.yaml": agent("two", model="offline", description="other")},
        {"agents.d/one.yaml": "name: ["},
    ]
    with served(tmp_path) as server, server.event_stream() as events:
        for edit in edits:
            write(tmp_path, edit)
            next(events)
        history = server.get("/agent/agents/one/history")
        versions = history["versions"]
        assert [one["generation"] for one in versions] == [5, 3, 2, 1], "the fourth changed another agent only"
        assert [one["stale"] for one in versions] == [True, False, False, False]
        assert [one["live"] for one in versions] == [True, False, False, False]
        _, prompt, limits, added = versions
        (file,) = prompt["files"]
        assert file == {
            "path": "prompts/one.j2",
            "before": "One.",
            "after": "Two. password: ***",
            "too_large": False,
        }
        assert prompt["changes"] == []
        (change,) = limits["changes"]
        assert (change["key"], change["before"], change["after"]) == ("runtime_policy.max_steps", 3, 5)
        assert change["file_key"] == "limits.steps"
        assert change["effect"] == "widens"
        assert limits["files"][0]["before"] == first
        assert [file["path"] for file in added["files"]] == ["agents.d/one.yaml", "prompts/one.j2"]
        assert "before" not in added["files"][0]
        others = server.get("/agent/agents/two/history")["versions"]
        assert [(one["generation"], one["live"]) for one in others] == [(4, True), (1, False)]


def test_a_key_for_other_agents_sees_neither_prompt_nor_history(tmp_path: Path) -> None:
    entry = key_entry("reader", "reader-key-0123456789", roles=["read"], agents=["two"])
    settings = f"server: {{api_keys: {json.dumps([entry])}}}\n"
    two = agent("two", model="offline")
    write(tmp_path, {**GREETING, "agents.d/two.yaml": two, "agentsd.yaml": settings})
    with served(tmp_path, key="reader-key-0123456789") as server:
        assert server.post("/agent/agents/two/prompt", {})["rendered"]
        assert server.get("/agent/agents/two/history")["versions"]
        for name in ("one", "nosuch"):
            refused = [
                server.request("POST", f"/agent/agents/{name}/prompt", json={}),
                server.request("GET", f"/agent/agents/{name}/history"),
            ]
            assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(404, "agent_not_found")] * 2


def test_decisions_suggest_a_rule_and_those_of_other_tenants_are_respected_but_not_shown(tmp_path: Path) -> None:
    rules = "{allow: [write_file], ask: [write_file]}"
    one = agent("one", model="offline", skill_policy=rules, runtime_policy="{confirm: {from: never}, risk_level: high}")
    keys = [key_entry(name, SECRETS[name], roles=["chat", "decide", "read"], tenant=name) for name in SECRETS]
    settings = f"server: {{api_keys: {json.dumps(keys)}}}\n"
    write(tmp_path, {"agents.d/one.yaml": one, "agentsd.yaml": settings})
    with served(tmp_path) as server:

        def ask(tenant: str, message: str, decision: str) -> None:
            headers = {"Authorization": f"Bearer {SECRETS[tenant]}"}
            asked = server.request("POST", "/agent/chat", json={"message": message}, headers=headers).json()
            made = {asked["pending"][0]["id"]: {"type": decision}}
            path = f"/agent/runs/{asked['run_id']}/decisions"
            done = server.request("POST", path, json={"decisions": made}, headers=headers)
            assert done.status_code in (200, 202), done.text

        def suggested(tenant: str) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {SECRETS[tenant]}"}
            found = server.request("GET", "/agent/agents/one/suggestions?days=7", headers=headers)
            assert found.status_code == 200, found.text
            data: dict[str, Any] = found.json()
            return data

        for number in range(5):
            ask("acme", f"write x to notes/{number}.txt", "approve")
        [narrow] = suggested("acme")["suggestions"]
        assert (narrow["kind"], narrow["when"], narrow["people"]) == ("narrow", {"path": "notes/…"}, 1)
        assert "+skill_policy: {allow: [write_file], ask: [{tool: write_file" in suggested("acme")["diff"]
        ask("other", "write x to notes/7.txt", "reject")
        [kept] = suggested("acme")["suggestions"]
        assert (kept["kind"], kept["rejected"], suggested("acme")["diff"]) == ("kept", 0, "")
        assert server.request("GET", "/agent/agents/none/suggestions").status_code in (401, 404)


def _same(identity: Identity, _: object) -> Identity:
    return identity


def test_results_of_stored_runs_are_shown_to_keys_with_full_access_only(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    case = CaseResult(agent="one", name="greets", source="test", digest="d", attempts=2, passed=1, failure="no hello")
    run = case.model_copy(update={"name": "", "source": "runs", "run_id": "run_1", "failure": "of another tenant"})
    reader = Identity("reader", roles=frozenset({"read"}))
    clients = {
        "full": Identity("full", single_user=True),
        "reader": reader,
        "acme": Identity("acme", tenant="acme", roles=reader.roles),
        "other agents": Identity("two", agents=("two",)),
        "chatter": Identity("chatter", roles=frozenset({"chat"})),
    }

    async def main() -> dict[str, object]:
        found: dict[str, object] = {}
        async with Runtime.open(tmp_path, watch=False) as runtime:
            await runtime.store.case_results.add([case, run])
            app = FastAPI()
            for number, identity in enumerate(clients.values()):
                app.include_router(router(runtime, identify=partial(_same, identity)), prefix=f"/{number}")
            transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
                for number, name in enumerate(clients):
                    reply = await http.get(f"/{number}/agent/agents/one/cases")
                    data = reply.json()
                    found[name] = sorted(one["name"] for one in data["cases"]) if "cases" in data else reply.status_code
        return found

    shown = asyncio.run(main())
    assert shown == {
        "full": ["", "greets"],
        "reader": ["greets"],
        "acme": ["greets"],
        "other agents": 404,
        "chatter": 403,
    }
