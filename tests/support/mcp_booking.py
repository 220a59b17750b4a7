"""A program: an MCP server that asks for a seat, then for a meal, before it books a flight.

Arguments: a file to which each booking is appended, and `newest` (over HTTP; the answer contains the questions) or
`older` (over stdio; it asks while the call is open). The name of the flight selects what it asks: see `questions`.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
SEAT = {"type": "string", "title": "Seat", "enum": ["window", "aisle"]}
BAGS = {"type": "integer", "minimum": 0, "maximum": 3, "default": 1}
QUESTIONS: dict[str, dict[str, Any]] = {
    "seat": {"properties": {"seat": SEAT, "bags": BAGS}, "required": ["seat"]},
    "meal": {"properties": {"vegan": {"type": "boolean"}}, "required": ["vegan"]},
    "secret": {"properties": {"p": {"type": "string", "title": "Your API key"}}},
    "nested": {"properties": {"a": {"type": "object"}}},
}
ADDRESS = "https://pay.exämple.com/checkout?id=7"


def questions(flight: str, answered: int) -> dict[str, Any] | None:
    """Return the parameters of the next question about a flight, or None."""
    names = {"secret": ["secret"], "nested": ["nested"], "pay": ["url"], "endless": ["seat"] * 99}
    kind = flight.partition("-")[0]
    left = names.get(kind, ["seat", "meal"])[answered:]
    if not left:
        return None
    if left[0] == "url":
        return {"mode": "url", "message": "Pay for the flight", "url": ADDRESS, "elicitationId": "e1"}
    message = f"{left[0]} on {flight}?" if kind != "endless" else f"seat {answered} on {flight}?"
    return {"message": message, "requestedSchema": {"type": "object", **QUESTIONS[left[0]]}}


def book(flight: str, answers: list[dict[str, Any]]) -> str:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{flight} {json.dumps(answers, sort_keys=True)}\n")
    return f"booked {flight} {json.dumps(answers, sort_keys=True)}"


def newest() -> None:
    import uvicorn  # slow imports, which the other half of this program does not need
    from mcp import MCPError
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.types import (
        INVALID_PARAMS,
        ElicitRequest,
        ElicitRequestFormParams,
        ElicitRequestURLParams,
        InputRequiredResult,
    )

    server = MCPServer("booking")
    forgotten: set[str] = set()

    async def call(flight: str, ctx: Any) -> Any:
        """Book a flight."""
        answers = json.loads(ctx.request_state or "[]")
        if flight.startswith("forgets") and len(answers) == 1 and flight not in forgotten:
            forgotten.add(flight)
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
        for answer in (ctx.input_responses or {}).values():
            result = answer.model_dump(mode="json", exclude_none=True)
            if result["action"] != "accept":
                return f"not booked: {result['action']}"
            answers.append(result.get("content", {}))
        asked = questions(flight, len(answers))
        if asked is None:
            return book(flight, answers)
        kind = ElicitRequestURLParams if "url" in asked else ElicitRequestFormParams
        request = ElicitRequest(params=kind.model_validate(asked))
        return InputRequiredResult(input_requests={"it": request}, request_state=json.dumps(answers))

    call.__annotations__ = {"flight": str, "ctx": Context, "return": InputRequiredResult | str}
    server.add_tool(call, name="book")
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


def older() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                info = {"serverInfo": {"name": "booking", "version": "1"}, "capabilities": {"tools": {}}}
                reply(message, {"protocolVersion": "2025-11-25", **info})
            case "tools/list":
                schema = {"type": "object", "properties": {"flight": {"type": "string"}}, "required": ["flight"]}
                reply(message, {"tools": [{"name": "book", "description": "Book a flight.", "inputSchema": schema}]})
            case "tools/call":
                text = converse(message["params"]["arguments"]["flight"])
                reply(message, {"content": [{"type": "text", "text": text}]})
            case str() if "id" in message:
                say({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})


def converse(flight: str) -> str:
    answers: list[dict[str, Any]] = []
    while asked := questions(flight, len(answers)):
        say({"id": "mine", "method": "elicitation/create", "params": asked})
        result: dict[str, Any] = {}
        while not result:
            message = json.loads(sys.stdin.readline())
            result = message.get("result", {"action": "error"}) if message.get("id") == "mine" else {}
        if result["action"] != "accept":
            return f"not booked: {result['action']}"
        answers.append(result.get("content", {}))
    return book(flight, answers)


def reply(message: dict[str, Any], result: dict[str, Any]) -> None:
    say({"id": message["id"], "result": result})


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"newest": newest, "older": older}[sys.argv[2]]()
