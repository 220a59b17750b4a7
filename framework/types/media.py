"""Images, PDFs and audio in messages, and how their bytes tell their format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from framework.types.frozen import Frozen

_MP3 = re.compile(rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]")
"""An ID3 tag, or the first frame of MPEG audio of layer 2 or 3."""
_SIGNATURES = (
    ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ("image/gif", re.compile(rb"GIF8[79]a")),
    ("image/webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
    ("application/pdf", re.compile(rb"%PDF-")),
    ("audio/wav", re.compile(rb"RIFF....WAVE", re.DOTALL)),
    ("audio/ogg", re.compile(rb"OggS")),
    ("audio/flac", re.compile(rb"fLaC")),
    ("audio/mpeg", _MP3),
)
_ENDS = {"image/png": b"IEND", "image/jpeg": b"\xff\xd9", "image/gif": b";", "application/pdf": b"%%EOF"}
"""Bytes near the end of a complete file."""
_MAX_END_BYTES = 4096
"""Bytes that may follow the end: some programs append data."""
_STREAMED = (0, 0xFFFFFFFF)
"""Length in the header of a RIFF file whose author did not know it."""

_PIXELS_PER_TOKEN, _MAX_IMAGE_TOKENS = 750, 1600
_TOKENS_PER_PAGE, _BYTES_PER_PAGE, _MAX_ASSUMED_PAGES = 1500, 100_000, 10
_MAX_PAGES, _MAX_SEGMENTS = 10_000, 1000
"""Pages of a PDF that are counted, and segments of a JPEG that are skipped: hostile files have millions."""
_TOKENS_PER_SECOND = 32
_BYTES_PER_SECOND = {"audio/wav": 32_000, "audio/mpeg": 16_000, "audio/ogg": 12_000, "audio/flac": 60_000}
"""Typical rates; only WAV files state their own in a fixed place."""
_PAGE = re.compile(rb"/Type\s*/Page\b")
_JPEG_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def media_type_of(data: bytes) -> str | None:
    """Return the media type of a file's content, a key of `MEDIA_TYPES`; None if it is none of them."""
    return next((media_type for media_type, signature in _SIGNATURES if signature.match(data)), None)


def is_complete(data: bytes, media_type: str) -> bool:
    """Return whether a file has its end, as far as its format marks it."""
    if data.startswith(b"RIFF"):
        length = int.from_bytes(data[4:8], "little")
        return length in _STREAMED or len(data) >= length + 8
    end = _ENDS.get(media_type)
    return end is None or data.find(end, max(0, len(data) - _MAX_END_BYTES)) >= 0


def estimated_tokens(data: bytes, media_type: str) -> int:
    """Return the estimated number of tokens of a file in a request."""
    if media_type.startswith("image/"):
        width, height = image_size(data, media_type)
        tokens = ceil(width * height / _PIXELS_PER_TOKEN) or _MAX_IMAGE_TOKENS
        return min(tokens, _MAX_IMAGE_TOKENS)
    if media_type == "application/pdf":
        counted = sum(1 for _ in islice(_PAGE.finditer(data), _MAX_PAGES))  # 0 if the list of pages is compressed
        pages = counted or min(ceil(len(data) / _BYTES_PER_PAGE), _MAX_ASSUMED_PAGES)
        return pages * _TOKENS_PER_PAGE
    stated = int.from_bytes(data[28:32], "little") if media_type == "audio/wav" else 0
    return ceil(len(data) / (stated or _BYTES_PER_SECOND[media_type])) * _TOKENS_PER_SECOND


def image_size(data: bytes, media_type: str) -> tuple[int, int]:
    """Return width and height of an image in pixels, or zeros if its header does not contain them."""
    match media_type:
        case "image/png":
            return _number(data[16:20]), _number(data[20:24])
        case "image/gif":
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp":
            return _webp_size(data)
        case _:
            return _jpeg_size(data)


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            size = int.from_bytes(data[26:28], "little"), int.from_bytes(data[28:30], "little")
            return size[0] & 0x3FFF, size[1] & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the size in the first frame header of a JPEG, after the segments before it."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            break
        if data[at + 1] in _JPEG_SIZE_MARKERS:
            return _number(data[at + 7 : at + 9]), _number(data[at + 5 : at + 7])
        at += 2 + _number(data[at + 2 : at + 4])
    return 0, 0


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


