"""`guidance`: the runtime's text after the instructions, which a file can replace or turn off."""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, tool
from framework.config.templates.prompts import Prompts
from framework.testing import ScriptedModel, Turn, calls
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.formats import Format, each_format, each_way, says
from tests.support.projects import agent, write
from tests.support.wire import says as openai_says
from tests.support.wire import wire_server

PROMPTS = ["one", "one\n", "  two\r\nlines \t\n\n", "好 {{ 7 * 7 }} {% if %}\n", "\ufeffmarked", "a\u2028b\x0b \n\n\n"]


@tool(risk="low")
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


def sent_systems(body: dict[str, Any]) -> list[str]:
    """Return the texts of the system messages in a request's body, in any of the formats."""
    if "contents" in body:
        instruction = body.get("systemInstruction") or {"parts": []}
        return [part["text"] for part in instruction["parts"]]
    own = [block["text"] for block in body.get("system", [])]
    messages = body.get("messages") or body["input"]
    return own + [message["content"] for message in messages if message.get("role") == "system"]


def wire_systems(root: Path, form: Format, *, stream: bool = False) -> list[list[str]]:
    """Run the project once, with one tool call; return the system texts of each request."""
    answers = [says(form, calls=(("look", {"n": 1}),)), says(form, "done")]

    async def main() -> list[list[str]]:
        async with wire_server(answers) as server:
            models = {"scripted": form.model(server.url)}
            async with Runtime.open(root, models=models, tools=[look], watch=False) as runtime:
                assert not runtime.catalog.current.errors, runtime.catalog.current.errors
                if stream:
                    async with runtime.stream("go") as events:
                        result = await events.result()
                else:
                    result = await runtime.run("go")
            assert result.output == "done", result
            return [sent_systems(body) for body in server.requests]

    return asyncio.run(main())


def project(root: Path, prompt: bytes | None = None, **keys: str) -> Path:
    source = {"instructions": "{template: own/system.j2}"} if prompt is not None else {}
    write(root, {"agents.d/one.yaml": agent("one", **{**source, **keys}), "prompts/own/system.j2": ""})
    (root / "prompts/own/system.j2").write_bytes(prompt or b"")
    return root


# --- none


@each_format
@each_way
@pytest.mark.parametrize("text", [text for text in PROMPTS if "{{" not in text])
def test_without_guidance_the_system_prompt_is_the_bytes_of_its_file(
    form: Format, stream: bool, text: str, tmp_path: Path
) -> None:
    root = project(tmp_path, text.encode(), guidance="none")
    requests = wire_systems(root, form, stream=stream)
    on_disk = (root / "prompts/own/system.j2").read_bytes().removeprefix(BOM_UTF8)
    assert [[system.encode() for system in systems] for systems in requests] == [[on_disk]] * 2


