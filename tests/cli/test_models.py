"""`agentsd models check`: what is assumed of a model and from where, and which assumptions its server confirms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.commands import agentsd, agentsd_process
from tests.support.wire import Answer, calls, failed, says, wire_server

ALIASES = """\
models:
  own:
    model: openai/my-model
    base_url: "http://127.0.0.1:9/v1"
    capabilities: {late_system: true, call_ids: any}
  chat: {model: openai/gpt-5.4-mini, api: chat}
  far: {model: openai/open-nemo, base_url: "https://api.mistral.ai/v1"}
"""


def assumed(root: Path, name: str) -> dict[str, tuple[Any, str]]:
    """Return the value and the source of each assumption, as JSON output has them."""
    (root / "agentsd.yaml").write_text(ALIASES)
    done = agentsd("models", "check", name, "--json", cwd=root)
    assert done.returncode == 0, done.stderr
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["assumed"]}


def test_each_assumption_is_shown_with_its_source(tmp_path: Path) -> None:
    found = assumed(tmp_path, "own")
    assert found["late_system"] == (True, "agentsd.yaml: models.own.capabilities")
    assert found["repeated_roles"] == (False, "unknown: strictest form")
    assert "refused_settings" not in found
    value, source = assumed(tmp_path, "far")["call_ids"]
    assert (value, source.startswith("https://docs.mistral.ai/")) == ("short", True)
    assert source.endswith(" (2026-11-27, mistral/*)")
    assert "late_system" not in assumed(tmp_path, "anthropic/claude-opus-5")


def test_late_tools_are_assumed_where_they_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assumed(tmp_path, "openai/gpt-5.4-mini")["late_tools"][0] is True
    assert "late_tools" not in assumed(tmp_path, "chat"), "chat completions have no place for them"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example.com/v1")
    assert "late_tools" not in assumed(tmp_path, "openai/gpt-5.4-mini")


def test_the_table_names_the_server(tmp_path: Path) -> None:
    (tmp_path / "agentsd.yaml").write_text(ALIASES)
    done = agentsd("models", "check", "far", cwd=tmp_path)
    assert "openai/open-nemo at https://api.mistral.ai/v1 (the server of mistral)" in done.stdout
    assert "late_system" in done.stdout
    assert "no" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [("ownn", "unknown model 'ownn'; did you mean own?"), ("offline", "offline is a rule-based stand-in")],
)
def test_a_model_that_cannot_be_checked_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "agentsd.yaml").write_text(ALIASES)
    done = agentsd("models", "check", name, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


def checked(
    root: Path, answer: Any, capabilities: str = "{}", *options: str, pages: Mapping[str, Any] | None = None
) -> tuple[CompletedProcess[str], int]:
    """Check a model on a server live; return what is printed and the number of requests."""

    async def main() -> tuple[CompletedProcess[str], int]:
        async with wire_server(answer, pages) as server:
            alias = f"{{model: openai/my-model, base_url: '{server.url}', capabilities: {capabilities}}}"
            (root / "agentsd.yaml").write_text(f"models: {{m: {alias}}}\n")
            done = await asyncio.to_thread(agentsd_process, "models", "check", "m", "--live", *options, cwd=root)
            return done, sum("messages" in body for body in server.requests)

    return asyncio.run(main())


def strict(body: dict[str, Any]) -> Answer:
    """Answer as a server whose template refuses late system messages and calls without text."""
    messages = body["messages"]
    if any(message["role"] == "system" for message in messages[1:]):
        return failed(400, "System message must be at the beginning.")
    if any(message["content"] is None for message in messages):
        return failed(500, "cannot concatenate NoneType")
    if body.get("tools") and messages[-1]["role"] == "user":
        return calls(("get_number", {"day": "Monday"}))
    return says("It is 7.")


def test_live_requests_show_which_assumptions_hold(tmp_path: Path) -> None:
    done, sent = checked(tmp_path, strict, "{late_system: true}", "--json")

    outcomes = {outcome["request"]: outcome for outcome in json.loads(done.stdout)["live"]}
    assert (done.returncode, sent) == (1, 6)
    assert [*outcomes] == [
        *("plain", "late system message", "parallel calls", "long call ids", "null content", "tool call"),
    ]
    late = outcomes["late system message"]
    assert (late["holds"], late["write"]) == (False, {"late_system": False})
    assert "System message must be at the beginning" in late["note"]
    assert outcomes["parallel calls"]["write"] == {"parallel_calls": True}
    assert outcomes["long call ids"]["write"] == {"call_ids": "any"}
    assert (outcomes["null content"]["holds"], "write" in outcomes["null content"]) == (True, False)
    assert outcomes["tool call"]["holds"]


def test_the_lines_to_write_are_printed(tmp_path: Path) -> None:
    done, _ = checked(tmp_path, strict)

    assert done.returncode == 0
    assert "holds         tool call: accepted" in done.stdout
    assert done.stdout.endswith("    capabilities:\n      parallel_calls: true\n      call_ids: any\n")


LLAMA_CPP = {
    "/v1/models": {"data": [{"id": "my-model", "owned_by": "llamacpp"}]},
    "/props?model=my-model&autoload=false": {
        "default_generation_settings": {"n_ctx": 8192},
        "modalities": {"vision": False, "audio": False},
    },
}


def test_an_alias_that_contradicts_its_server_is_shown(tmp_path: Path) -> None:
    own = "{context_window: 100000, images: true, audio: false}"
    done, sent = checked(tmp_path, strict, own, "--json", pages=LLAMA_CPP)

    outcomes = {outcome["request"]: outcome for outcome in json.loads(done.stdout)["live"]}
    assert (done.returncode, sent) == (1, 6)
    assert outcomes["context_window"] == {
        "request": "context_window",
        "holds": False,
        "note": "the server says 8192",
        "write": {"context_window": 8192},
    }
    assert (outcomes["images"]["holds"], outcomes["images"]["write"]) == (False, {"images": False})
    assert outcomes["json_schema"] == {"request": "json_schema", "holds": True, "note": "the server says True"}
    assert "write" not in outcomes["audio"]


def test_a_model_that_calls_no_tool_is_told_what_to_do(tmp_path: Path) -> None:
    done, _ = checked(tmp_path, lambda _: says("KIWI"))

    assert done.returncode == 1
    assert "tool call: the model called no tool: set `protocol: json`" in done.stdout


def test_a_server_that_refuses_the_plain_request_gets_no_more(tmp_path: Path) -> None:
    done, sent = checked(tmp_path, lambda _: failed(401, "wrong key"))

    assert (done.returncode, sent) == (1, 1)
    assert "does not hold plain: " in done.stdout
