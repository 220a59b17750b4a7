"""Copies and comparisons of frozen data are those that pydantic makes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from framework.types.frozen import Frozen
from tests.support.cases import cases


class Plain(Frozen):
    """Data with a required field, one with a default, and one that is computed once."""

    name: str
    tags: list[str] = []
    size: int = 0

    @cached_property
    def title(self) -> str:
        """The name in capitals."""
        return self.name.upper()


class Private(Plain):
    """Data with a private attribute."""

    _seen: int = PrivateAttr(default=0)


class Open(Plain):
    """Data that accepts unknown keys."""

    model_config = ConfigDict(extra="allow")


NAME = {"name": st.text()}
OTHERS: dict[str, st.SearchStrategy[Any]] = {"tags": st.lists(st.text(), max_size=2), "size": st.integers()}


def contents(model: BaseModel) -> tuple[object, ...]:
    """Return everything that a model consists of."""
    return model.__dict__, model.model_fields_set, model.model_extra, model.__pydantic_private__


@cases(200)
@given(
    kind=st.sampled_from([Plain, Private, Open]),
    fields=st.fixed_dictionaries(NAME, optional=OTHERS),
    update=st.fixed_dictionaries({}, optional={**NAME, **OTHERS}),
    is_titled=st.booleans(),
    deep=st.booleans(),
)
def test_a_copy_is_the_one_that_pydantic_makes(
    kind: type[Plain], fields: dict[str, Any], update: dict[str, Any], is_titled: bool, deep: bool
) -> None:
    more = {"more": 1} if kind is Open else {}
    original = kind(**fields, **more)
    before = contents(original.model_copy(deep=True))
    if is_titled:
        assert original.title == original.name.upper()
    copied = original.model_copy(update=update, deep=deep)
    expected = BaseModel.model_copy(original, update=update, deep=deep)
    assert type(copied) is kind
    assert copied == expected
    assert contents(copied) == contents(expected)
    assert (copied.tags is original.tags) == (expected.tags is original.tags)
    assert contents(original)[1:] == before[1:]


def test_a_copy_is_frozen() -> None:
    copied = Plain(name="a").model_copy(update={"size": 1})
    with pytest.raises(ValidationError, match="frozen"):
        copied.size = 2  # type: ignore[misc]  # that is the test
    assert copied.model_copy().size == 1


def test_a_copy_without_changes_shares_nothing_that_can_change() -> None:
    original = Plain(name="a")
    assert original.model_copy().__dict__ is not original.__dict__
    assert original.model_copy().model_fields_set is not original.model_fields_set


@cases(200)
@given(
    kinds=st.tuples(*[st.sampled_from([Plain, Private, Open])] * 2),
    fields=st.tuples(*[st.fixed_dictionaries({"name": st.sampled_from("ab")}, optional=OTHERS)] * 2),
    extra=st.tuples(*[st.sampled_from([{}, {"more": 1}])] * 2),
    titled=st.tuples(st.booleans(), st.booleans()),
    seen=st.tuples(*[st.integers(0, 1)] * 2),
)
def test_two_are_equal_if_pydantic_says_so(
    kinds: tuple[type[Plain], type[Plain]],
    fields: tuple[dict[str, Any], dict[str, Any]],
    extra: tuple[dict[str, int], dict[str, int]],
    titled: tuple[bool, bool],
    seen: tuple[int, int],
) -> None:
    one, other = (
        kind(**(values | more if kind is Open else values))
        for kind, values, more in zip(kinds, fields, extra, strict=True)
    )
    for model, is_titled, number in zip((one, other), titled, seen, strict=True):
        if is_titled:
            assert model.title
        if isinstance(model, Private):
            model._seen = number
    assert (one == other) is BaseModel.__eq__(one, other)
    assert (one == fields[0]) is False
    assert one == one.model_copy()
