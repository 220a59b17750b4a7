"""Files in messages and tool results: what models get, what is stored, and what is rejected."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, File, ModelError, RequestError, RunResult, Runtime, tool
from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelInfo, ModelRequest
from framework.llm.message_formats import Form, exported
from framework.store.memory import MemoryStore
from framework.testing import ScriptedModel, Turn, calls
from framework.types.events import wire
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, MediaPart, TextPart
from framework.types.messages import Message
from tests.support.media import jpeg, pdf, png, wav
from tests.support.plans import draft, model_step
from tests.support.projects import agent, write

STORE = "sqlite:///state.db"
MARKER = "MARKER-of-the-file-7f3a"
PICTURE = File.from_bytes(png(MARKER), name="a.png")
PAGE = File.from_bytes(pdf(2, MARKER), name="report.pdf")


class Model(ScriptedModel):
    """A scripted model with known capabilities."""

    def __init__(self, *turns: Turn, **capabilities: Any) -> None:
        super().__init__(*turns)
        self._capabilities = Capabilities(**capabilities)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, capabilities=self._capabilities)


@tool(risk="low")
def draw(kind: str) -> Any:
    """Draw a picture."""
    picture = File.from_bytes(png(f"{MARKER} {kind}"), name="chart.png")
    results = {"file": picture, "list": ["see:", picture], "data": {"n": 1, "chart": picture}, "none": []}
    if kind == "long":
        return ["x" * 100, picture]
    if kind == "large":
        return [File.from_bytes(png(f"{number}" * 4000), name=f"{number}") for number in range(2)]
    return results[kind]


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys)})


def opened(root: Path, model: ScriptedModel, store: Any = None, **models: ScriptedModel) -> Any:
    return Runtime.open(root, models={"scripted": model, **models}, tools=[draw], store=store, watch=False)


def shown(request: ModelRequest) -> list[tuple[str, str, list[bytes | None]]]:
    """Return the conversation of a request: role, text and contents of the files of each message."""
    return [
        (message.role, message.content, [request.media.get(part.digest) for part in message.media])
        for message in request.messages
        if message.role != "system"
    ]


def once(root: Path, model: ScriptedModel, *messages: Any, store: Any = None, **options: Any) -> list[RunResult]:
    async def main() -> list[RunResult]:
        async with opened(root, model, store) as runtime:
            return [await runtime.run(message, **options) for message in messages]

    return asyncio.run(main())


# --- the user's message


def test_the_model_gets_texts_and_files_in_order(tmp_path: Path) -> None:
    model = Model("two")
    (result,) = once(project(tmp_path), model, ["Compare", PICTURE, "with", PAGE])
    assert result.output == "two"
    assert shown(model.requests[0]) == [("user", "Compare\n\nwith", [PICTURE.data, PAGE.data])]
    assert [getattr(part, "text", "") for part in model.requests[0].messages[-1].parts] == ["Compare", "", "with", ""]
    assert result.messages[0].media == (PICTURE.part, PAGE.part)


def test_a_file_alone_is_a_message(tmp_path: Path) -> None:
    model = Model("a picture")
    once(project(tmp_path), model, PICTURE)
    assert shown(model.requests[0]) == [("user", "", [PICTURE.data])]


def test_a_run_without_files_loads_none(tmp_path: Path) -> None:
    class NoMedia(MemoryStore):
        async def load_media(self, digests: Any, of: Any = None) -> Any:
            raise AssertionError(digests)

        async def save_media(self, run_id: str, files: Any) -> None:
            raise AssertionError(files)

    model = Model(calls(("draw", {"kind": "none"})), "done")
    (result,) = once(project(tmp_path), model, "hi", store=NoMedia())
    assert result.status == "completed"
    assert model.requests[0].media == {}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (["a", 7], "message: item 2 is not str or File, but int"),
        (["a", b"png"], r"message: item 2 is not str or File, but bytes; pass File.from_bytes\(…\)"),
        (["a", Path("a.png")], r"message: item 2 is not str or File, but PosixPath; pass File.from_path\(…\)"),
        ([{"role": "user"}], r"message: item 1 is not str or File, but dict; pass messages as history=\[…\]"),
        ([], "the message is empty"),
        (["", " "], "the message is empty"),
    ],
)
def test_a_message_of_anything_else_is_rejected(tmp_path: Path, message: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=f"^{problem}$"):
        once(project(tmp_path), Model("never"), message)


def test_the_files_of_a_message_are_limited_together(tmp_path: Path) -> None:
    files = [File.from_bytes(wav(1.5, rate=10_000_000), name=f"{number}.wav") for number in range(2)]
    assert sum(len(file.data) for file in files) > MAX_REQUEST_MEDIA_BYTES
    with pytest.raises(
        RequestError, match=r"^the files of the message have 30.0 MB; at most 24.0 MB together are allo"
    ):
        once(project(tmp_path), Model("never"), ["hear", *files])


# --- persistence


@pytest.mark.parametrize("store", [None, STORE])
def test_a_conversation_keeps_its_files(tmp_path: Path, store: str | None) -> None:
    model = Model("a cat", "yes")
    first, second = once(project(tmp_path), model, ["What is it?", PICTURE], "Sure?", store=store, conversation="c")
    assert shown(model.requests[1]) == [
        ("user", "What is it?", [PICTURE.data]), ("assistant", "a cat", []), ("user", "Sure?", []),
    ]  # fmt: skip
    assert second.messages[: len(first.messages)] == first.messages


def test_a_paused_run_has_its_files_in_another_process(tmp_path: Path) -> None:
    root = project(tmp_path, skill_policy="{ask: [draw], allow: []}")

    async def begin() -> RunResult:
        async with opened(root, Model(calls(("draw", {"kind": "file"}))), STORE) as runtime:
            return await runtime.run(["Draw this again", PICTURE])  # type: ignore[no-any-return]  # opened() is untyped

    async def end(run: RunResult, model: Model) -> RunResult:
        async with opened(root, model, STORE) as runtime:
            return await runtime.resume(run.run_id, {run.pending[0].id: Approve()})  # type: ignore[no-any-return]

    model = Model("drawn")
    assert asyncio.run(end(asyncio.run(begin()), model)).output == "drawn"
    user, _, drawn = shown(model.requests[0])
    assert user == ("user", "Draw this again", [PICTURE.data])
    assert drawn[2] == [png(f"{MARKER} file")]


def test_the_bytes_of_files_are_nowhere_but_in_their_table(tmp_path: Path) -> None:
    root = write(project(tmp_path, telemetry="{content: full}"), {"agentsd.yaml": "telemetry: {content: full}\n"})
    model = Model(calls(("draw", {"kind": "data"})), "done")

    async def main() -> tuple[str, str]:
        async with opened(root, model, STORE) as runtime, runtime.stream(["Draw", PICTURE, PAGE]) as stream:
            seen = [wire(event) async for event in stream]
            result = await stream.result()
            spans = await runtime.store.spans(result.run_id)
            return json.dumps([seen, result.model_dump(mode="json")]), repr(spans)

    emitted, spans = asyncio.run(main())
    assert "[image/png" in emitted
    assert f'"file_id": "{PICTURE.part.digest}"' in spans
    assert '"modality": "document"' in spans
    assert MARKER.encode() in (tmp_path / "state.db").read_bytes(), "the store contains the file"
    bodies = {"state": emitted, "spans": spans, "tables": _tables_without_media(tmp_path / "state.db")}
    for name, text in bodies.items():
        for secret in _encodings(MARKER):
            assert secret not in text, name


def _tables_without_media(file: Path) -> str:
    with sqlite3.connect(file) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in tables if name != "agentsd_media" for row in database.execute(f"SELECT * FROM {name}")]
    values = [zlib.decompress(value) if isinstance(value, bytes) else value for row in rows for value in row]
    assert any("Draw" in str(value) for value in values)
    return repr(values)


def _encodings(text: str) -> Iterator[str]:
    """Yield a text and its base64 forms, by its offset in the file."""
    yield text
    for offset in range(3):
        yield base64.b64encode(b"\0" * offset + text.encode()).decode()[4:-8]


def test_files_of_a_history_are_found_or_described(tmp_path: Path) -> None:
    model = Model("a cat", "still", "again")

    async def main() -> list[RunResult]:
        async with opened(project(tmp_path), model) as runtime:
            first = await runtime.run(["What?", PICTURE])
            second = await runtime.run("Sure?", history=first.messages)
            lost = PICTURE.part.model_copy(update={"digest": "0" * 64})
            message = Message.of_parts("user", [lost]).model_dump(mode="json")
            third = await runtime.run("And?", history=[message, {"role": "assistant", "content": "hm"}])
            with pytest.raises(RequestError, match=r"^\[image/png .* a.png\] is not stored: pass the file itself$"):
                await runtime.run(history=[message])
            return [first, second, third]

    _, second, third = asyncio.run(main())
    assert shown(model.requests[1])[0] == ("user", "What?", [PICTURE.data])
    assert not second.warnings
    assert shown(model.requests[2])[0] == ("user", "", [None])
    (warning,) = third.warnings
    assert warning.code == "file_not_sent"
    assert warning.message.endswith("a.png]: it is no longer stored")


def test_a_digest_of_a_file_of_another_owner_is_unknown(tmp_path: Path) -> None:
    ann: dict[str, Any] = {"user": "ann", "tenant": "t"}
    unknown = PICTURE.part.model_copy(update={"digest": "0" * 64})
    others: list[dict[str, Any]] = [{}, {"user": "ann"}, {"tenant": "t"}, {"user": "bob", "tenant": "t"}]

    async def seen(runtime: Runtime, model: Model, part: MediaPart, owner: dict[str, Any]) -> Any:
        message = Message.of_parts("user", [part])
        with pytest.raises(RequestError) as refused:
            await runtime.run(history=[message], **owner)
        given = [message, Message(role="assistant", content="hm")]
        result = await runtime.run("And?", history=given, **owner)
        again = await runtime.run("And?", history=result.messages, **owner)
        return str(refused.value), [shown(request) for request in model.requests[-2:]], again.warnings

    async def main() -> None:
        model = Model(*["ok"] * 20)
        async with opened(project(tmp_path), model) as runtime:
            await runtime.run(["What?", PICTURE], **ann)
            for other in others:
                assert await seen(runtime, model, PICTURE.part, other) == await seen(runtime, model, unknown, other)
            await runtime.run("Sure?", history=[Message.of_parts("user", [PICTURE.part])], **ann)
            assert shown(model.requests[-1])[0] == ("user", "", [PICTURE.data])

    asyncio.run(main())


def test_a_history_keeps_its_files_after_the_first_run_is_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        store = MemoryStore(keep_runs=1)
        async with opened(project(tmp_path), Model("a", "b", "c"), store) as runtime:
            result = await runtime.run(PICTURE)
            for _ in range(2):  # each run replaces the one before it
                result = await runtime.run("and?", history=result.messages)
            assert not result.warnings

    asyncio.run(main())


@pytest.mark.parametrize("form", ["messages", "openai"])
@pytest.mark.parametrize("as_message", [False, True])
def test_a_history_with_the_contents_of_files_needs_no_store(tmp_path: Path, form: Form, as_message: bool) -> None:
    shown_before = Message.of_parts("user", [TextPart(text="What?"), PICTURE.part])
    history = exported([shown_before], form, files={PICTURE.part.digest: PICTURE.data})
    if not as_message:
        history.append({"role": "assistant", "content": "a cat"})
    model = Model("sure")
    (result,) = once(project(tmp_path), model, None if as_message else "Sure?", history=history, store=STORE)
    assert not result.warnings
    assert shown(model.requests[0])[0] == ("user", "What?", [PICTURE.data])


# --- tools


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("file", "[image/png {} chart.png]"),
        ("list", "see:\n[image/png {} chart.png]"),
        ("data", '{{"n": 1, "chart": "[image/png {} chart.png]"}}'),
    ],
)
@pytest.mark.parametrize("store", [None, STORE])
def test_the_model_gets_the_files_that_a_tool_returns(tmp_path: Path, kind: str, text: str, store: Any) -> None:
    model = Model(calls(("draw", {"kind": kind})), "seen")
    (result,) = once(project(tmp_path), model, "draw", store=store)
    expected = text.format(f"{len(png(f'{MARKER} {kind}'))} bytes")
    assert shown(model.requests[1])[-1] == ("tool", expected, [png(f"{MARKER} {kind}")])
    (called,) = result.tool_calls
    assert called.status == "success"
    assert MARKER not in result.model_dump_json()


def test_a_program_loads_the_files_that_tools_returned(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), Model(calls(("draw", {"kind": "file"})), "seen"), STORE) as runtime:
            result = await runtime.run("draw", conversation="c")
            (part,) = [part for message in result.messages for part in message.media]
            file = await runtime.load_file(part)
            assert (file.data, file.name) == (png(f"{MARKER} file"), "chart.png")
            await runtime.store.delete_conversation("c")
            with pytest.raises(RequestError, match=r"^\[image/png .* chart.png\] is not stored$"):
                await runtime.load_file(part)

    asyncio.run(main())


def test_a_model_without_images_gets_descriptions_of_a_tools_files(tmp_path: Path) -> None:
    model = Model(calls(("draw", {"kind": "file"})), "seen", images=False)
    (result,) = once(project(tmp_path), model, "draw")
    ((role, text, files),) = shown(model.requests[1])[-1:]
    assert (role, files) == ("tool", [])
    assert text.count("chart.png]") == 1
    assert result.messages[-2].media, "the stored message keeps the file"
    (warning,) = result.warnings
    assert warning.message.endswith(": scripted does not accept it")


def test_the_text_of_a_result_is_cut_and_its_file_kept(tmp_path: Path) -> None:
    model = Model(calls(("draw", {"kind": "long"})), "seen")
    once(project(tmp_path, runtime_policy="{max_observation_chars: 100}"), model, "draw")
    _, text, files = shown(model.requests[1])[-1]
    assert text.startswith("x" * 100 + "\n… (")
    assert files == [png(f"{MARKER} long")]


def test_a_sub_agent_gets_text_only(tmp_path: Path) -> None:
    root = write(project(tmp_path, sub_agents="[two]"), {"agents.d/two.yaml": agent("two")})
    model = Model(calls(("agent.two", {"message": "look"})), "two here", "done")
    (result,) = once(root, model, ["ask two", PICTURE], agent="one")
    assert result.status == "completed"
    assert shown(model.requests[1]) == [("user", "look", [])]


def test_a_planner_sees_the_files_and_steps_do_not(tmp_path: Path) -> None:
    root = project(tmp_path, executor="plan", plan="{approval: never}")
    model = Model(draft(model_step("s1"), model_step("s2")), "one", "two", "all")
    (result,) = once(root, model, ["Do it", PICTURE])
    assert result.status == "completed", result.error
    sent = [any(message.media for message in request.messages) for request in model.requests]
    assert sent == [True, False, False, True]


# --- capabilities, sizes


@pytest.mark.parametrize(
    ("file", "capabilities", "problem"),
    [
        (PICTURE, {"images": False}, r"scripted does not accept images: \[image/png .* a.png\]; choose another"),
        (PAGE, {"images": True, "pdf": False}, r"scripted does not accept PDFs: \[application/pdf .* report.pdf\];"),
        (File.from_bytes(wav(), name="a.wav"), {"audio": False}, r"scripted does not accept audio: \[audio/wav"),
    ],
)
def test_a_file_that_the_model_does_not_accept_is_an_error(
    tmp_path: Path, file: File, capabilities: Any, problem: str
) -> None:
    model = Model("never", **capabilities)

    async def main() -> None:
        async with opened(project(tmp_path), model) as runtime:
            with pytest.raises(RequestError, match=f"^{problem}"):
                await runtime.run(["Read", file])
            assert not await runtime.store.runs(), "no run is recorded"

    asyncio.run(main())
    assert not model.requests


def test_a_model_that_accepts_the_file_or_is_unknown_is_called(tmp_path: Path) -> None:
    for capabilities in ({"pdf": True}, {}):
        (result,) = once(project(tmp_path), Model("read", **capabilities), ["Read", PAGE])
        assert result.output == "read"


def test_a_fallback_that_does_not_accept_the_file_is_skipped(tmp_path: Path) -> None:
    root = project(tmp_path, fallback_models="[blind, seeing]")
    down = Model(ModelError("down", unavailable=True))
    blind, seeing = Model("never", images=False), Model("a cat", images=True)

    async def main() -> RunResult:
        async with opened(root, down, None, blind=blind, seeing=seeing) as runtime:
            return await runtime.run(["What?", PICTURE])  # type: ignore[no-any-return]  # opened() is untyped

    result = asyncio.run(main())
    assert result.output == "a cat"
    assert not blind.requests
    assert "blind does not accept [image/png" in result.warnings[-1].message


def test_a_fallback_whose_call_is_corrected_still_gets_no_file_that_it_does_not_accept(tmp_path: Path) -> None:
    root = project(tmp_path, fallback_models="[blind]")
    unreadable = ModelError("unreadable", retryable=True, correction="Call again.")
    model = Model(calls(("draw", {"kind": "file"})), ModelError("down", unavailable=True))
    blind = Model(unreadable, "done", images=False, pdf=False, audio=False)

    async def main() -> RunResult:
        async with opened(root, model, None, blind=blind) as runtime:
            return await runtime.run("draw")  # type: ignore[no-any-return]  # opened() is untyped

    assert asyncio.run(main()).output == "done"
    assert [sum(len(files) for _, _, files in shown(request)) for request in blind.requests] == [0, 0]
    assert blind.requests[1].messages[-1].content == "Call again."


def test_earlier_files_that_the_next_model_does_not_accept_are_described(tmp_path: Path) -> None:
    async def main() -> RunResult:
        async with opened(project(tmp_path), Model("read"), None, other=other) as runtime:
            await runtime.run(["Read", PAGE, PICTURE], conversation="c")
            return await runtime.run("And?", conversation="c", model="other")  # type: ignore[no-any-return]

    other = Model("so", pdf=False)
    result = asyncio.run(main())
    assert shown(other.requests[0])[0] == ("user", f"Read\n\n{PAGE.part.description}", [PICTURE.data])
    assert [warning.code for warning in result.warnings] == ["file_not_sent"]


def test_the_oldest_files_are_described_when_a_request_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.model_call.retry.MAX_REQUEST_MEDIA_BYTES", 8300)
    model = Model(calls(("draw", {"kind": "file"})), calls(("draw", {"kind": "large"}), prefix="d"), "done")
    (result,) = once(project(tmp_path), model, ["draw", PICTURE])
    *_, first, _, second = shown(model.requests[2])
    assert second[2] == [png("0" * 4000), png("1" * 4000)]
    assert first[2] == []
    assert shown(model.requests[2])[0] == ("user", "draw", [PICTURE.data])
    (warning,) = result.warnings
    assert "chart.png]: a request can have" in warning.message


def test_tokens_of_files_count_towards_the_context_window(tmp_path: Path) -> None:
    model = Model("never", context_window=3000)
    model._info = replace(model._info, stand_in=False)
    pages = File.from_bytes(pdf(2), name="two.pdf")
    (result,) = once(project(tmp_path), model, ["Read", pages])
    assert result.finish_reason == "context_full"


# --- compaction


def test_a_summary_mentions_files_and_no_longer_sends_them(tmp_path: Path) -> None:
    model = Model("a cat", "- a summary", "yes")
    root = project(tmp_path, conversation="{compress_at_tokens: 10}")
    once(root, model, ["What?", PICTURE], "Sure?", conversation="c")
    summarizing, last = model.requests[1:]
    assert all(not message.media for request in (summarizing, last) for message in request.messages)
    assert any(PICTURE.part.description in message.content for message in summarizing.messages)
    assert any(PICTURE.part.description in message.content for message in last.messages)


def test_a_different_type_than_declared_never_reaches_a_run() -> None:
    with pytest.raises(RequestError, match=r"a.png is declared as image/png, but its content is image/jpeg"):
        File(jpeg(), "image/png", "a.png")
