"""The text of files is shown without their secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from framework.config.editing import SECRET_SETTINGS, SECRETS_OF_SOURCES, readable_text
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import Settings
from framework.types.tool_servers import Sources

SECRETS = ("first-secret", "second\u00e9secret", "third", "fourth-word", "postgresql://u:p@host/db", "fifth")
SETTINGS = """
# 密钥 of the models
models:
  plain: {model: openai/x, api_key: first-secret}
  quoted:
    model: openai/x
    api_key: "second\\xe9secret"
  folded:
    api_key: >-
      third
      fourth-word
    model: openai/x
  variable: {model: openai/x, api_key: "${KEY}"}
store: {url: 'postgresql://u:p@host/db'}
server:
  port: 8000
  api_keys:
  - fifth
  - {name: web, sha256: "917", roles: [chat]}
"""


def secret_paths(schema: dict[str, Any], node: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the values that a model declares as secret."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    if node.get("format") == "password":
        yield path
    for key in ("anyOf", "oneOf", "prefixItems"):
        for option in node.get(key, ()):
            yield from secret_paths(schema, option, path)
    named = [("*", value) for value in node.get("patternProperties", {}).values()]
    others = [("*", node.get("additionalProperties")), ("*", node.get("items"))]
    inner = [*node.get("properties", {}).items(), *named, *others]
    for name, value in inner:
        if isinstance(value, dict):
            yield from secret_paths(schema, value, f"{path}.{name}" if path else name)


@pytest.mark.parametrize(("model", "known"), [(Settings, SECRET_SETTINGS), (Sources, SECRETS_OF_SOURCES)])
def test_every_secret_of_a_model_is_known(model: Any, known: tuple[str, ...]) -> None:
    schema = model.model_json_schema()
    found = {*secret_paths(schema, schema)}
    assert len(found) >= len(known)
    for path in found:
        assert any(f"{path}.".startswith(f"{name}.") for name in known), path


def test_secrets_are_masked_and_everything_else_is_as_in_the_file() -> None:
    found = readable_text(SETTINGS_FILE, SETTINGS.encode())
    assert found.text is not None
    assert found.is_masked
    assert not any(word in found.text for word in SECRETS)
    for kept in ("密钥 of the models", "model: openai/x", "${KEY}", "port: 8000", "name: web", "roles: [chat]"):
        assert kept in found.text
    assert found.text.count("***") == 6
    assert len(found.text.splitlines()) == len(SETTINGS.splitlines()) - 2, "the folded text is one line"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("server: {api_keys: lonely}\n", "lonely"),
        ("server: {api_keys: {a: {b: deep}}}\n", "deep"),
        ("server:\n  api_keys:\n  - sha256: abc\n    tokn: misspelled\n", "misspelled"),
        ("models: {a: {api_key: [x, listed]}}\n", "listed"),
        ("store:\n  url: ${URL:-memory-default}\n", "memory-default"),
        ("sever:\n  api_keys: [s0m3thing-that-looks-like-a-key-4f5a]\n", "s0m3thing-that-looks-like-a-key-4f5a"),
        ("# api_key: sk-0123456789abcdef0123\nmodel: x\n", "sk-0123456789abcdef0123"),
    ],
)
def test_misplaced_secrets_are_masked_too(text: str, secret: str) -> None:
    found = readable_text(SETTINGS_FILE, text.encode())
    assert found.text is not None
    assert secret not in found.text


@pytest.mark.parametrize("text", ["server: {api_keys: [", "? [a, b]\n: c\n", "a: b: c\n", "[" * 5000])
def test_what_cannot_be_searched_for_secrets_is_not_shown(text: str) -> None:
    found = readable_text(SETTINGS_FILE, text.encode())
    assert found.text is None
    assert "not valid YAML" in (found.reason or "")


def test_tool_servers_keep_their_environment_and_headers_secret() -> None:
    text = "version: 1\nmcp_servers:\n  docs:\n    command: [serve]\n    env: {TOKEN: hidden, LEVEL: '${LEVEL}'}\n"
    found = readable_text("plugins/docs.yaml", text.encode()).text
    assert found == text.replace("hidden", "***")


def test_agent_files_without_secrets_are_shown_exactly() -> None:
    text = "\ufeffversion: 1\r\nname: a # 中文\r\n"
    assert readable_text("agents.d/a.yaml", text.encode()).text == text
    assert readable_text("agents.d/a.yaml", b"name: \xff").reason == "it is not UTF-8: byte 0xff at 6"
    masked = readable_text("agents.d/a.yaml", b"instructions: use sk-0123456789abcdef0123\n")
    assert (masked.text, masked.is_masked) == ("instructions: use ***\n", True)
