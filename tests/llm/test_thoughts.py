"""Thoughts that a server sends as text are never the answer: whole and streamed, at any cut, in history and results."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, events
from framework.llm.answer_text import ThoughtSplitter, split_thoughts
from tests.support.cases import cases, each
from tests.support.formats import OPENAI
from tests.support.projects import agent, write
from tests.support.wire import Answer, calls, piece, says, wire_server
from tests.support.wire import events as wire_events

ANSWER = "The answer is 4."
HARMONY = "<|start|>assistant<|channel|>final<|message|>"
SEPARATED = [
    (f"<think>\nhm\n</think>\n\n{ANSWER}", "hm", ANSWER),
    (f"\n <think>hm</think>{ANSWER}", "hm", ANSWER),
    (f"<thinking>hm</thinking>{ANSWER}", "hm", ANSWER),
    (f"<Think>hm</THINK>{ANSWER}", "hm", ANSWER),
    (f"[THINK]hm[/THINK]{ANSWER}", "hm", ANSWER),
    (f"<think></think>{ANSWER}", "", ANSWER),
    (f"<think>a</think>\n<think>b</think>{ANSWER}", "ab", ANSWER),
    (f"<|channel|>analysis<|message|>hm<|end|>{HARMONY}{ANSWER}<|return|>", "hm", ANSWER),
    (f"<|channel|>final<|message|>{ANSWER}", "", ANSWER),
    (f"hm\n</think>\n\n{ANSWER}", "hm", ANSWER),
    (f"hm </think>{ANSWER}", "hm", ANSWER),
    ("hm\n</think>\n", "hm", ""),
    ("<think>hm", "hm", ""),
    ("<think>hm</thi", "hm</thi", ""),
    ("<|channel|>analysis<|message|>hm", "hm", ""),
    ("<think>1 < 2 and [3]</think>1 < 2", "1 < 2 and [3]", "1 < 2"),
]
KEPT = [
    ANSWER,
    "",
    " \n",
    " <thi",
    "a < b, and <b>bold</b> [1]",
    "The tag `</think>` ends them.",
    'Write "</think>" at the end.',
    "```\n</think>\n```",
    "Between <think> and </think> it thinks.",
    '{"text": "a</think>b"}',
    '["</think>"]',
    "<thinker>hm</thinker>",
]


@each(("text", "thoughts", "answer"), SEPARATED)
def test_thoughts_are_separated_from_the_answer(text: str, thoughts: str, answer: str) -> None:
    assert split_thoughts(text) == (thoughts, answer)


@pytest.mark.parametrize("text", KEPT)
def test_an_answer_that_shows_tags_is_unchanged(text: str) -> None:
    assert split_thoughts(text) == ("", text)


@given(
    text=st.sampled_from([*(text for text, _, _ in SEPARATED), *KEPT])
    | st.lists(st.sampled_from(["<think>", "</think>", "<|end|>", "<|channel|>", "x", " ", "`", "{", "<", "İ"])).map(
        "".join
    ),
    cuts=st.lists(st.integers(0, 120), max_size=20),
    begins_inside=st.booleans(),
)
@cases(200)
def test_a_text_in_pieces_is_separated_like_the_whole(text: str, cuts: list[int], begins_inside: bool) -> None:
    splitter = ThoughtSplitter(begins_inside=begins_inside)
    shown, thoughts = "", ""
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    for part in (*map(splitter.add, pieces), splitter.finish()):
        shown, thoughts = ("" if part.is_void else shown) + part.text, thoughts + part.thoughts

    expected, answer = split_thoughts(text)
    if not begins_inside:
        assert shown.rstrip() == answer.rstrip(), "so that the complete text begins with what was shown"
        assert thoughts == expected
    assert len(shown) + len(thoughts) <= 2 * len(text), "a text is shown at most as thoughts and then as the answer"


@pytest.mark.parametrize("end", ["</think>", ""], ids=["ended", "never ended"])
def test_thoughts_of_5_mb_are_no_answer(tmp_path: Path, end: str) -> None:
    words, answer = "I think about it. " * 280_000, ANSWER if end else ""
    sent = f"<think>{words}{end}{answer}"
    pieces = [piece(content=sent[at : at + 50_000]) for at in range(0, len(sent), 50_000)]

    async def main() -> None:
        replies = [wire_events(*pieces, piece("stop")), says("short")]
        async with (
            wire_server(replies) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            received, result = await read(runtime)
        assert getattr(result, "output", None) == (answer or "short")
        assert deltas(received, events.ContentReceived) == (answer or "short")
        assert all("I think" not in message.content for message in getattr(result, "messages", ()))

    asyncio.run(main())


def test_blanks_without_end_are_not_collected() -> None:
    splitter = ThoughtSplitter()
    shown = sum(len(splitter.add(" " * 1000).text) for _ in range(100))
    assert shown == 100_000


def project(root: Path, url: str, **keys: str) -> Path:
    files = {
        "agents.d/one.yaml": agent("one", model="local", **keys),
        "agentsd.yaml": f"models: {{local: {OPENAI.alias(url, '')}}}\n",
    }
    return write(root, files)


async def read(runtime: Runtime, message: str = "go") -> tuple[list[events.Event], object]:
    async with runtime.stream(message, conversation="c") as stream:
        received = [event async for event in stream]
    return received, await stream.result()


def streamed(text: str) -> Answer:
    return wire_events(*(piece(content=text[at : at + 3]) for at in range(0, len(text), 3)), piece("stop"))


def deltas(received: list[events.Event], kind: type[events.Event]) -> str:
    """Return the text of one kind that a reader has at the end: what a warning voids is gone."""
    texts: dict[str, str] = {}
    for event in received:
        match event:
            case events.Warned(message_id=str(void)):
                texts.pop(void, None)
            case events.ContentReceived() | events.Thought() if isinstance(event, kind):
                texts[event.message_id] = texts.get(event.message_id, "") + event.text
    return "".join(texts.values())


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\nhm\n</think>\n\n{ANSWER}",
        f"hm\n</think>\n\n{ANSWER}",
        f"<|channel|>analysis<|message|>hm<|end|>{HARMONY}{ANSWER}",
    ],
)
def test_a_run_streams_thoughts_as_thinking_and_keeps_them_out_of_history(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        async with (
            wire_server([streamed(text), streamed(text)]) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            for turn in range(2):
                received, result = await read(runtime)
                assert getattr(result, "output", None) == ANSWER
                assert deltas(received, events.ContentReceived) == ANSWER
                assert deltas(received, events.Thought).strip() == "hm"
                warned = [event.code for event in received if isinstance(event, events.Warned)]
                assert warned == (["thoughts_in_text"] if text.startswith("hm") and turn == 0 else []), "learned once"
        assert "hm" not in json.dumps(server.requests[1]["messages"])

    asyncio.run(main())


def test_a_model_that_no_longer_sends_an_end_tag_answers_as_a_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            wire_server([streamed(f"hm</think>{ANSWER}"), streamed(ANSWER), streamed(ANSWER)]) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            for _ in range(3):
                received, result = await read(runtime)
                assert getattr(result, "output", None) == ANSWER
                assert deltas(received, events.ContentReceived) == ANSWER

    asyncio.run(main())


def test_thoughts_beside_calls_are_reasoning(tmp_path: Path) -> None:
    async def main() -> None:
        first = calls(("echo", {"text": "x"}), text="<think>secret</think>Let me see.")
        async with (
            wire_server([first, says("done")]) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            received, _ = await read(runtime)
        thoughts = [event.text for event in received if isinstance(event, events.Thought)]
        assert "".join(thoughts) == "secret\nLet me see.", "a stream repeats nothing"
        assert server.requests[1]["messages"][2]["content"] == "Let me see."

    asyncio.run(main())


SCHEMA = "{type: object, properties: {n: {type: integer}}, required: [n]}"


@pytest.mark.parametrize("text", ['<think>\nfour?\n</think>\n{"n": 4}', 'four?\n</think>\n{"n": 4}'])
def test_a_typed_answer_after_thoughts_needs_one_request(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        async with (
            wire_server([says(text)]) as server,
            Runtime.open(project(tmp_path, server.url, output_schema=SCHEMA), watch=False) as runtime,
        ):
            result = await runtime.run("go")
        assert (result.data, len(server.requests)) == ({"n": 4}, 1)

    asyncio.run(main())


def test_thoughts_that_never_end_are_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            wire_server([says("<think>\nfor ever"), says(ANSWER)]) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            result = await runtime.run("go")
        assert (result.output, len(server.requests)) == (ANSWER, 2)

    asyncio.run(main())


def test_a_sub_agent_hands_over_its_answer_only(tmp_path: Path) -> None:
    async def main() -> None:
        answers = [calls(("agent__two", {"message": "ask"})), says(f"<think>secret</think>{ANSWER}"), says("done")]
        async with wire_server(answers) as server:
            root = project(tmp_path, server.url, sub_agents="[two]")
            write(root, {"agents.d/two.yaml": agent("two", model="local")})
            async with Runtime.open(root, watch=False) as runtime:
                result = await runtime.run("go", agent="one")
        assert result.output == "done", result.error
        assert ANSWER in json.dumps(server.requests[2]["messages"])
        assert "secret" not in json.dumps(server.requests[2]["messages"])

    asyncio.run(main())
