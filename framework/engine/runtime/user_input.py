"""A user's message as the caller passes it: text, or texts and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from framework.engine.context.media import media_parts
from framework.engine.runtime.history import may_contain_files, read_history
from framework.llm.openai_format import content_text
from framework.types.errors import RequestError
from framework.types.file import File
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, MediaPart, MessagePart, TextPart, file_size
from framework.types.messages import Message

UserMessage = str | File | Sequence[str | File]
"""A user's message: a text, or texts and files in order, such as `["What is this?", File.from_path("a.png")]`."""


@dataclass(frozen=True, slots=True)
class UserInput:
    """The content of a user's message, in order."""

    content: tuple[str | File | MediaPart, ...]
    """Texts, new files, and references to files that the store contains already."""

    @property
    def files(self) -> tuple[File, ...]:
        """The new files."""
        return tuple(item for item in self.content if isinstance(item, File))

    async def to_message(self) -> Message:
        """Return the message; raises RequestError if its files are too large together."""
        if len(self.content) == 1 and isinstance(self.content[0], str):
            return Message(role="user", content=self.content[0])
        new = iter(await media_parts(self.files))
        message = Message.of_parts(
            "user", [_part(next(new) if isinstance(item, File) else item) for item in self.content]
        )
        if (size := sum(part.size for part in message.media)) > MAX_REQUEST_MEDIA_BYTES:
            limit = file_size(MAX_REQUEST_MEDIA_BYTES)
            raise RequestError(f"the files of the message have {file_size(size)}; at most {limit} together are allowed")
        return message


def read_input(message: object) -> UserInput:
    """Return a caller's message; raises RequestError if it is not a `UserMessage`."""
    if isinstance(message, str | File):
        return UserInput((message,))
    if not isinstance(message, list | tuple):
        raise RequestError(f"message: expected str, File or a list of them, got {type(message).__name__}")
    for number, item in enumerate(message, 1):
        if not isinstance(item, str | File):
            raise RequestError(f"message: item {number} is not str or File, but {type(item).__name__}{_hint(item)}")
    return UserInput(tuple(message))


def input_of_message(message: object) -> UserInput:
    """Return the content of the user's message at the end of a history; raises RequestError for any other message."""
    role = message.role if isinstance(message, Message) else isinstance(message, Mapping) and message.get("role")
    if role != "user":
        raise RequestError("history: without a message, the last entry must be a user message", param="history")
    if not may_contain_files([message]) and isinstance(message, Mapping):
        return UserInput((content_text(message.get("content")),))
    (read,), files = read_history([message])
    return UserInput(tuple(_item(part, files) for part in read.parts) or (read.content,))


def input_of_stored(message: Message) -> UserInput:
    """Return the content of a message whose files are stored."""
    return UserInput(tuple(_item(part, {}) for part in message.parts) or (message.content,))


def _item(part: MessagePart, files: Mapping[str, bytes]) -> str | File | MediaPart:
    """Return a part as an item of a message; a file whose contents are given as a `File`."""
    if isinstance(part, TextPart):
        return part.text
    return File(files[part.digest], part.media_type, part.name) if part.digest in files else part


def _part(item: str | MediaPart) -> MessagePart:
    return TextPart(text=item) if isinstance(item, str) else item


def _hint(item: object) -> str:
    match item:
        case Message() | Mapping():
            return "; pass messages as history=[…]"
        case PathLike():
            return "; pass File.from_path(…)"
        case bytes():
            return "; pass File.from_bytes(…)"
    return ""
