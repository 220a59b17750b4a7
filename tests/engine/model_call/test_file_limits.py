"""The number of files in a request, where a provider limits it: the newest are sent, older ones described."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from framework import File, RequestError, RunResult, Runtime
from framework.llm.anthropic import AnthropicModel
from framework.llm.client import ModelInfo
from framework.llm.gemini import GeminiModel
from framework.testing import ScriptedModel
from tests.support.media import png
from tests.support.projects import agent, write


class Limited(ScriptedModel):
    """A model that accepts two files in a request."""

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, max_files=2)


def picture(number: int) -> File:
    return File.from_bytes(png(f"picture {number}"), name=f"{number}.png")


def converse(root: Path, model: ScriptedModel, *messages: Sequence[str | File]) -> list[RunResult]:
    async def main() -> list[RunResult]:
        write(root, {"agents.d/one.yaml": agent("one")})
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            return [await runtime.run(message, conversation="c1") for message in messages]

    return asyncio.run(main())


def test_the_oldest_files_beyond_the_limit_are_described_with_a_warning(tmp_path: Path) -> None:
    model = Limited("ok", "ok", "ok")

    *_, last = converse(tmp_path, model, *([picture(number)] for number in range(3)))

    sent = [part.name for message in model.requests[-1].messages for part in message.media]
    assert sent == ["1.png", "2.png"]
    assert f"[image/png {len(picture(0).data)} bytes 0.png]" in model.requests[-1].messages[1].content
    (warning,) = last.warnings
    assert warning.code == "file_not_sent"
    assert "a request can have 24.0 MB, and at most 2, of files" in warning.message


def test_a_message_with_more_files_than_the_model_accepts_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="the message has 3 files; scripted accepts at most 2: send fewer"):
        converse(tmp_path, Limited("ok"), [picture(number) for number in range(3)])


def test_the_limits_of_providers_are_known() -> None:
    assert AnthropicModel("claude-haiku-4-5", api_key="k").info.max_files == 100
    assert AnthropicModel("claude-sonnet-5", api_key="k").info.max_files == 600
    assert AnthropicModel("claude-of-tomorrow", api_key="k").info.max_files == 100
    assert GeminiModel("gemini-3-pro", api_key="k").info.max_files is None