@cases(10)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="{"), min_size=1, max_size=80).filter(str.strip))
def test_without_guidance_any_prompt_reaches_the_model_unchanged(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    root = project(tmp_path_factory.mktemp("p"), text.encode(), guidance="none")
    model = ScriptedModel("done")

    async def main() -> None:
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go")

    asyncio.run(main())
    assert [message.content for message in model.requests[0].messages] == [text.removeprefix("\ufeff"), "go"]


@each_format
def test_text_in_the_agent_file_reaches_the_model_unchanged_too(form: Format, tmp_path: Path) -> None:
    text = "Hello  {{ agent.name }}\n\n  indented \n"
    root = project(tmp_path, guidance="none", instructions='"' + text.replace("\n", "\\n") + '"')
    assert wire_systems(root, form) == [[text]] * 2


@each_format
def test_an_empty_prompt_without_guidance_sends_no_system_message(form: Format, tmp_path: Path) -> None:
    assert wire_systems(project(tmp_path, b" \n", guidance="none"), form) == [[], []]


def requests(root: Path, *turns: Turn, **options: Any) -> list[list[tuple[str, str]]]:
    """Run the project once; return role and content of the messages of each request."""
    model = ScriptedModel(*turns)

    async def main() -> None:
        async with Runtime.open(root, models={"scripted": model}, tools=[look], watch=False) as runtime:
            await runtime.run("go", **options)

    asyncio.run(main())
    return [[(message.role, message.content) for message in request.messages] for request in model.requests]


@pytest.mark.parametrize("guidance", ["default", "none"])
def test_without_guidance_no_notice_of_a_limit_is_added(tmp_path: Path, guidance: str) -> None:
    root = project(tmp_path, b"mine", guidance=guidance, runtime_policy="{max_total_tokens: 12}")
    _, second = requests(root, calls(("look", {})), "done")
    notices = [content for role, content in second[1:] if role == "system"]
    assert ["max_total_tokens" in notice for notice in notices] == [True] * (guidance == "default")


def test_schema_and_plan_prompts_are_no_guidance(tmp_path: Path) -> None:
    schema = "{type: object, properties: {n: {type: integer}}, required: [n]}"

    async def main() -> list[str]:
        async with wire_server([openai_says('{"n": 1}')]) as server:
            alias = f"{{model: openai/m, base_url: '{server.url}', capabilities: {{json_schema: false}}}}"
            write(tmp_path, {"agentsd.yaml": f"models: {{m: {alias}}}"})
            project(tmp_path, b"mine", guidance="none", output_schema=schema, model="m")
            async with Runtime.open(tmp_path, watch=False) as runtime:
                assert (await runtime.run("go")).data == {"n": 1}
            return sent_systems(server.requests[0])

    (system,) = asyncio.run(main())
    assert system.startswith("mine\n\nYour final answer is one JSON object")


# --- default and templates


def test_json_protocol_does_not_ask_for_several_calls_in_one_turn(tmp_path: Path) -> None:
    async def main(protocol: str) -> str:
        async with wire_server([openai_says('{"type":"final","answer":"done"}')]) as server:
            write(tmp_path, {"agentsd.yaml": f"models: {{m: {{model: openai/m, base_url: '{server.url}'}}}}"})
            project(tmp_path, b"mine", protocol=protocol, model="m")
            async with Runtime.open(tmp_path, tools=[look], watch=False) as runtime:
                await runtime.run("go")
            return "".join(sent_systems(server.requests[0]))

    one_call, several = (asyncio.run(main(protocol)) for protocol in ("json", "native"))
    assert "Call one tool at a time" in one_call
    assert ("in one turn" in one_call, "in one turn" in several) == (False, True)
    for protocol, mentioned in (("json", False), ("native", True)):
        project(tmp_path, b"mine", protocol=protocol, model="m", skill_policy="{allow: [calculator]}")
        assert ("in one turn" in agentsd("explain", "one", cwd=tmp_path).stdout) == mentioned


def test_a_template_replaces_the_shipped_guidance(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/own/steps.j2": "{{ tone }}: {{ limits.max_steps }} turns, {{ tools | length }} tools"})
    root = project(
        tmp_path, b"mine", guidance="{template: own/steps.j2, vars: {tone: Calm}}", skill_policy="{allow: [look]}"
    )
    assert requests(root, "done")[0][0] == ("system", "mine\n\nCalm: 10 turns, 1 tools")
    write(tmp_path, {"prompts/own/steps.j2": "About {{ message }}"})
    root = project(tmp_path, b"mine", guidance="{template: own/steps.j2}")
    assert requests(root, "done")[0][0] == ("system", "mine\n\nAbout go")


def test_the_default_is_the_projects_react_template(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/react.j2": "Own words."})
    assert requests(project(tmp_path, b"mine"), "done")[0][0] == ("system", "mine\n\nOwn words.")
    assert requests(project(tmp_path, b"mine", guidance="none"), "done")[0][0] == ("system", "mine")


@pytest.mark.parametrize(
    ("guidance", "problem", "file"),
    [
        ("off", "none", "agents.d/one.yaml"),
        ("{template: own/gone.j2}", "there is no template 'own/gone.j2'", "agents.d/one.yaml"),
        ("{template: own/bad.j2}", "'nothing' is undefined", "prompts/own/bad.j2"),
        ("{vars: {a: 1}}", "the key 'file' is missing", "agents.d/one.yaml"),
    ],
)
def test_bad_guidance_is_a_problem_of_its_file(tmp_path: Path, guidance: str, problem: str, file: str) -> None:
    write(tmp_path, {"prompts/own/bad.j2": "{{ nothing }}"})
    done = agentsd("check", cwd=project(tmp_path, b"mine", guidance=guidance, model="offline"))
    assert done.returncode != 0
    assert problem in done.stderr
    assert file in done.stderr


def test_a_variable_that_the_guidance_does_not_use_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/own/steps.j2": "Steps."})
    keys = {"guidance": "{template: own/steps.j2, vars: {tone: calm}}", "model": "offline"}
    assert "no template uses the variable 'tone'" in agentsd("check", cwd=project(tmp_path, b"x", **keys)).stderr


def test_explain_shows_the_prompt_that_is_sent(tmp_path: Path) -> None:
    root = project(tmp_path, b"mine", guidance="none", model="offline", skill_policy="{allow: [calculator]}")
    shown = agentsd("explain", "one", "--json", cwd=root).stdout
    assert '"system_prompt": "mine"' in shown


# --- time


@pytest.mark.parametrize("guidance", ["default", "none"])
def test_the_time_left_is_named_at_the_end_once_half_of_it_is_used(tmp_path: Path, guidance: str) -> None:
    """The sub-agent begins with at most 50 s of its own 120 s, because its caller must then end."""
    helper = agent("helper", runtime_policy="{timeout: 120s}", guidance=guidance, skill_policy="{allow: [look]}")
    write(tmp_path, {"agents.d/helper.yaml": helper})
    root = project(tmp_path, b"mine", sub_agents="[helper]", runtime_policy="{timeout: 50s}")
    delegated = calls(("agent.helper", {"message": "look"}))
    outer, *inner, last = requests(root, delegated, calls(("look", {})), "looked", "done", agent="one")
    times = [re.fullmatch(r"Time left for this run: ([0-9]+) s of 120 s\.", request[-1][1]) for request in inner]
    assert [time is not None and int(time[1]) <= 50 for time in times] == [guidance == "default"] * 2
    assert inner[0][0] == inner[1][0]
    assert [request[-1][0] for request in (outer, last)] == ["user", "tool"]


def test_the_system_message_is_the_same_in_every_turn(tmp_path: Path) -> None:
    root = project(tmp_path, b"mine", runtime_policy="{timeout: 120s}")
    seen = requests(root, *(calls(("look", {"n": n}), prefix=f"c{n}") for n in range(3)), "done")
    assert len({request[0] for request in seen}) == 1
    assert "120 s" in seen[0][0][1]
    assert Prompts({}).render("react.j2", "en", {"tools": []}) == ""
