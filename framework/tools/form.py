"""Forms of tool servers: which of them a person is shown, and which values answer them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from framework.tools.arguments import ArgumentsError, SchemaArguments
from framework.types.errors import ConfigError, ToolError
from framework.types.text import did_you_mean, one_line, shorten, visible

MAX_FIELDS = 30
MAX_CHOICES = 200
_MAX_TEXT = 500
_TYPES = ("string", "integer", "number", "boolean", "array")
_KEYS = {
    *("type", "title", "description", "default", "enum", "enumNames", "oneOf", "format", "pattern", "items"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
}
"""Keys of a field that the protocol knows; others have no effect."""
_FORMATS: Mapping[str, str] = {
    "email": "an e-mail address",
    "uri": "a URL",
    "date": "a date such as 2026-11-28",
    "date-time": "a date and time such as 2026-11-28T09:30:00Z",
}
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRETS = (
    "passwords?|passwd|passphrase|passcode|pwd|passwort|kennwort|cvv|cvc|ssn|iban|t?otp|"
    "api ?key|(?:access|secret|private) key|client secret|(?:access|api|auth|bearer|refresh|session) token|"
    "(?:credit|debit) card|card number|(?:security|verification|one time) code|social security|(?:recovery|seed) phrase"
)
_SECRET = re.compile(rf"\b(?:{_SECRETS})\b")
"""Words for secrets in any text of a form."""
_SECRET_FIELD = re.compile(rf"\b(?:{_SECRETS}|secrets?|token|pin|credentials?|cookie|pan)\b")
"""Words for secrets in the name or the title of a field."""
_SECRETS_ELSEWHERE = ("密码", "口令", "验证码", "パスワード", "пароль", "contraseña", "mot de passe")


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form."""

    name: str
    title: str
    description: str
    kind: Literal["string", "integer", "number", "boolean", "array"]
    choices: tuple[tuple[str, str], ...]
    """Possible values with their titles; empty if any value is accepted."""
    required: bool
    default: Any
    format: str

    @property
    def expected(self) -> str:
        """What a person writes, such as `a whole number`."""
        return {
            "integer": "a whole number",
            "number": "a number",
            "boolean": "yes or no",
            "array": "choices, separated by commas",
        }.get(self.kind) or _FORMATS.get(self.format, "a text")

    def read(self, text: str) -> Any:
        """Return the value that a person wrote, as JSON data; raise ToolError if it is of another type."""
        text = text.strip()
        try:
            match self.kind:
                case "integer":
                    return int(text)
                case "number":
                    return float(text)
                case "boolean":
                    return {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}[text.lower()]
                case "array":
                    return [self._choice(part.strip()) for part in text.split(",") if part.strip()]
        except (ValueError, KeyError):
            raise ToolError(f"{self.name}: expected {self.expected}, got {shorten(text, 80)!r}") from None
        return self._choice(text)

    def _choice(self, text: str) -> str:
        """Return the value of a choice that is written as its value or its title."""
        return next((value for value, title in self.choices if text in (value, title)), text)


def form_fields(form: Mapping[str, Any]) -> Iterator[FormField]:
    """Yield the fields of a form that `checked_form` returned."""
    required = form.get("required", ())
    for name, spec in form["properties"].items():
        yield FormField(
            name,
            str(spec.get("title") or name),
            str(spec.get("description") or ""),
            spec["type"],
            _choices(spec),
            name in required,
            spec.get("default"),
            spec.get("format", ""),
        )


