"""A program: an MCP server without the SDK, for the protocol with handshakes, that can misbehave in many ways.

A JSON file, read again when it matters, configures it: `tools` (a list, else TOOLS), `resources`, `ignore_eof`,
`cursor` (of the page after each page of tools), `data` (of the error of `busy`), `held` (`slow` reports its first
progress, and does not continue).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

CONFIGURATION = Path(sys.argv[1])
TOOLS = (
    "echo",
    "env",
    "meta",
    "fail",
    "bad",
    "unknown",
    "busy",
    "hang",
    "leave",
    "cancelled",
    "die",
    "line",
    "stray",
    "odd",
    "ask",
    "storm",
    "slow",
    "blocks",
)
BLOB = {"type": "image", "data": "QUJD" * 1000, "mimeType": "image/png"}
OBJECT = {"type": "object", "properties": {}}
CANCELLED: list[Any] = []


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def configuration() -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(CONFIGURATION.read_text("utf-8"))
    return settings


def tools() -> list[dict[str, Any]]:
    plain = {"type": "object", "additionalProperties": True}
    return configuration().get("tools") or [{"name": name, "description": name, "inputSchema": plain} for name in TOOLS]


def text(content: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content if isinstance(content, str) else json.dumps(content)}]}


def ask(method: str, params: dict[str, Any]) -> Any:
    say({"id": "mine", "method": method, "params": params})
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "mine":
            return message


def call(name: str, arguments: dict[str, Any], params: dict[str, Any]) -> dict[str, Any] | None:  # noqa: C901 - a table
    match name:
        case "echo":
            return text(arguments)
        case "env":
            return text(dict(os.environ))
        case "meta":
            return text(params.get("_meta", {}))
        case "fail":
            return text("no such order") | {"isError": True}
        case "bad":
            return {"content": 5}
        case "busy":
            raise BlockingIOError("too busy")
        case "hang":
            return None
        case "leave":
            if os.fork() == 0:  # keeps the pipes open
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        case "cancelled":
            return text(CANCELLED)
        case "die":
            sys.stderr.write(f"out of luck, {os.environ.get('TOKEN')}\n")
            os._exit(3)
        case "line":
            sys.stdout.write("x" * arguments["megabytes"] * 2**20 + "\n")
            sys.stdout.flush()
            return text("said")
        case "stray":
            sys.stdout.write("not JSON\n" * arguments["lines"])
            return text("said")
        case "odd":
            for _ in range(50):
                say({"method": "notifications/progress", "params": {"progress": "much"}})
                say({"method": "notifications/nobody/knows", "params": {}})
                say({"id": 999999, "result": {}})
            return text("said")
        case "ask":
            answers = [
                ask("elicitation/create", {"message": "Your password?", "requestedSchema": OBJECT}),
                ask("sampling/createMessage", {"messages": [], "maxTokens": 5}),
                ask("roots/list", {}),
            ]
            return text([answer.get("error", {}).get("message") for answer in answers])
        case "storm":
            for _ in range(arguments.get("notices", 1)):
                say({"method": "notifications/tools/list_changed"})
            return text("said")
        case "blocks":
            return arguments
        case "slow":
            for step in range(5):
                token = params["_meta"]["progressToken"]
                say(
                    {
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step, "total": 4},
                    }
                )
                while configuration().get("held"):
                    time.sleep(0.01)
                time.sleep(0.11)
            return text("done")
    raise LookupError(name)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
            hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
            return hello | {"serverInfo": {"name": "raw", "version": "1"}}
        case "tools/list":
            if configuration().get("unlisted"):
                return {"tools": "none"}
            with CONFIGURATION.with_suffix(".log").open("a") as log:
                log.write("listed\n")
            if configuration().get("restless"):
                say({"method": "notifications/tools/list_changed"})
            cursor = configuration().get("cursor")
            return {"tools": tools()} | ({} if cursor is None else {"nextCursor": cursor})
        case "resources/list":
            return {"resources": [uri and {"uri": uri, "name": uri} for uri in configuration().get("resources", [])]}
        case "resources/read":
            uri = params["uri"]
            return {
                "contents": [{"uri": uri, "text": f"read {uri}"}, {"uri": uri, "blob": "QUJD", "mimeType": "image/png"}]
            }
        case "prompts/get":
            message = {
                "role": "user",
                "content": {"type": "text", "text": "{{ 7 * 7 }} " + json.dumps(params["arguments"])},
            }
            return {"messages": [message, {"role": "assistant", "content": BLOB}]}
        case "tools/call":
            return call(params["name"], params.get("arguments") or {}, params)
    raise LookupError(method)


def main() -> None:
    if configuration().get("ignore_eof"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method == "notifications/cancelled":
            CANCELLED.append(params["requestId"])
        if "id" not in message or method is None:
            continue
        try:
            result = answer(method, params)
        except LookupError as error:
            say({"id": message["id"], "error": {"code": -32601, "message": f"unknown: {error}"}})
        except BlockingIOError as error:
            details = {"data": data} if (data := configuration().get("data")) else {}
            say({"id": message["id"], "error": {"code": -32000, "message": str(error), **details}})
        else:
            if result is not None:
                say({"id": message["id"], "result": result})
    while configuration().get("ignore_eof"):
        signal.pause()


main()
