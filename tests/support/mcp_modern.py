"""A program: an MCP server made with the SDK, for the newest protocol, over stdio or HTTP on a port."""

from __future__ import annotations

import json
import socket
import sys
from base64 import b64decode

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult, ToolAnnotations

CHART = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADXRFWHRDb21tZW50AGRyYXduOChEXAAAAA5JREFUeJxjaGhgaGgA"
    "AAYGAgEswVDXAAAAAElFTkSuQmCC"
)
"""`png("drawn")` of tests/support/media.py: this program runs without the other modules."""
server = MCPServer("modern")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def wipe() -> str:
    """Delete everything."""
    return "gone"


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Learn to do something new."""
    server.add_tool(lambda: name, name=name, description=f"Does {name}.")
    for _ in range(20):
        await ctx.notify_tools_changed()
    return "learnt"


@server.tool()
async def meta(ctx: Context) -> str:
    """Return the metadata of the request."""
    return json.dumps(dict(ctx.request_context.meta or {}), default=str)


@server.tool()
async def ask() -> InputRequiredResult:
    """Asks back."""
    form = ElicitRequestFormParams(message="Your password?", requested_schema={"type": "object", "properties": {}})
    return InputRequiredResult(input_requests={"word": ElicitRequest(params=form)})


@server.tool()
async def later(ctx: Context) -> InputRequiredResult | str:
    """Finish with the second request."""
    return f"done after {ctx.request_state}" if ctx.request_state else InputRequiredResult(request_state="half")


@server.tool()
def chart() -> list[str | Image]:
    """Draw a chart."""
    return ["the chart", Image(data=b64decode(CHART), format="png")]


@server.resource("docs://faq")
def faq() -> str:
    """Questions."""
    return "Ask nothing."


@server.prompt()
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}, {{{{ 7 * 7 }}}}"


if len(sys.argv) == 1:
    server.run()
else:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
