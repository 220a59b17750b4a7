"""What an agent file says about MCP servers, as typed data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints

from framework.types.frozen import Frozen


class PromptRef(Frozen):
    """A prompt of an MCP server."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """The server's name for it."""
    arguments: dict[str, str] = {}
    """What it is to be filled with."""


def _prompt(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class McpPolicy(Frozen):
    """What comes from one MCP server into an agent's context. Which of its tools: see `skill_policy`."""

    resources: tuple[Annotated[str, StringConstraints(min_length=1, max_length=2000)], ...] = ()
    """Resources by URI, whose text the model gets when a run begins."""
    prompts: tuple[Annotated[PromptRef, BeforeValidator(_prompt, json_schema_input_type=str | PromptRef)], ...] = ()
    """Prompts by name, or `{name: …, arguments: {…}}`, whose text the model gets when a run begins."""
    pin: Literal["warn", "block"] = "block"
    """What to do about a tool that says something else of itself than when it was accepted: refuse it, or say so."""