MediaKind = Literal["image", "pdf", "audio"]
MEDIA_TYPES: Mapping[str, MediaKind] = {
    "image/png": "image",
    "image/jpeg": "image",
    "image/gif": "image",
    "image/webp": "image",
    "application/pdf": "pdf",
    "audio/wav": "audio",
    "audio/mpeg": "audio",
    "audio/ogg": "audio",
    "audio/flac": "audio",
}
"""Media types that messages can contain. No provider accepts all of them: OpenAI takes WAV and MP3 as audio, Anthropic
takes none, Gemini takes no GIF."""
MAX_MEDIA_BYTES = 20_000_000
"""Size limit of one file. No provider accepts more in a request without an upload."""
MAX_REQUEST_MEDIA_BYTES = 24_000_000
"""Size limit of all files in one request: 32 MB in base64, which is what the strictest provider accepts."""
_UNITS = ((1_000_000, "MB"), (1000, "kB"))


class TextPart(Frozen):
    """Text within a message that also contains files."""

    type: Literal["text"] = Field(default_factory=lambda _: "text")
    """Always `text`. Not a plain default, which JSON without defaults would omit: `type` tells the parts apart."""
    text: str
    """The text."""


class MediaPart(Frozen):
    """An image, PDF or audio file within a message. It refers to the bytes and does not contain them."""

    type: Literal["media"] = Field(default_factory=lambda _: "media")
    """Always `media`."""
    media_type: str
    """Media type, a key of `MEDIA_TYPES`, such as `image/png`."""
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the bytes, under which the store contains them."""
    size: Annotated[int, Field(ge=0)]
    """Number of bytes."""
    name: str | None = None
    """File name, for people and for models that accept one."""
    tokens: Annotated[int, Field(ge=0)] = 0
    """Estimated number of tokens that the file takes in a request; 0 if unknown."""

    @property
    def kind(self) -> MediaKind:
        """Kind of the file, which decides whether a model accepts it; `image` for an unknown media type."""
        return MEDIA_TYPES.get(self.media_type, "image")

    @property
    def description(self) -> str:
        """The file in text: its type, size and name, such as `[image/png 12.3 kB chart.png]`."""
        return description_of(self.media_type, self.size, self.name)


MessagePart = Annotated[TextPart | MediaPart, Field(discriminator="type")]


def joined_text(parts: Iterable[TextPart | MediaPart]) -> str:
    """Return the text of the text parts, one paragraph each. It is the `content` of a message with these parts."""
    return "\n\n".join(part.text for part in parts if isinstance(part, TextPart))


def described_text(parts: Sequence[TextPart | MediaPart]) -> str:
    """Return the text of the parts, with a description in place of each file that the text does not mention yet."""
    text = joined_text(parts)
    texts = (part.text if isinstance(part, TextPart) else part.description for part in parts)
    return "\n\n".join(each for each, part in zip(texts, parts, strict=True) if _adds_to(text, part))


def without_files(parts: Sequence[TextPart | MediaPart], omitted: Collection[MediaPart]) -> list[TextPart | MediaPart]:
    """Return the parts with a description in place of each omitted file that the text does not mention yet."""
    text = joined_text(parts)
    shown = (part for part in parts if part not in omitted or _adds_to(text, part))
    return [TextPart(text=part.description) if part in omitted else part for part in shown]  # type: ignore[union-attr]  # only files are omitted


def _adds_to(text: str, part: TextPart | MediaPart) -> bool:
    """Return whether the description of a part adds anything; the results of tools mention their files already."""
    return isinstance(part, TextPart) or part.description not in text


def description_of(media_type: str, size: int, name: str | None) -> str:
    """Return a file in text, such as `[image/png 12.3 kB chart.png]`."""
    return f"[{' '.join(filter(None, (media_type, file_size(size), name)))}]"


def file_size(size: int) -> str:
    """Return a number of bytes as people read it, such as `12.3 kB`."""
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
