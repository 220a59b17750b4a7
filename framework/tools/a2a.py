"""A remote agent as a source of one tool, `agent.NAME`, which its card describes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import OnChange, RefreshedSource, external_tool
from framework.types.errors import ConfigError, ToolError
from framework.types.installation import install_command
from framework.types.tool_servers import A2aAgent

if TYPE_CHECKING:
    from framework.tools.a2a_client import Card, RemoteAgent


_TRACING = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "minLength": 1,
            "description": "The task, complete in itself: the agent sees nothing else.",
        }
    },
    "required": ["message"],
    "additionalProperties": False,
}


class A2aSource(RefreshedSource):
    """One remote agent. Its card is read when the project is loaded, and again from time to time."""

    def __init__(self, name: str, agent: A2aAgent, changed: OnChange) -> None:
        """Create a source; `start` reads the card.

        Args:
            name: name of the agent in its file.
            agent: its entry.
            changed: called whenever the tool or the faults change.
        """
        super().__init__(f"agent.{name}", changed, agent.refresh)
        self._agent = agent
        self._remote: RemoteAgent | None = None
        self._card: Card | None = None

    async def start(self) -> None:
        """Read the card, and read it again in the background."""
        try:
            remote_type = await asyncio.to_thread(_import_remote)  # takes a second at first
            self._remote = remote_type(self.name, self._agent)
        except ImportError as error:
            self.faults = (f"{self.name} needs the A2A SDK ({error}): {install_command('agentsd[a2a]')}",)
        except ConfigError as error:
            self.faults = (f"{self.name} is unavailable: {error.message}",)
        else:
            await super().start()

    async def abandon(self, continuation: Mapping[str, Any]) -> None:
        """Cancel the task of a call that will not be continued; see `RemoteAgent.abandon`."""
        if self._remote and self._card:
            await self._remote.abandon(self._card, continuation)

    async def _look(self) -> bool:
        """Read the card and build the tool. A tool remains when its agent is down. Return whether there is a card."""
        assert self._remote is not None, "created by `start`"
        try:
            card = await self._remote.card()
            if card != self._card:
                self.tools, self._card = (self._tool(card),), card
            self.faults = ()
        except (ToolError, ConfigError) as error:
            self.faults = (f"{self.name} is unavailable: {error.message}",)
            return False
        return True

    def _tool(self, card: Card) -> Tool:
        return external_tool(
            self.name,
            self._agent.description or card.description or f"The agent {self.name.removeprefix('agent.')}.",
            _SCHEMA,
            self._call,
            source="a2a",
            risk=self._agent.risk,
            idempotent=self._agent.idempotent,
            wire=card.url,
        )

    async def _call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        assert self._remote is not None, "created by `start`"
        assert self._card is not None, "read before the tool was built"
        return await self._remote.call(self._card, arguments["message"], context)


def _import_remote() -> type[RemoteAgent]:
    os.environ.setdefault(_TRACING, "false")  # spans of the SDK would contain what agents send
    from framework.tools.a2a_client import RemoteAgent

    return RemoteAgent
