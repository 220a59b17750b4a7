"""Event streams of AWS, encoded by hand: each frame has lengths, headers, a payload and two checksums."""

from __future__ import annotations

import base64
import json
import struct
from binascii import crc32
from dataclasses import replace

from tests.support.wire import Answer, raw

EVENT_STREAM = "application/vnd.amazon.eventstream"
_STRING = 7
"""The type of a header's value."""
_PRELUDE_BYTES, _CHECKSUM_BYTES = 12, 4


def frame(payload: bytes, **headers: str) -> bytes:
    """Return one frame; `message_type="event"` becomes the header `:message-type`."""
    encoded = b"".join(_header(f":{name.replace('_', '-')}", value) for name, value in headers.items())
    length = _PRELUDE_BYTES + len(encoded) + len(payload) + _CHECKSUM_BYTES
    prelude = struct.pack("!II", length, len(encoded))
    checked = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return checked + struct.pack("!I", crc32(checked))


def streamed_in_frames(answer: Answer) -> Answer:
    """Return an answer of the Messages API as Bedrock streams it: each event in base64, in a frame."""
    events = [event.partition("data: ")[2] for event in answer.streamed]
    frames = [
        frame(
            json.dumps({"bytes": base64.b64encode(event.encode()).decode()}).encode(),
            event_type="chunk",
            content_type="application/json",
            message_type="event",
        )
        for event in events
    ]
    return replace(raw(200, b"".join(frames), EVENT_STREAM), chunked=True)


def exception_frame(kind: str, message: str) -> bytes:
    """Return the frame of an error within a stream, such as `throttlingException`."""
    return frame(
        json.dumps({"message": message}).encode(),
        exception_type=kind,
        content_type="application/json",
        message_type="exception",
    )


def _header(name: str, value: str) -> bytes:
    return struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING, len(value)) + value.encode()
