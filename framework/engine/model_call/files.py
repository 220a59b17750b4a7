"""The files of a request: loaded before the call, and replaced by descriptions where the model does not get them.

| a file                              | that the model does not accept | beyond the size limit | that was deleted    |
|-------------------------------------|--------------------------------|-----------------------|---------------------|
| in the run's own message            | RequestError                   | RequestError at start | description         |
| of earlier turns and tool results   | description                    | description           | description         |

Fallbacks that do not accept a file of a user's message are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from framework.engine.context.model_clients import NamedClient
from framework.engine.context.run_context import RunContext
from framework.llm.capabilities import accepted_settings
from framework.llm.client import ModelInfo, ModelRequest
from framework.types.errors import ModelError, RequestError
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, MediaKind, MediaPart, file_size
from framework.types.messages import Message

_PLURALS: dict[MediaKind, str] = {"image": "images", "pdf": "PDFs", "audio": "audio"}
_CAPABILITIES: dict[MediaKind, str] = {"image": "images", "pdf": "pdf", "audio": "audio"}


async def with_files(run: RunContext, request: ModelRequest, primary: NamedClient) -> ModelRequest:
    """Return a request with the contents of its files; warn about those that the model does not get.

    Raises:
        RequestError: the model does not accept a file of the run's own message.
    """
    own = run.state.messages[0]
    require_accepted(own.media, primary.name, primary.info)
    refused = {part for part in _files(request.messages, but=own) if primary.info.accepts(part) is False}
    excess = set(_excess_files(request.messages, own, refused, primary.info.max_files))
    messages = tuple(_without(message, refused | excess, but=own) for message in request.messages)
    kept = [part for message in messages for part in message.media]
    media = await run.services.media.load({part.digest for part in kept})
    deleted = [part for part in kept if part.digest not in media]
    limit = file_size(MAX_REQUEST_MEDIA_BYTES)
    if primary.info.max_files is not None:
        limit += f", and at most {primary.info.max_files},"
    for reason, files in (
        (f"{primary.name} does not accept it", refused),
        (f"a request can have {limit} of files, and newer ones need them", excess),
        ("it is no longer stored", deleted),
    ):
        for part in run.services.media.newly_omitted([*files]):
            await run.warn("file_not_sent", f"the model gets only the description {part.description}: {reason}")
    return replace(request, messages=messages, media=media)


def require_accepted(files: Sequence[MediaPart], model: str, info: ModelInfo) -> None:
    """Raise RequestError if a model is known not to accept one of the files, or not so many."""
    if info.max_files is not None and len(files) > info.max_files:
        raise RequestError(f"the message has {len(files)} files; {model} accepts at most {info.max_files}: send fewer")
    for part in files:
        if info.accepts(part) is False:
            what = (
                _PLURALS[part.kind]
                if getattr(info.capabilities, _CAPABILITIES[part.kind]) is False
                else part.media_type
            )
            raise RequestError(
                f"{model} does not accept {what}: {part.description}; choose another model, or, if it does, set"
                f" `{_CAPABILITIES[part.kind]}: true` in the capabilities of its entry below `models` in agentsd.yaml"
            )


def fallback_request(request: ModelRequest, name: str, info: ModelInfo) -> ModelRequest:
    """Return a request for a fallback, without settings that it refuses: for an agent's own model, these are errors.

    Files in tool results that it does not accept are replaced by their descriptions.

    Raises:
        ModelError: it does not accept a file of a user's message.
    """
    request = replace(request, settings=accepted_settings(request.settings, info.capabilities))
    refused = {part for part in _files(request.messages) if info.accepts(part) is False} if request.media else ()
    for message in request.messages if refused else ():
        if message.role == "user" and (part := next((part for part in message.media if part in refused), None)):
            raise ModelError(f"{name} does not accept {part.description}", unavailable=True)
    if not refused:
        return request
    return replace(request, messages=tuple(_without(message, refused) for message in request.messages))


def _files(messages: Iterable[Message], *, but: Message | None = None) -> Iterator[MediaPart]:
    for message in messages:
        if message.parts and message is not but:
            yield from message.media


def _excess_files(
    messages: Sequence[Message], own: Message, refused: Collection[MediaPart], max_files: int | None
) -> Iterator[MediaPart]:
    """Yield the files beyond the limits of a request. The run's own files and the newest ones come first."""
    size = sum(part.size for part in own.media)
    count = len(own.media)
    for part in dict.fromkeys(_files(reversed(messages), but=own)):
        if part not in refused:
            size, count = size + part.size, count + 1
            if size > MAX_REQUEST_MEDIA_BYTES or (max_files is not None and count > max_files):
                yield part


def _without(message: Message, omitted: Collection[MediaPart], *, but: Message | None = None) -> Message:
    if not omitted or not message.parts or message is but or not any(part in omitted for part in message.media):
        return message
    return message.without(omitted)
