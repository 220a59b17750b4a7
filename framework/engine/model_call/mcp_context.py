"""What an agent is told besides its instructions: texts of MCP servers, read once when its run begins."""

from __future__ import annotations

from collections.abc import Iterator

from framework.engine.context.run_context import RunContext
from framework.tools.mcp.source import McpSource
from framework.types.errors import ToolError
from framework.types.mcp_policy import McpPolicy, PromptRef

MAX_CHARS = 64 * 1024
"""Of all texts together."""


async def load_mcp_context(run: RunContext) -> None:
    """Read what the agent's `mcp_policy` names. What cannot be read is left out, with a warning."""
    if run.state.background is not None:
        return
    texts: list[str] = []
    left = MAX_CHARS
    for server, policy in run.agent.spec.mcp_policy.items():
        for title, wanted in _wanted(policy):
            try:
                text = await _read(run, server, wanted)
            except ToolError as error:
                await run.warn("background", f"{title} of {server}: {error.message}")
                continue
            texts.append(f"[{title}, from {server}]\n{text[:left]}")
            left = max(0, left - len(text))
    run.state.background = texts


def _wanted(policy: McpPolicy) -> Iterator[tuple[str, str | PromptRef]]:
    yield from ((uri, uri) for uri in policy.resources)
    yield from ((prompt.name, prompt) for prompt in policy.prompts)


async def _read(run: RunContext, server: str, wanted: str | PromptRef) -> str:
    opened = run.services.generation.external.sources.get(f"mcp.{server}")
    if opened is None or not isinstance(opened.source, McpSource):
        raise ToolError("the server is not connected here")
    if isinstance(wanted, str):
        return await opened.source.resource(wanted)
    return await opened.source.prompt(wanted.name, wanted.arguments)
