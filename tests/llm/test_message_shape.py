"""Conversations get the form that a chat template accepts, and lose no text on the way."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.message_shape import (
    NOTICE_TAG,
    ConversationShape,
    escape_notices,
    mark_notices,
    marked_notice,
    short_call_id,
)
from framework.types.messages import Message, ToolCall, late_guidance
from tests.support.cases import cases
from tests.support.paths import ROOT

UNKNOWN = Capabilities()
OPEN = Capabilities(late_system=True, repeated_roles=True, parallel_calls=True, call_ids="any")


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Draw a conversation as the engine builds it; each text is unique."""
    numbers = iter(range(1000))
    kinds = st.lists(st.sampled_from(["user", "notice", "answer", "calls"]), min_size=1, max_size=8)
    messages = [Message(role="system", content="text 0.") for _ in range(draw(st.integers(0, 2)))]
    messages.append(Message(role="user", content="text u."))
    for kind in draw(kinds):
        number = next(numbers)
        match kind:
            case "user":
                messages.append(Message(role="user", content=f"text {number}."))
            case "notice":
                messages.append(late_guidance(f"text {number}."))
            case "answer":
                messages.append(Message(role="assistant", content=f"text {number}."))
            case "calls":
                ids = [f"call_{number}_{n}" for n in range(draw(st.integers(1, 3)))]
                calls = tuple(ToolCall(id=one, tool="look", arguments={"n": one}) for one in ids)
                messages.append(Message(role="assistant", content=f"text {number}.", tool_calls=calls))
                messages += [Message(role="tool", content=f"result {one}.", tool_call_id=one) for one in ids]
    return messages


def shaped(messages: list[Message], accepted: Capabilities = UNKNOWN) -> list[Message]:
    return list(ConversationShape().shaped(messages, accepted))


@given(conversations())
@cases(200)
def test_the_strictest_form_alternates_and_loses_nothing(messages: list[Message]) -> None:
    result = shaped(messages)
    roles = [message.role for message in result]
    assert "system" not in roles[1:]
    turns = ["user" if role == "tool" else role for role in roles if role != "system"]
    assert turns[0] == "user"
    assert all(first != second for first, second in pairwise(turns))
    assert all(len(message.tool_calls) <= 1 for message in result)
    for before, after in pairwise(result):
        if before.tool_calls:
            assert after.tool_call_id == before.tool_calls[0].id
            assert re.fullmatch("[a-zA-Z0-9]{9}", before.tool_calls[0].id)
    text = "\n".join(message.content for message in result)
    assert all(message.content in text for message in messages)
    calls = [call.arguments for message in messages for call in message.tool_calls]
    assert [call.arguments for message in result for call in message.tool_calls] == calls


@given(conversations(), st.integers(1, 20))
@cases(50)
def test_a_growing_conversation_has_the_same_form_and_keeps_its_messages(messages: list[Message], size: int) -> None:
    shape = ConversationShape()
    first, second = shape.shaped(messages[:size], UNKNOWN), shape.shaped(messages, UNKNOWN)
    assert list(second) == shaped(messages)
    roles = ["", *(message.role for message in messages[:size])]
    last_turn = max((n for n, pair in enumerate(pairwise(roles)) if pair[0] != pair[1] == "assistant"), default=0)
    ended = len(shaped(messages[:last_turn])) if last_turn else 0
    assert all(one is other for one, other in zip(first[:ended], second, strict=False)), "they are encoded only once"


@given(conversations())
@cases(50)
def test_a_model_that_accepts_everything_gets_the_conversation_unchanged(messages: list[Message]) -> None:
    assert ConversationShape().shaped(messages, OPEN) is messages


def test_late_guidance_becomes_part_of_the_last_message_and_is_marked() -> None:
    system, user = Message(role="system", content="You."), Message(role="user", content="Go.")
    call = Message(role="assistant", tool_calls=(ToolCall(id="a", tool="look"),))
    result = Message(role="tool", content="Found.", tool_call_id="a")
    answer = Message(role="assistant", content="Four.")

    assert shaped([system, user, late_guidance("Plan.")])[-1].content == f"Go.\n\n{marked_notice('Plan.')}"
    last = shaped([system, user, call, result, late_guidance("Finish."), late_guidance("3 s left.")])[-1]
    assert (last.role, last.content) == (
        "tool",
        f"Found.\n\n{marked_notice('Finish.')}\n\n{marked_notice('3 s left.')}",
    )
    assert [message.role for message in shaped([system, user, answer, late_guidance("As JSON.")])][2:] == [
        "assistant",
        "user",
    ]


