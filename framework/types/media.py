"""Parts of messages: text, and references to images, PDFs and audio, whose bytes the store contains by digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from framework.types.frozen import Frozen

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
        return f"[{' '.join(filter(None, (self.media_type, file_size(self.size), self.name)))}]"


MessagePart = Annotated[TextPart | MediaPart, Field(discriminator="type")]


def joined_text(parts: Iterable[TextPart | MediaPart]) -> str:
    """Return the text of the text parts, one paragraph each. It is the `content` of a message with these parts."""
    return "\n\n".join(part.text for part in parts if isinstance(part, TextPart))


def described_text(parts: Iterable[TextPart | MediaPart]) -> str:
    """Return the text of the parts, with a description in place of each file."""
    return "\n\n".join(part.text if isinstance(part, TextPart) else part.description for part in parts)


def file_size(size: int) -> str:
    """Return a number of bytes as people read it, such as `12.3 kB`."""
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
