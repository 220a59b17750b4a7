"""Settings for MCP servers in agent files, as typed data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints

from framework.types.frozen import Frozen


class PromptRef(Frozen):
    """A prompt of an MCP server, with arguments."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Name of the prompt on the server."""
    arguments: dict[str, str] = {}
    """Arguments of the prompt."""


def _prompt(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class McpPolicy(Frozen):
    """Resources and prompts of an MCP server for an agent's context. `skill_policy` selects the server's tools."""

    resources: tuple[Annotated[str, StringConstraints(min_length=1, max_length=2000)], ...] = ()
    """URIs of resources whose text is added to the system prompt when a run starts."""
    prompts: tuple[Annotated[PromptRef, BeforeValidator(_prompt, json_schema_input_type=str | PromptRef)], ...] = ()
    """Prompts whose text is added to the system prompt when a run starts: a name, or `{name: …, arguments: {…}}`."""
    pin: Literal["warn", "block"] = "block"
    """Handling of tools whose definition has changed since it was accepted: `block` them, or `warn` and use them."""
