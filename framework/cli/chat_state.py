"""What a chat keeps between messages: the options of its runs, and the last result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from framework.config.agents.compile import Agent
from framework.engine.routing.rules import known_route
from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import Caller, RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.store.protocol import Conversation
from framework.types.errors import AgentBroken
from framework.types.state import RunResult


@dataclass(slots=True)
class ChatState:
    """A chat in progress. Slash commands change its options."""

    runtime: Runtime
    conversation: str
    """Id of the conversation."""
    user: str | None = None
    """User of the conversation; None: of any."""
    tenant: str | None = None
    agent: str | None = None
    """Agent that answers; None: the router chooses."""
    model: str | None = None
    """Model used instead of the agents' own."""
    locale: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    last: RunResult | None = None
    """Result of the last message."""
    routes: bool = False
    """Whether rules of routing apply to each message, because the user has asked the router to choose again."""
    reroutes: bool = False
    """Whether the router chooses the agent of the next message, whatever the rules say."""

    def options(self, message: str) -> RunOptions:
        """Return the options of a run. Only inputs that its agent declares are passed, if the agent is known."""
        agent = self.runtime.catalog.current.agents.get(self.agent or "")
        known = {name: value for name, value in self.inputs.items() if agent is None or name in agent.spec.inputs}
        return RunOptions(
            agent=self.agent,
            conversation=self.conversation,
            user=self.user,
            tenant=self.tenant,
            model=self.model,
            locale=self.locale,
            inputs=known,
            limits=self.limits,
            reroute=self.agent is None and (self.reroutes or (self.routes and self._has_rule(message))),
        )

    def _has_rule(self, message: str) -> bool:
        """Return whether a rule of routing applies to a message."""
        current = self.runtime.catalog.current
        try:
            return known_route(message, current.agents, broken=current.broken) is not None
        except AgentBroken:
            return False

    async def stored(self) -> Conversation:
        """Load the conversation."""
        return await load_conversation(
            self.runtime.store, self.conversation, Caller(self.user, self.tenant, single_user=True)
        )

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
        self.agent, self.routes, self.reroutes = name, False, False

    def route(self) -> None:
        """Let the router choose the agent of the next message, and of each later one that a rule of routing matches."""
        self.agent, self.routes, self.reroutes = None, True, True