def checked_form(message: str, schema: object) -> dict[str, Any]:
    """Return the known part of a form that a server sent.

    Raises:
        ToolError: the form has nested data, or asks for a secret, which must never pass through a model's host.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(properties, Mapping) or len(properties) > MAX_FIELDS:
        raise ToolError(f"its form is not an object with at most {MAX_FIELDS} fields")
    if word := _secret_in(message):
        raise ToolError(f"its form asks for a secret ({word}), which forms must not contain")
    fields = {str(name): _checked_field(str(name), spec) for name, spec in properties.items()}
    listed = schema.get("required")
    required = [name for name in listed if name in fields] if isinstance(listed, list) else []
    form = {"type": "object", "properties": fields, "required": required}
    try:
        SchemaArguments(form)
    except ConfigError as error:
        raise ToolError(f"its form is not valid: {error.message}") from None
    return form


def _checked_field(name: str, spec: object) -> dict[str, Any]:
    if not isinstance(spec, Mapping) or spec.get("type") not in _TYPES or len(name) > _MAX_TEXT:
        raise ToolError(f"its form has a field that is no text, number, choice or yes and no: {shorten(name, 80)!r}")
    field = {key: value for key, value in spec.items() if key in _KEYS}
    texts = [str(field.get(key) or "") for key in ("title", "description")]
    word = _secret_in(name, texts[0], names=True) or _secret_in(texts[1])
    if word:
        raise ToolError(f"its form asks for a secret ({shorten(name, 80)}: {word}), which forms must not contain")
    if max(map(len, texts)) > 4 * _MAX_TEXT:
        raise ToolError(f"its form has a text of more than {4 * _MAX_TEXT} characters: {shorten(name, 80)}")
    if field["type"] == "array" and not (isinstance(field.get("items"), Mapping) and _choices(field)):
        raise ToolError(f"its form has a list without choices: {shorten(name, 80)}")
    if len(_choices(field)) > MAX_CHOICES:
        raise ToolError(f"its form has a field with more than {MAX_CHOICES} choices: {shorten(name, 80)}")
    return field


def _choices(spec: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the choices of a field with their titles, in the forms of all versions of the protocol."""
    source = spec["items"] if spec["type"] == "array" and isinstance(spec.get("items"), Mapping) else spec
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        pairs = [one for one in titled if isinstance(one, Mapping) and isinstance(one.get("const"), str)]
        return tuple((one["const"], str(one.get("title") or one["const"])) for one in pairs)
    values = source.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return ()
    titles = source.get("enumNames")
    names = titles if isinstance(titles, list) and len(titles) == len(values) else values
    return tuple((value, str(title)) for value, title in zip(values, names, strict=True))


def form_lines(form: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each field, for surfaces that show text."""
    for field in form_fields(form):
        facts = [f"one of {', '.join(value for value, _ in field.choices)}" if field.choices else field.expected]
        if field.kind == "array":
            facts = [f"some of {', '.join(value for value, _ in field.choices)}"]
        facts += ["required"] if field.required else []
        facts += [f"default {json.dumps(field.default, ensure_ascii=False)}"] if field.default is not None else []
        about = ": ".join(
            text for text in (field.title if field.title != field.name else "", field.description) if text
        )
        yield visible(f"{field.name} ({'; '.join(facts)}){': ' + one_line(about, _MAX_TEXT) if about else ''}")


def visit_lines(url: str, what: str = "visit") -> Iterator[str]:
    """Yield an address that a person is to visit, and its host: look-alike letters show in ASCII."""
    host = urlsplit(url).hostname or ""
    yield f"{what} {visible(url)}"
    foreign = " (it stands for a name with other letters: make sure that it is the right one)" if "xn--" in host else ""
    yield f"{'host':{len(what)}} {host}{foreign}"


def _secret_in(*texts: str, names: bool = False) -> str:
    """Return the first word for a secret in the texts; empty if there is none."""
    for text in texts:
        plain = unicodedata.normalize("NFKC", text)
        if found := next((word for word in _SECRETS_ELSEWHERE if word in plain.lower()), ""):
            return found
        words = " ".join(_WORD.findall(_HUMP.sub(" ", plain))).lower()
        if match := (_SECRET_FIELD if names else _SECRET).search(words):
            return match[0]
    return ""


def checked_values(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form with its defaults, as they are sent to the server.

    Raises:
        ToolError: they do not match the form; the message names the fields.
    """
    fields = {field.name: field for field in form_fields(form)}
    if unknown := next((name for name in values if name not in fields), None):
        raise ToolError(f"the form has no field {shorten(unknown, 80)!r}{did_you_mean(unknown, list(fields))}")
    defaults = {name: field.default for name, field in fields.items() if field.default is not None}
    given = {name: _whole(fields[name], value) for name, value in values.items() if value is not None}
    try:
        bound = SchemaArguments(form).bind(defaults | given)
    except ArgumentsError as error:
        raise ToolError(error.message) from None
    for name, value in bound.items():
        if fields[name].kind == "string" and not _has_format(fields[name].format, value):
            raise ToolError(f"{name}: expected {fields[name].expected}, got {shorten(value, 80)!r}")
    return bound


def _whole(field: FormField, value: Any) -> Any:
    """Return a number without fraction as an integer if the field is one: some clients send 2 as 2.0."""
    return int(value) if field.kind == "integer" and isinstance(value, float) and value.is_integer() else value


def _has_format(name: str, value: str) -> bool:
    try:
        match name:
            case "email":
                account, _, host = value.rpartition("@")
                return bool(account and host) and not any(char.isspace() for char in value)
            case "uri":
                return bool(urlsplit(value).scheme)
            case "date":
                return bool(date.fromisoformat(value))
            case "date-time":
                return bool(datetime.fromisoformat(value))
    except ValueError:
        return False
    return True
