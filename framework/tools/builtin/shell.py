"""The tool `shell`: one command in the sandbox that the operator sets up."""

from __future__ import annotations

from framework.tools.sandbox import output_text, run_sandboxed
from framework.tools.tool import ToolContext, tool
from framework.types.errors import ToolError

MAX_COMMAND_CHARS = 20_000


def _preview(command: str, context: ToolContext) -> str:
    """Raise ToolError if `shell` would execute nothing."""
    if not context.sandbox.is_on:
        raise ToolError("there is no sandbox: the operator sets tools.sandbox in agentsd.yaml")
    if not command.strip() or len(command) > MAX_COMMAND_CHARS:
        raise ToolError(f"the command must have 1 to {MAX_COMMAND_CHARS} characters")
    return ""


@tool(risk="high", preview=_preview)
async def shell(command: str, *, context: ToolContext) -> str:
    """Execute a shell command (sh) in a sandbox; return what it prints, and its exit code unless it is 0.

    It sees the programs of a Linux system, an empty /tmp, and the folders that the operator shows, below /project. The
    network and other files are usually missing. Nothing outside the writable folder of /project is kept.

    Args:
        command: The command, such as: grep -c ERROR /project/logs/app.log
        context: The run.
    """
    _preview(command, context)
    return output_text(await run_sandboxed(["sh", "-c", command], context.sandbox, context.files))
