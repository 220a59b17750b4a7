"""`read_file` of images, PDFs and audio: a file for the model, and a clear error for what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.tools.builtin.files import read_file
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from framework.types.file import File
from framework.types.media import MAX_MEDIA_BYTES
from tests.support.media import SAMPLES, pdf, png

NAMES = {media_type: f"a.{media_type.rpartition('/')[2]}" for media_type in SAMPLES} | {"audio/mpeg": "a.mp3"}


def read(folder: Path, name: str, content: bytes) -> object:
    (folder / name).write_bytes(content)
    return read_file(name, context=ToolContext(run_id="r", call_id="c", agent="a", base_path=folder))


@pytest.mark.parametrize("media_type", SAMPLES)
def test_each_supported_type_is_a_file_for_the_model(tmp_path: Path, media_type: str) -> None:
    data = SAMPLES[media_type]

    assert read(tmp_path, NAMES[media_type], data) == File.from_bytes(data, name=NAMES[media_type])


def test_a_large_image_is_read_completely(tmp_path: Path) -> None:
    data = png("x" * 3_000_000)

    file = read(tmp_path, "chart.png", data)

    assert isinstance(file, File)
    assert file.data == data


def test_the_content_decides_if_the_extension_is_wrong(tmp_path: Path) -> None:
    file = read(tmp_path, "chart.jpg", png())

    assert isinstance(file, File)
    assert (file.media_type, file.name) == ("image/png", None)


@pytest.mark.parametrize("text", ["ID3 is a format", "GIF89a is an old one", "fLaC, OggS"])
def test_a_text_that_begins_like_a_file_stays_text(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "notes.txt", text.encode()) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png()[:40], "the file is incomplete: its content is image/png, but its end is missing"),
        (pdf()[:20], "the file is incomplete"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 2 * MAX_MEDIA_BYTES, r"the file has 40.0 MB: at most 20.0 MB can be read"),
        (b"PK\3\4\0\0", r"the file is binary \(6 bytes\), not text: it cannot be read"),
    ],
    ids=["cut image", "cut PDF", "too large", "archive"],
)
def test_other_binary_files_are_one_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        read(tmp_path, "data", content)
