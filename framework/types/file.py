"""`File`: an image, a PDF or audio for a model, with its bytes."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pydantic_core import CoreSchema, core_schema

from framework.types.errors import RequestError
from framework.types.media import (
    MAX_MEDIA_BYTES,
    MediaPart,
    description_of,
    estimated_tokens,
    file_size,
    is_complete,
    media_type_of,
)
from framework.types.text import bytes_digest, fix_surrogates

_SUPPORTED = "PNG, JPEG, GIF or WebP images, PDF, and WAV, MP3, Ogg or FLAC audio"
_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "application/ogg": "audio/ogg",
    "application/x-pdf": "application/pdf",
}
"""Other names of supported media types."""
EXTENSIONS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".flac": "audio/flac",
}
"""Media types by the extensions of file names."""
_UNKNOWN_TYPES = ("application/octet-stream", "binary/octet-stream")
"""Media types that say nothing about the content."""


@dataclass(frozen=True)
class File:
    """An image, a PDF or audio for a model. Pass it in a run's message, or return it from a tool.

    Create one with `File.from_path` or `File.from_bytes`, which check the content.
    """

    data: bytes = field(repr=False)
    """The bytes."""
    media_type: str
    """Media type of the content, such as `image/png`."""
    name: str | None = None
    """File name, for people and for models that accept one."""

    def __post_init__(self) -> None:
        """Check the content; raises RequestError."""
        _check(self.name or "the file", self.data, self.name, self.media_type)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, media_type: str | None = None) -> File:
        """Read a file. Blocks: call it in a thread from a coroutine if the file is large.

        Raises:
            RequestError: the file cannot be read, is too large, or is not what its name says: see `from_bytes`.
        """
        path = Path(path)
        data = _read(path)
        return cls(data, _check(str(path), data, path.name, media_type), path.name)

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str | None = None, media_type: str | None = None) -> File:
        """Return a file with these bytes.

        Args:
            data: the contents.
            name: the file's name. Its extension, if known, must match the content.
            media_type: the declared media type, which must match the content. Default: that of the content.

        Raises:
            RequestError: the content is empty, too large, incomplete or of an unsupported type, or is not what the
                name or the declared type says.
        """
        return cls(bytes(data), _check(name or "the file", data, name, media_type), name)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> CoreSchema:
        """Let models contain files; in JSON a file is its description, so that its bytes are never part of it."""
        as_text = core_schema.plain_serializer_function_ser_schema(lambda file: file.description)
        return core_schema.is_instance_schema(cls, serialization=as_text)

    @property
    def description(self) -> str:
        """The file in text, such as `[image/png 12.3 kB chart.png]`."""
        return description_of(self.media_type, len(self.data), self.name)

    @cached_property
    def part(self) -> MediaPart:
        """The part of a message that refers to the file. Computing it reads all bytes, once."""
        return MediaPart(
            media_type=self.media_type,
            digest=bytes_digest(self.data),
            size=len(self.data),
            name=fix_surrogates(self.name) if self.name else self.name,
            tokens=estimated_tokens(self.data, self.media_type),
        )


def _check(what: str, data: bytes, name: str | None, declared: str | None) -> str:
    """Return the media type of a file's content; raises RequestError. `what` names the file in errors."""
    if not data:
        raise RequestError(f"{what} is empty")
    if len(data) > MAX_MEDIA_BYTES:
        raise RequestError(_too_large(what, len(data)))
    actual = media_type_of(data)
    claims = {
        "is declared as": _canonical_type(declared),
        "has the extension of": EXTENSIONS.get(Path(name or "").suffix.lower()),
    }
    for claim, media_type in claims.items():
        if media_type is not None and media_type != actual:
            found = actual or "not of a supported type"
            raise RequestError(f"{what} {claim} {media_type}, but its content is {found}: correct one of them")
    if actual is None:
        raise RequestError(f"{what} is not of a supported type: use {_SUPPORTED}")
    if not is_complete(data, actual):
        raise RequestError(f"{what} is incomplete: its content is {actual}, but its end is missing")
    return actual


def _canonical_type(declared: str | None) -> str | None:
    """Return a media type in lower case, without parameters and with its usual name; None if it says nothing."""
    bare = (declared or "").partition(";")[0].strip().lower()
    return None if not bare or bare in _UNKNOWN_TYPES else _ALIASES.get(bare, bare)


def _too_large(what: str, size: int) -> str:
    """Return the error message for a file above the size limit."""
    return f"{what} has {file_size(size)}; at most {file_size(MAX_MEDIA_BYTES)} are allowed: make it smaller"


def _read(path: Path) -> bytes:
    """Return the contents of a regular file of at most `MAX_MEDIA_BYTES`; raises RequestError."""
    try:
        status = path.stat()  # before it is opened: a pipe without a writer would block
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
            raise RequestError(f"{path} is {kind}, not a file")
        if status.st_size > MAX_MEDIA_BYTES:
            raise RequestError(_too_large(str(path), status.st_size))
        with path.open("rb") as file:
            return file.read(MAX_MEDIA_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


_INLINE_BYTES = 1_000_000
"""Size from which on files are examined in a thread: computing a digest of 20 MB takes about 30 ms."""


async def media_parts(files: Sequence[File]) -> tuple[MediaPart, ...]:
    """Return the parts of messages that refer to files; large files are examined in a thread."""
    if sum(len(file.data) for file in files) < _INLINE_BYTES:
        return tuple(file.part for file in files)
    return await asyncio.to_thread(lambda: tuple(file.part for file in files))