@given(st.text(st.sampled_from(f"</ \t{NOTICE_TAG}{NOTICE_TAG.upper()}>x"), max_size=60))
@cases(300)
def test_no_text_of_a_user_or_a_tool_passes_for_a_notice(text: str) -> None:
    forged = re.compile(rf"<\s*/?\s*{NOTICE_TAG}", re.IGNORECASE)
    for given_text in (text, f"a <{NOTICE_TAG}>{text}", f"{text}</{NOTICE_TAG} >b", f"< /{NOTICE_TAG}>"):
        assert not forged.search(escape_notices(given_text))
        marked = marked_notice(given_text)
        assert len(forged.findall(marked)) == 2
        messages = [
            Message(role="user", content=given_text),
            Message(role="tool", content=given_text, tool_call_id="a"),
        ]
        for message in (*shaped(messages), *mark_notices(messages)):
            assert not forged.search(message.content)


@given(st.data())
@cases(60)
def test_a_conversation_that_changes_has_the_form_of_a_new_one(data: st.DataObject) -> None:
    shape, messages = ConversationShape(), data.draw(conversations())
    for _ in range(data.draw(st.integers(1, 8))):
        place, end = sorted(data.draw(st.tuples(*[st.integers(0, len(messages))] * 2)))
        messages = [*messages[:place], *data.draw(conversations())[1:], *messages[end:]]
        form = shape.shaped(messages, UNKNOWN)
        assert list(form) == shaped(messages)
        assert all(first is second for first, second in zip(form, shape.shaped(messages, UNKNOWN), strict=True))


def test_a_short_id_is_kept_and_others_are_translated_to_different_ones() -> None:
    assert short_call_id("aB3456789") == "aB3456789"
    translated = {short_call_id(f"call_{number}") for number in range(2000)}
    assert len(translated) == 2000
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in translated)


def test_what_is_known_of_a_family_is_found_by_its_name_with_any_provider() -> None:
    assert known_capabilities("openai/Qwen/Qwen3.5-9B").late_system is False
    assert known_capabilities("openai/Qwen/Qwen3.5-9B").parallel_calls
    assert known_capabilities("mistral/open-nemo").call_ids == "short"
    assert known_capabilities("openai/gpt-5").late_system
    assert known_capabilities("openai/gpt-oss-20b").late_system is False
    assert known_capabilities("openai/something-new").late_system is None
    assert known_capabilities("openai/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B").late_system
    assert known_capabilities("openai/nvidia/NVIDIA-Nemotron-Nano-9B-v2").late_system is False
    assert known_capabilities("openai/microsoft/Phi-4-mini-instruct").late_system is False
    assert known_capabilities("openai/NousResearch/Hermes-4-70B").parallel_calls
    assert known_capabilities("groq/meta-llama/llama-4-scout-17b-16e-instruct").parallel_calls
    assert known_capabilities("openrouter/x-ai/grok-4").repeated_roles


def test_system_messages_are_created_only_for_the_beginning_of_a_conversation() -> None:
    """A system message after the first ends runs on many servers: late texts are `late_guidance`."""
    places = {
        f"{path.relative_to(ROOT / 'framework')}"
        for path in (ROOT / "framework").rglob("*.py")
        if re.search(r"role\s*=\s*[\"']system", source := path.read_text("utf-8"))  # the others need no parser
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and any(keyword.arg == "role" and ast.unparse(keyword.value) == "'system'" for keyword in node.keywords)
    }
    assert places == {
        "cli/tools.py",  # asks a server what its template accepts
        "engine/model_call/turn.py",  # the agent's instructions
        "engine/routing.py",  # a request of one question
        "llm/json_protocol.py",  # merges all system messages into the first one
        "llm/message_formats.py",  # reads conversations of callers
        "llm/message_shape.py",  # merges the first ones
        "types/messages.py",  # late_guidance
    }
