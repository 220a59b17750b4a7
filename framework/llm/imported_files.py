"""Files in conversations of provider APIs: their contents, and the parts of messages that refer to them.

A file must be in the data itself, in base64. Nothing is fetched from URLs or from a provider's storage.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from framework.types.file import File
from framework.types.media import MediaPart, MessagePart, TextPart
from framework.types.text import shorten

_URL_SAFE = str.maketrans("-_", "+/")
_MAX_QUOTED_CHARS = 80


class ImportedFiles:
    """The files of one conversation, collected while it is read. Invalid ones raise ValueError or RequestError."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        """Contents by digest."""

    def add(self, base64: object, media_type: object, name: object = None) -> MediaPart:
        """Add a file in base64, and return the part of a message that refers to it."""
        if not isinstance(base64, str):
            raise ValueError("a file has no contents in base64")
        text = base64.translate(_URL_SAFE)
        try:
            contents = b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            raise ValueError("the contents of a file are not valid base64") from None
        file = File.from_bytes(
            contents,
            name=name if isinstance(name, str) and name else None,
            media_type=media_type if isinstance(media_type, str) else None,
        )
        self.contents[file.part.digest] = contents
        return file.part

    def chat_part(self, part: Mapping[str, Any]) -> MessagePart:
        """Return a part of a chat message."""
        match part.get("type"):
            case "text":
                return TextPart(text=str(part["text"]))
            case "image_url":
                image = part["image_url"]
                return self._data_url(image if isinstance(image, str) else image["url"])
            case "file" if "file_data" in part["file"]:
                return self._data_url(part["file"]["file_data"], part["file"].get("filename"))
            case "input_audio":
                sound = part["input_audio"]
                return self.add(sound["data"], f"audio/{sound['format']}")
            case kind:
                raise ValueError(unsupported(kind))

    def claude_part(self, block: Mapping[str, Any]) -> MessagePart:
        """Return a block of a Claude message or tool result."""
        if block["type"] == "text":
            return TextPart(text=str(block["text"]))
        if block["type"] not in ("image", "document"):
            raise ValueError(unsupported(block["type"]))
        source = block["source"]
        match source["type"]:
            case "base64":
                return self.add(source["data"], source["media_type"], block.get("title"))
            case "text":
                return TextPart(text=str(source["data"]))
            case "url":
                raise ValueError(_remote(source["url"]))
            case kind:
                raise ValueError(unsupported(kind))

    def gemini_part(self, part: Mapping[str, Any]) -> MessagePart:
        """Return a part of a message or tool result of Gemini, whose keys have two spellings."""
        if isinstance(text := part.get("text"), str):
            return TextPart(text=text)
        inline, remote = (part.get(f"{kind}_data", part.get(f"{kind}Data")) for kind in ("inline", "file"))
        if isinstance(inline, Mapping):
            return self.add(inline.get("data"), inline.get("mime_type", inline.get("mimeType")))
        if isinstance(remote, Mapping):
            raise ValueError(_remote(remote.get("file_uri", remote.get("fileUri"))))
        raise ValueError(unsupported(next((key for key, value in part.items() if value is not None), "nothing")))

    def _data_url(self, url: object, name: object = None) -> MediaPart:
        """Add the file in a data URL; `file_data` is also allowed to be base64 alone."""
        text = str(url)
        head, comma, data = text.partition(",")
        if not comma and ":" not in head:
            return self.add(text, None, name)
        if not head.startswith("data:") or not head.endswith(";base64"):
            raise ValueError(_remote(text))
        return self.add(data, head.removeprefix("data:").removesuffix(";base64"), name)


def _remote(url: object) -> str:
    shown = shorten(str(url).partition("?")[0], _MAX_QUOTED_CHARS)
    return f"the file {shown!r} is not in the data, and nothing is fetched: replace it by a data URL with its contents"


def unsupported(kind: object) -> str:
    """Return the error for content of a kind that no message can contain."""
    return f"content of type {shorten(str(kind), _MAX_QUOTED_CHARS)!r} is not supported: use text, or files in base64"
