"""Files in the results of MCP tools: real ones reach the model, and everything else is mentioned in the text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult

from framework.tools.mcp.content import MAX_RESULT_CHARS, MAX_RESULT_FILES, tool_output
from framework.types.errors import ToolError
from framework.types.file import File
from framework.types.media import media_type_of
from framework.types.tool_servers import McpServer
from tests.support.cases import cases
from tests.support.mcp_worlds import MODERN, opened, raw
from tests.support.media import SAMPLES, jpeg, png

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image(data: bytes, declared: str = "image/png", kind: str = "image") -> dict[str, Any]:
    return {"type": kind, "data": encoded(data), "mimeType": declared}


def resource(data: bytes, uri: str = "docs://page", declared: str | None = None) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "blob": encoded(data), "mimeType": declared}}


def output(*blocks: dict[str, Any], **fields: Any) -> Any:
    """Convert a result of these blocks."""
    return asyncio.run(tool_output(CallToolResult.model_validate({"content": blocks, **fields})))


def described(result: Any) -> Sequence[str]:
    """Return an output with the media type of each file."""
    return [item.media_type if isinstance(item, File) else item for item in result]


TEXT = {"type": "text", "text": "before"}


@pytest.mark.parametrize("media_type", SAMPLES)
def test_a_file_of_each_type_reaches_the_model(media_type: str) -> None:
    data = SAMPLES[media_type]
    kind = media_type.partition("/")[0]
    block = resource(data, declared=media_type) if kind == "application" else image(data, media_type, kind)

    *texts, file = output(TEXT, block)

    assert file == File.from_bytes(data)
    assert texts == (["before", "[resource docs://page]"] if kind == "application" else ["before"])


def test_files_keep_their_place_between_texts() -> None:
    blocks = (image(png()), TEXT, resource(SAMPLES["application/pdf"]), {"type": "text", "text": "after"})

    assert described(output(*blocks)) == ["image/png", "before", "[resource docs://page]", "application/pdf", "after"]


def test_structured_content_stays_beside_the_files() -> None:
    data, file = output(TEXT, image(png()), structuredContent={"total": 3})

    assert (data, file.media_type) == ({"total": 3}, "image/png")


def test_the_content_decides_and_not_the_declared_type() -> None:
    (file,) = output(image(jpeg(), "image/png"))

    assert file.media_type == "image/jpeg"


@pytest.mark.parametrize(
    ("block", "note"),
    [
        (image(SVG), "not shown: the file is not of a supported type"),
        (image(b""), ""),
        (image(b"\x89PNG\r\n\x1a\n"), "not shown: the file is incomplete"),
        ({**image(png()), "data": "%%%"}, "not shown: its data is not valid base64"),
        (image(SAMPLES["application/pdf"]), "not shown: its content is application/pdf"),
        (image(png(), "audio/wav", "audio"), "not shown: its content is image/png"),
        (resource(b"MZ\0\0", declared="application/pdf"), "not shown: the file is not of a supported type"),
    ],
)
def test_everything_else_is_mentioned_in_the_text(block: dict[str, Any], note: str) -> None:
    text = output(TEXT, block)

    assert isinstance(text, str)
    assert text.startswith("before\n[")
    assert note in text
    assert len(text) < 300


def test_a_result_has_a_limited_number_of_files() -> None:
    result = output(*(image(png(str(number))) for number in range(MAX_RESULT_FILES + 2)))

    assert described(result)[:-2] == ["image/png"] * MAX_RESULT_FILES
    assert all(f"at most {MAX_RESULT_FILES} files" in item for item in result[-2:])


def test_long_text_beside_a_file_is_cut() -> None:
    text, file = output({"type": "text", "text": "x" * (MAX_RESULT_CHARS + 5)}, image(png()))

    assert text.endswith("(5 more characters omitted)")
    assert isinstance(file, File)


def test_an_error_contains_no_file() -> None:
    with pytest.raises(ToolError, match=r"^before\n\[image image/png, 0\.\d kB, not shown\]$"):
        output(TEXT, image(png()), isError=True)


@cases(60)
@given(
    blocks=st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=20)),
            st.builds(
                image,
                st.one_of(st.binary(max_size=40), st.sampled_from([*SAMPLES.values()])),
                st.sampled_from([*SAMPLES, "text/html", ""]),
                st.sampled_from(["image", "audio"]),
            ),
            st.builds(resource, st.one_of(st.binary(max_size=40), st.sampled_from([*SAMPLES.values()]))),
        ),
        max_size=6,
    )
)
def test_every_result_is_text_and_supported_files(blocks: list[dict[str, Any]]) -> None:
    result = output(*blocks)

    items = result if isinstance(result, list) else [result]
    assert all(isinstance(item, str | File) for item in items)
    for file in items:
        if isinstance(file, File):
            assert media_type_of(file.data) == file.media_type


# --- servers


def test_an_image_of_a_server_made_with_the_sdk_arrives() -> None:
    async def main() -> Any:
        async with opened(McpServer(command=MODERN)) as world:
            return await world.call("chart")

    text, file = asyncio.run(main())

    assert text == "the chart"
    assert file == File.from_bytes(png("drawn"))


def test_a_large_image_arrives_and_one_above_the_limit_of_a_message_ends_the_connection(tmp_path: Path) -> None:
    large = png("x" * 3_000_000)

    async def main() -> tuple[Any, str]:
        async with opened(raw(tmp_path)) as world:
            (file,) = await world.call("blocks", content=[image(large)])
            with pytest.raises(ToolError) as refused:
                await world.call("blocks", content=[image(png("x" * 13_000_000))])
            return file, refused.value.message

    file, message = asyncio.run(main())

    assert file.data == large
    assert "it sent a line of more than 16 MB" in message
