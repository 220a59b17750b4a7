"""Parts of messages: text, and references to images, PDFs and audio, whose bytes the store contains by digest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
