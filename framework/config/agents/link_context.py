"""What the agents of a generation are linked from: the parsed files, and everything that they may refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from framework.config.agents.budgets import Budgets
from framework.config.agents.compile import template_names
from framework.config.agents.extensions import extension_names
from framework.config.agents.models import are_models_known
from framework.config.agents.prices import PriceList
from framework.config.agents.toolbox import Toolbox
from framework.config.files.snapshot import source_digest
from framework.config.templates.prompts import Prompts
from framework.config.yaml.document import Document
from framework.tools.toolset import filter_tools
from framework.types.spec import AgentSpec


@dataclass(frozen=True, slots=True)
class ParsedAgent:
    """A valid agent file."""

    spec: AgentSpec
    document: Document
    digest: str
    models: tuple[str, ...] = ()
    """The models that the file names."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Everything that agents may refer to, except other agents."""

    toolbox: Toolbox
    prompts: Prompts
    executors: Collection[str]
    models: Collection[str]
    prices: PriceList
    budgets: Budgets = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """Cache of `reference_digest` by the digest of the agent file; kept from one build to the next."""

    def reference_digest(self, parsed: ParsedAgent) -> str:
        """Return the digest of an agent file, its templates, the tools its rules match, its executor and its hooks."""
        if parsed.digest not in self.digests:
            policy = parsed.spec.skill_policy
            patterns = [*policy.allow, *(rule.tool for rule in (*policy.deny, *policy.ask))]
            tools = filter_tools(self.toolbox.tools.values(), patterns) if patterns else []
            names = [*(tool.name for tool in tools), *extension_names(parsed.spec)]
            templates = self.prompts.closure(template_names(parsed.spec))
            self.digests[parsed.digest] = source_digest(
                parsed.digest,
                *(part for name, source in sorted(templates.items()) for part in (name, source)),
                *(part for name in names for part in (name, self.toolbox.digests.get(name, ""))),
                str(are_models_known(parsed.spec, self.models)),
                *(name for name in parsed.spec.budgets if name not in self.budgets),
                *self._external_parts(parsed.spec, names),
            )
        return self.digests[parsed.digest]

    def _external_parts(self, spec: AgentSpec, tools: Iterable[str]) -> list[str]:
        """Return the state of tool servers that affects whether an agent is valid and which tools it is offered."""
        external = self.toolbox.external
        drifted = sorted(external.drifted.intersection(tools))
        if not spec.mcp_policy and not any(
            pattern.startswith(("mcp.", "skill.")) for pattern in spec.skill_policy.allow
        ):
            return drifted
        return [*sorted(external.declared), *sorted(external.unavailable), *drifted]

    def forget(self, parsed: ParsedAgent) -> None:
        """Remove the cached digest of a file that was replaced or deleted."""
        self.digests.pop(parsed.digest, None)
