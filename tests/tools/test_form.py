"""Forms of tool servers: which are refused, and which values fit."""

from __future__ import annotations

from typing import Any

import pytest

from framework.tools.form import checked_form, checked_values, form_fields, form_lines
from framework.tools.http import UrlRefused, ascii_url
from framework.types.errors import ToolError

WORD = {"type": "string"}


def form(message: str = "", **properties: Any) -> dict[str, Any]:
    return checked_form(message, {"type": "object", "properties": properties, "required": list(properties)[:1]})


@pytest.mark.parametrize(
    "secret",
    [
        {"password": WORD},
        {"userPassword": WORD},
        {"API_KEY": WORD},
        {"access-token": WORD},
        {"token": WORD},
        {"x": {"type": "string", "title": "Credit card"}},
        {"x": {"type": "string", "description": "Enter the ｐａｓｓｗｏｒｄ of your account"}},
        {"x": {"type": "string", "title": "请输入密码"}},
        {"pin": {"type": "integer"}},
    ],
)
def test_a_form_that_asks_for_a_secret_is_refused(secret: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="asks for a secret"):
        form(**secret)


def test_the_message_of_a_form_must_not_ask_for_a_secret_either() -> None:
    with pytest.raises(ToolError, match="asks for a secret"):
        form("What is your password?", x=WORD)


@pytest.mark.parametrize("name", ["max_tokens", "pinned", "secretary", "cards", "passenger", "key"])
def test_other_words_are_not_taken_for_secrets(name: str) -> None:
    assert list(form("Pin the message?", **{name: WORD})["properties"]) == [name]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "not an object"),
        ({"type": "object"}, "not an object"),
        ({"properties": {str(n): WORD for n in range(31)}}, "at most 30 fields"),
        ({"properties": {"a": {"type": "object"}}}, "no text, number, choice"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "no text, number, choice"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "no text, number, choice"),
        ({"properties": {"a": {"type": "array", "items": WORD}}}, "list without choices"),
        ({"properties": {"a": {"type": "string", "enum": [str(n) for n in range(201)]}}}, "200 choices"),
        ({"properties": {"a": {"type": "string", "minLength": "x"}}}, "not valid"),
    ],
)
def test_a_form_that_no_one_could_fill_in_is_refused(schema: object, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        checked_form("", schema)


def test_the_choices_of_all_versions_of_the_protocol_are_read() -> None:
    made = form(
        one={"type": "string", "enum": ["a"], "enumNames": ["A"]},
        two={"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
        three={"type": "array", "items": {"enum": ["a", "b"]}},
        four={"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
    )
    fields = {field.name: field for field in form_fields(made)}
    assert [fields[name].choices for name in ("one", "two", "four")] == [(("a", "A"),)] * 3
    assert [fields["one"].read("A"), fields["three"].read("a, b")] == ["a", ["a", "b"]]
    assert checked_values(made, {"one": "a", "three": ["b"]}) == {"one": "a", "three": ["b"]}
    assert next(form_lines(made)) == "one (one of a; required)"


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ({"type": "integer", "maximum": 3}, 2.0, 4),
        ({"type": "string", "format": "email"}, "a@b.c", "a b@c"),
        ({"type": "string", "format": "date"}, "2026-11-28", "28.11."),
        ({"type": "string", "format": "date-time"}, "2026-11-28T09:00:00Z", "noon"),
        ({"type": "string", "format": "uri"}, "https://a.b", "a.b"),
        ({"type": "boolean"}, True, "yes"),
        ({"type": "string", "maxLength": 2}, "ab", "abc"),
    ],
)
def test_values_are_checked_before_they_are_sent(field: dict[str, Any], good: Any, bad: Any) -> None:
    made = form(it=field)
    assert checked_values(made, {"it": good}) == {"it": good}
    with pytest.raises(ToolError, match="it"):
        checked_values(made, {"it": bad})


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("https://Exämple.com/a b?c=ü", "https://xn--exmple-cua.com/a%20b?c=%C3%BC"),
        ("https://аpple.com/", "https://xn--pple-43d.com/"),
    ],
)
def test_an_address_is_shown_in_ascii(given: str, shown: str) -> None:
    assert str(ascii_url(given)) == shown


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https://a@b.com/", "https://a\\b/", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        ascii_url(url)
