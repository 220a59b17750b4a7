"""Messages with parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from framework.types.file import File
from framework.types.media import MediaPart, MessagePart, TextPart
from framework.types.messages import Message
from tests.support.cases import cases
from tests.support.media import SAMPLES, png

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PARTS = st.one_of(
    st.builds(TextPart, text=TEXTS),
    st.sampled_from([File.from_bytes(data).part for data in SAMPLES.values()]),
    st.builds(lambda name: File.from_bytes(png(), name=name).part, TEXTS.filter(lambda name: "." not in name)),
)


@given(st.lists(PARTS))
@cases(80)
def test_any_parts_round_trip_through_json(parts: list[MessagePart]) -> None:
    message = Message.of_parts("user", parts)
    for text in (message.model_dump_json(), message.model_dump_json(exclude_defaults=True)):
        assert Message.model_validate_json(text) == message
    assert message.media == tuple(part for part in parts if isinstance(part, MediaPart))
    assert message.as_text.content == message.description
    assert all(part.description in message.as_text.content for part in message.media)


def test_a_message_of_text_has_no_parts() -> None:
    message = Message.of_parts("user", [TextPart(text="a"), TextPart(text="b")])
    assert message == Message(role="user", content="a\n\nb")
    assert message.model_dump_json(exclude_defaults=True) == '{"role":"user","content":"a\\n\\nb"}'
    assert message.as_text is message


def test_the_content_must_be_the_text_of_the_parts() -> None:
    with pytest.raises(ValidationError, match="content must be the text of the text parts"):
        Message(role="user", content="other", parts=(TextPart(text="a"),))
    with pytest.raises(ValidationError, match="should match pattern"):
        MediaPart(media_type="image/png", digest="../../etc/passwd", size=1)
