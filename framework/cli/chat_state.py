"""What a chat keeps between messages: the options of its runs, and the last result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from framework.config.agents.compile import Agent
from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import RUNTIME_CALLER, RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.store.protocol import Conversation
from framework.types.state import RunResult


@dataclass(slots=True)
class ChatState:
    """A chat in progress. Slash commands change its options."""

    runtime: Runtime
    conversation: str
    """Id of the conversation."""
    agent: str | None = None
    """Agent that answers; None: the router chooses."""
    model: str | None = None
    """Model used instead of the agents' own."""
    locale: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    last: RunResult | None = None
    """Result of the last message."""

    @property
    def options(self) -> RunOptions:
        """Options of the next run. Only inputs that its agent declares are passed, if the agent is known."""
        agent = self.runtime.catalog.current.agents.get(self.agent or "")
        known = {name: value for name, value in self.inputs.items() if agent is None or name in agent.spec.inputs}
        return RunOptions(
            agent=self.agent,
            conversation=self.conversation,
            model=self.model,
            locale=self.locale,
            inputs=known,
            limits=self.limits,
        )

    async def stored(self) -> Conversation:
        """Load the conversation."""
        return await load_conversation(self.runtime.store, self.conversation, RUNTIME_CALLER)

    async def current_agent(self) -> Agent | None:
        """Return the agent that answers, as far as it is known: the selected one, the last one, or the only one."""
        agents = self.runtime.catalog.current.agents
        names = (self.agent, self.last.agent if self.last else (await self.stored()).agent)
        found = next((agents[name] for name in names if name is not None and name in agents), None)
        return found or (next(iter(agents.values())) if len(agents) == 1 else None)

    def select(self, name: str | None) -> None:
        """Select the agent of the next messages; raises AgentNotFound or AgentBroken."""
        if name is not None:
            self.runtime.catalog.current.agent(name)
        self.agent = name
