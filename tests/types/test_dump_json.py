"""Models as JSON that can be encoded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import PydanticSerializationError

from framework.types.events import dump_json
from framework.types.frozen import Frozen


class Item(Frozen):
    text: str = ""
    data: Any = None


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Item(text="é"), '{"text":"é"}'),
        (Item(text="a\ud800"), '{"text":"a\ufffd"}'),
        (Item(text="\ud83d\ude00"), '{"text":"😀"}'),
        (Item(data={"\ud800": [Item(text="\ud800"), 10**40, float("nan")]}), None),
    ],
)
def test_half_of_a_surrogate_pair_is_replaced(item: Item, expected: str | None) -> None:
    expected = expected or '{"data":{"\ufffd":[{"text":"\ufffd"},1%s,null]}}' % ("0" * 40)
    assert dump_json(item, exclude_defaults=True) == expected


def test_what_is_no_json_data_is_an_error() -> None:
    with pytest.raises(PydanticSerializationError):
        dump_json(Item(data=object()))
