"""Files for models: media types by content, and what is rejected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import File, RequestError
from framework.types.file import EXTENSIONS
from framework.types.media import MAX_MEDIA_BYTES, MEDIA_TYPES
from tests.support.cases import cases
from tests.support.media import SAMPLES, jpeg, pdf, png, wav


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_a_file_is_recognised_by_its_content(tmp_path: Path, media_type: str) -> None:
    data = SAMPLES[media_type]
    assert File.from_bytes(data).media_type == media_type
    for extension in (extension for extension, known in EXTENSIONS.items() if known == media_type):
        path = tmp_path / f"a{extension.upper()}"
        path.write_bytes(data)
        file = File.from_path(path, media_type=f"{media_type}; q=1")
        assert (file.data, file.media_type, file.name) == (data, media_type, path.name)
        assert file.part.size == len(data)
        assert file.part.description == f"[{media_type} {file.part.description.split(' ', 1)[1]}"
        assert str(data) not in repr(file)


def test_what_is_not_a_usable_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes(png()[:-12])
    (tmp_path / "big.png").write_bytes(png() + bytes(50_000_000))
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "page.pdf").write_text("<html>")
    (tmp_path / "lie.png").write_bytes(jpeg())
    expected = {
        "missing.png": "cannot read {}: No such file or directory",
        "": "{} is a folder, not a file",
        "pipe.png": "{} is a device, pipe or socket, not a file",
        "loop.png": "cannot read {}: Too many levels of symbolic links",
        "empty.png": "{} is empty",
        "cut.png": "{} is incomplete: its content is image/png, but its end is missing",
        "big.png": "{} has 50.0 MB; at most 20.0 MB are allowed: make it smaller",
        "a.txt": "{} is not of a supported type: use PNG, JPEG, GIF or WebP images, PDF, and WAV, MP3, Ogg or FLAC "
        "audio",
        "page.pdf": "{} has the extension of application/pdf, but its content is not of a supported type: "
        "correct one of them",
        "lie.png": "{} has the extension of image/png, but its content is image/jpeg: correct one of them",
        "a\0b": "cannot read {}: embedded null byte",
    }
    for name, message in expected.items():
        path = tmp_path / name
        with pytest.raises(RequestError) as caught:
            File.from_path(path)
        assert str(caught.value) == message.format(path)
    with pytest.raises(RequestError, match=r"^/dev/zero is a device, pipe or socket, not a file$"):
        File.from_path("/dev/zero")


def test_a_declared_media_type_must_match() -> None:
    with pytest.raises(RequestError, match=r"^the file is declared as image/png, but its content is image/jpeg"):
        File.from_bytes(jpeg(), media_type="IMAGE/PNG")
    assert File.from_bytes(jpeg(), media_type="image/jpg").media_type == "image/jpeg"
    assert File.from_bytes(jpeg(), media_type="application/octet-stream").media_type == "image/jpeg"
    with pytest.raises(RequestError, match=r"^shot has 20.0 MB; at most"):
        File.from_bytes(png() + bytes(MAX_MEDIA_BYTES), name="shot")


def test_tokens_follow_the_documented_formulas() -> None:
    assert File.from_bytes(png(width=750, height=100)).part.tokens == 100
    assert File.from_bytes(jpeg(width=300, height=50)).part.tokens == 20
    assert File.from_bytes(png(width=5000, height=4000)).part.tokens == 1600
    assert File.from_bytes(pdf(3)).part.tokens == 4500
    assert File.from_bytes(pdf(0) + bytes(4000)).part.tokens == 1500
    assert File.from_bytes(b"%PDF-1.7" + bytes(5_000_000) + b"%%EOF").part.tokens == 15_000
    assert File.from_bytes(wav(2)).part.tokens == 3 * 32  # its header counts as well


@given(st.sampled_from([*SAMPLES.values(), b""]), st.integers(0, 60), st.binary(max_size=40))
@cases(60)
def test_any_bytes_are_a_file_or_a_request_error(sample: bytes, length: int, more: bytes) -> None:
    try:
        file = File.from_bytes(sample[:length] + more)
    except RequestError as error:
        message = str(error)
    else:
        message = "the file " + file.part.description
    assert message.startswith("the file ")
