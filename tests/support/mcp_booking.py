"""A program: an MCP server that asks for a seat, then for a meal, before it books a flight.

Arguments: a file to which each booking is appended, and `newest` (over HTTP; the answer contains the questions),
`older` (over stdio, without the SDK; it asks while the call is open) or `sdk` (over HTTP; it does so, too). The name of
the flight selects what it asks: see `questions`; `sdk` also logs its calls and the answers to its questions. A third
argument is the port.
"""

from __future__ import annotations

import json
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


def note(flight: str, text: str) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"{flight} {text}\n")


def book(flight: str, answers: list[dict[str, Any]]) -> str:
    note(flight, json.dumps(answers, sort_keys=True))
    return f"booked {flight} {json.dumps(answers, sort_keys=True)}"


def newest() -> None:
    from mcp import MCPError  # imports that `older`, of which each test starts some, does not need
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
    serve(server.streamable_http_app())


def serve(app: Any) -> None:
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", int(sys.argv[3]) if sys.argv[3:] else 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


TOOL = {
    "name": "book",
    "description": "Book a flight.",
    "inputSchema": {"type": "object", "properties": {"flight": {"type": "string"}}, "required": ["flight"]},
}


async def ask_while_open(ctx: Any, asked: dict[str, Any]) -> Any:
    session, message = ctx.session, asked["message"]
    if "url" in asked:
        return await session.elicit_url(message, asked["url"], asked["elicitationId"], ctx.request_id)
    return await session.elicit_form(message, asked["requestedSchema"], ctx.request_id)


async def converse_while_open(ctx: Any, flight: str, another_is_called: Any) -> str:
    import asyncio

    import anyio

    note(flight, "called")
    if not flight.startswith("stubborn"):
        another_is_called.set()
    answers: list[dict[str, Any]] = []
    while asked := questions(flight, len(answers)):
        at_once = [asked]
        while flight.startswith("both") and (another := questions(flight, len(answers) + len(at_once))):
            at_once.append(another)
        async with asyncio.TaskGroup() as tasks:
            replies = [tasks.create_task(ask_while_open(ctx, one)) for one in at_once]
        for reply in (task.result() for task in replies):
            note(flight, reply.action)
            if reply.action != "accept" and flight.startswith("stubborn"):
                with anyio.CancelScope(shield=True):
                    await another_is_called.wait()
                    await ask_while_open(ctx, asked)
            if reply.action != "accept":
                return f"not booked: {reply.action}"
            answers.append(dict(reply.content or {}))
        await ctx.session.report_progress(len(answers), 2, f"{len(answers)} answered")
    return book(flight, answers)


def sdk() -> None:
    import asyncio

    from mcp import MCPError
    from mcp.server.lowlevel import Server
    from mcp.types import METHOD_NOT_FOUND, CallToolResult, ListToolsResult, RequestParams, TextContent

    another_is_called = asyncio.Event()

    async def call(ctx: Any, params: Any) -> CallToolResult:
        text = await converse_while_open(ctx, params.arguments["flight"], another_is_called)
        return CallToolResult(content=[TextContent(text=text)])

    async def tools(_: Any, __: Any) -> ListToolsResult:
        return ListToolsResult.model_validate({"tools": [TOOL]})

    async def discover(_: Any, __: Any) -> Any:
        raise MCPError(METHOD_NOT_FOUND, "Method not found")

    server: Server[Any] = Server("booking", on_list_tools=tools, on_call_tool=call)
    server.add_request_handler("server/discover", RequestParams, discover)
    serve(server.streamable_http_app())


def older() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                info = {"serverInfo": {"name": "booking", "version": "1"}, "capabilities": {"tools": {}}}
                reply(message, {"protocolVersion": "2025-11-25", **info})
            case "tools/list":
                reply(message, {"tools": [TOOL]})
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
    {"newest": newest, "older": older, "sdk": sdk}[sys.argv[2]]()
