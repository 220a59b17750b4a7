"""The agents of a project: their list, and what each may do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from framework.config.agents.compile import Agent, template_names
from framework.config.generations.generation import Generation
from framework.config.generations.history import AgentRevision, FileChange, Trigger, agent_revisions
from framework.config.templates.prompts import NO_RUN, PROMPTS_FOLDER, PromptError
from framework.config.yaml.agent_keys import written_path
from framework.config.yaml.document import DEFAULT_PLACE
from framework.engine.routing import default_route
from framework.engine.runtime.agent_policy import AgentPolicy, agent_policy, render_prompt
from framework.engine.runtime.project import AgentSummary, summarize_agents
from framework.engine.runtime.request import checked_inputs
from framework.engine.runtime.suggestions import AgentSuggestions, suggest
from framework.evals.runner import SuccessRate
from framework.server.identity import Identity, Reader
from framework.server.request_handling import (
    Cursor,
    OptionalSize,
    ServedRuntime,
    api_router,
    error_responses,
    json_response,
    page_of,
)
from framework.server.run_service import decided_calls_for
from framework.server.schemas import ResponseModel, redact_changes, redact_problems
from framework.store.types import CaseResult
from framework.types.errors import AgentBroken, AgentNotFound, RequestError
from framework.types.problem import Change, Problem
from framework.types.redact import redact, redact_problem
from framework.types.spec import InputSpec, ModelSettings, RuntimePolicy, TemplateRef

_PLACED_KEYS = (
    *("model", "fallback_models", "model_settings", "executor", "instructions", "inputs", "routing"),
    *("skill_policy", "skills", "runtime_policy", "budgets", "plan", "sub_agents", "handoffs", "hooks"),
)
"""Keys of an agent file whose places a client gets, besides those of limits."""
_CASE_RESULTS = 20
Origin = Literal["input", "vars", "runtime"]


class AgentList(ResponseModel):
    """The available agents."""

    generation: int
    agents: tuple[AgentSummary, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


class PromptSample(BaseModel):
    """Sample values to render a prompt with."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    inputs: dict[str, Any] = {}
    """Values of the agent's inputs; the others are placeholders."""
    locale: str | None = Field(default=None, max_length=35)
    """Language of the prompt. Default: the setting `locale`."""


class PromptVariable(ResponseModel):
    """A variable that a template reads."""

    name: str
    origin: Origin
    """Who provides it: the request, the agent's file, or the runtime."""


class AgentPrompt(ResponseModel):
    """The system prompt of an agent."""

    template: str | None = None
    """Path of its template below `prompts/`, unless the agent's file contains the text."""
    path: str
    """The file that contains the text: the template's variant for the locale, or the agent's file."""
    locales: tuple[str, ...] = ()
    """Locales that the template has a variant for."""
    source: str
    """The text in that file."""
    variables: tuple[PromptVariable, ...] = ()
    """The variables that the template reads, by name."""
    rendered: str | None = None
    """The first message of a conversation, with placeholders for inputs, unless the template fails."""
    tokens: int | None = None
    """Estimated tokens of the rendered text."""
    problem: str | None = None
    """Why the template fails."""
    details: Problem | None = None
    """The same as data, with the line of the template."""

    @classmethod
    def of(
        cls, agent: Agent, generation: Generation, locale: str | None, inputs: dict[str, Any] | None = None
    ) -> AgentPrompt:
        """Return the prompt of an agent, rendered for a locale and with checked values of some inputs."""
        known = _prompt_source(agent, locale or generation.settings.locale)
        try:
            found = render_prompt(agent, generation.settings, locale, inputs or {})
        except PromptError as error:
            return cls(**known, problem=str(error), details=redact_problem(error.problem))
        return cls(**known, rendered=found.system_prompt, tokens=found.system_prompt_tokens)


class AgentRouting(ResponseModel):
    """Why an agent is chosen for a message that names none."""

    priority: int
    """If the rules of several agents match, the highest priority decides."""
    keywords: tuple[str, ...]
    patterns: tuple[str, ...]
    examples: tuple[str, ...]
    model: str | None = None
    """Model that chooses an agent by its description if no rule matches."""
    is_default: bool
    """Whether it gets the messages for which neither a rule nor a model chose an agent."""

    @classmethod
    def of(cls, agent: Agent, generation: Generation) -> AgentRouting:
        """Return the routing of an agent."""
        rules, settings, is_default = agent.spec.routing, generation.settings.routing, False
        with suppress(AgentBroken, RequestError):
            is_default = (
                default_route(generation.agents, settings.default_agent, generation.broken).agent.name == agent.name
            )
        return cls(**rules.model_dump(), model=settings.model, is_default=is_default)


class AgentDetail(ResponseModel):
    """An agent: what it may do, what it needs, and its prompt."""

    generation: int
    digest: str
    """Digest of the configuration."""
    name: str
    description: str
    policy: AgentPolicy
    """Its tools, limits, budgets and hooks, as `agentsd explain` prints them."""
    fallback_models: tuple[str, ...]
    model_settings: ModelSettings
    plan: dict[str, Any]
    """The effective `plan`, used if the executor writes plans."""
    routing: AgentRouting
    sub_agents: tuple[str, ...]
    handoffs: tuple[str, ...]
    """Agents that it can hand its conversation over to."""
    inputs: dict[str, InputSpec]
    """Variables that a request provides, by name."""
    prompt: AgentPrompt
    files: tuple[str, ...]
    """Its file, and the project's templates and skills that it uses."""
    places: dict[str, str]
    """`file:line` of the keys that its file contains, such as `runtime_policy.max_steps`."""
    file_keys: dict[str, str]
    """Keys as files are written now, such as `limits.steps` for `runtime_policy.max_steps`; others have one name."""
    problems: tuple[Problem, ...]
    """Errors and warnings of its file, its templates and its skills."""

    @classmethod
    def of(cls, agent: Agent, generation: Generation, locale: str | None) -> AgentDetail:
        """Return an agent, with its prompt rendered for a locale."""
        templates = agent.prompts.project_names.intersection(agent.prompts.closure(template_names(agent.spec)))
        skills = (skill.path for skill in agent.skills.skills.values())
        files = (agent.path, *(f"{PROMPTS_FOLDER}/{name}" for name in sorted(templates)), *skills)
        return cls.of_parts(
            agent.spec,
            generation=generation.number,
            digest=generation.digest,
            name=agent.name,
            policy=agent_policy(agent, generation),
            plan=agent.spec.plan.model_dump(mode="json", by_alias=True),
            routing=AgentRouting.of(agent, generation),
            prompt=AgentPrompt.of(agent, generation, locale),
            files=files,
            places=_places(agent),
            file_keys=_file_keys(),
            problems=redact_problems([problem for problem in generation.problems if problem.path in files]),
        )


class CaseHistory(ResponseModel):
    """The last results of a case."""

    name: str
    """Name of the case; empty for stored runs that were scored."""
    attempts: int
    """Number of attempts in `results` on the generation of the newest one."""
    passed: int
    """Number of them that passed."""
    low: float
    """Lower end of the 95 % interval of the success rate (Wilson)."""
    high: float
    results: tuple[CaseResult, ...]
    """At most 20, the newest first."""


class AgentCases(ResponseModel):
    """The results of an agent's cases."""

    agent: str
    cases: tuple[CaseHistory, ...]
    """Those with the newest results first."""


class AgentVersion(ResponseModel):
    """A generation that changed an agent."""

    generation: int
    at: datetime
    trigger: Trigger
    live: bool
    """Whether this version of the agent is live."""
    stale: bool
    """Whether its file was invalid, so that its last good version was live."""
    changes: tuple[Change, ...]
    """Changed keys of the agent's file."""
    files: tuple[FileChange, ...]
    """Changed files: the agent's own, and templates. Empty if only its tools or its sub-agents changed."""

    @classmethod
    def of(cls, revision: AgentRevision, *, live: bool) -> AgentVersion:
        """Return a revision."""
        entry = revision.entry
        changes = redact_changes(revision.changes)
        own = {"generation": entry.number, "at": entry.at, "trigger": entry.trigger}
        return cls.of_parts(revision, **own, live=live, changes=changes)


class AgentHistory(ResponseModel):
    """The generations in the history that changed an agent, the latest first."""

    agent: str
    versions: tuple[AgentVersion, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


def _prompt_source(agent: Agent, locale: str) -> dict[str, Any]:
    own = agent.spec.instructions
    if not isinstance(own, TemplateRef):
        return {"path": agent.path, "source": own}
    variant = agent.prompts.variant_for(own.template, locale)
    return {
        "template": own.template,
        "path": f"{PROMPTS_FOLDER}/{variant}",
        "locales": tuple(agent.prompts.locales(own.template)),
        "source": agent.prompts.closure([variant])[variant],
        "variables": tuple(_variables(agent, own, locale)),
    }


def _variables(agent: Agent, source: TemplateRef, locale: str) -> Iterator[PromptVariable]:
    """Yield the variables that a template reads. Inputs take precedence over `vars`."""
    given: dict[Origin, Iterable[str]] = {
        "runtime": [*agent.variables, *NO_RUN.data(), "locale", "user"],
        "vars": source.vars,
        "input": agent.spec.inputs,
    }
    origins = {name: origin for origin, names in given.items() for name in names}
    for name in sorted(agent.prompts.variables_for(source.template, locale)):
        if name in origins:  # not a function such as `range`
            yield PromptVariable(name=name, origin=origins[name])


def _placed_paths() -> Iterator[tuple[str, ...]]:
    yield from ((key,) for key in _PLACED_KEYS)
    yield from (("runtime_policy", key) for key in RuntimePolicy.model_fields if key != "confirm")
    yield from (("runtime_policy", "confirm", key) for key in ("from", "expires", "on_expiry"))


def _places(agent: Agent) -> dict[str, str]:
    places = {".".join(path): agent.place(*path) for path in _placed_paths()}
    return {key: place for key, place in places.items() if place != DEFAULT_PLACE}


def _file_keys() -> dict[str, str]:
    written = {path: written_path(path) for path in (*_placed_paths(), ("plan", "approval"))}
    return {".".join(path): ".".join(map(str, own)) for path, own in written.items() if own != path}


routes = api_router("configuration")
"""Bodies are built in threads: templates and files may be large."""


@routes.get("/agents", response_model=AgentList)
async def list_agents(
    identity: Reader, runtime: ServedRuntime, cursor: Cursor = None, limit: OptionalSize = None
) -> object:
    """List the available agents, sorted by name."""
    generation = runtime.catalog.current
    visible = [agent for agent in summarize_agents(generation) if identity.may_use(agent.name)]
    page, following = page_of(visible, cursor, limit, lambda agent: agent.name)
    return json_response(AgentList(generation=generation.number, agents=tuple(page), next=following))


@routes.get("/agents/{name}", response_model=AgentDetail, responses=error_responses(404))
async def show_agent(
    identity: Reader,
    runtime: ServedRuntime,
    name: str,
    locale: Annotated[str | None, Query(max_length=35, description="Language of the rendered prompt.")] = None,
) -> object:
    """Return what an agent may do, its inputs, its prompt, and the problems of its files."""
    generation = runtime.catalog.current
    found = _visible_agent(generation, name, identity)
    return await asyncio.to_thread(lambda: json_response(AgentDetail.of(found, generation, locale)))


@routes.post(
    "/agents/{name}/prompt", name="render_prompt", response_model=AgentPrompt, responses=error_responses(404, 413)
)
async def render_sample(identity: Reader, runtime: ServedRuntime, name: str, sample: PromptSample) -> object:
    """Render the system prompt of an agent with sample inputs. No model is called."""
    generation = runtime.catalog.current
    found = _visible_agent(generation, name, identity)

    def rendered() -> Response:
        inputs = checked_inputs(found, sample.inputs)
        return json_response(AgentPrompt.of(found, generation, sample.locale, inputs))

    return await asyncio.to_thread(rendered)


@routes.get("/agents/{name}/history", response_model=AgentHistory, responses=error_responses(404))
async def list_agent_versions(
    identity: Reader, runtime: ServedRuntime, name: str, cursor: Cursor = None, limit: OptionalSize = None
) -> object:
    """List the generations in the history that changed an agent, the latest first, with its files' texts."""
    _visible_agent(runtime.catalog.current, name, identity)
    entries = tuple(runtime.catalog.history)

    def compared() -> Response:
        revisions = [*agent_revisions(entries, name)][::-1]
        versions = [AgentVersion.of(one, live=one is revisions[0]) for one in revisions]
        page, following = page_of(versions, cursor, limit, lambda version: str(version.generation))
        return json_response(AgentHistory(agent=name, versions=tuple(page), next=following))

    return await asyncio.to_thread(compared)


@routes.get("/agents/{name}/suggestions", response_model=AgentSuggestions, responses=error_responses(404))
async def suggest_rules(
    identity: Reader,
    runtime: ServedRuntime,
    name: str,
    days: Annotated[int, Query(ge=1, le=3650, description="How old the runs may be, in days.")] = 30,
) -> object:
    """Compare the rules of an agent with what people decided about its calls, and suggest edits of its file."""
    generation = runtime.catalog.current
    found = _visible_agent(generation, name, identity)
    own, everyone = await decided_calls_for(runtime, identity, days * 86_400.0)

    def suggested() -> Response:
        base = (runtime.root / generation.settings.tools.base_path).resolve()
        done = suggest(found, generation, own, everyone, base)
        return json_response(done.found.model_copy(update={"diff": redact(done.found.diff)}))

    return await asyncio.to_thread(suggested)


@routes.get("/agents/{name}/cases", response_model=AgentCases, responses=error_responses(404))
async def list_case_results(identity: Reader, runtime: ServedRuntime, name: str) -> object:
    """List the last results of each case of an agent. Only keys with full access see those of stored runs."""
    _visible_agent(runtime.catalog.current, name, identity)
    by_case: dict[str, list[CaseResult]] = {}
    for one in await runtime.store.case_results.latest(name):
        if one.run_id is None or identity.single_user:
            by_case.setdefault(one.name, []).append(one)
    cases = tuple(_case_history(case, results[:_CASE_RESULTS]) for case, results in by_case.items())
    return json_response(AgentCases(agent=name, cases=cases))


def _case_history(name: str, results: Sequence[CaseResult]) -> CaseHistory:
    current = [one for one in results if one.digest == results[0].digest]
    rate = SuccessRate(sum(one.passed for one in current), sum(one.attempts for one in current))
    low, high = rate.interval()
    return CaseHistory(name=name, attempts=rate.tried, passed=rate.passed, low=low, high=high, results=tuple(results))


def _visible_agent(generation: Generation, name: str, identity: Identity) -> Agent:
    """Return an agent; raises AgentNotFound if there is none that the identity may use."""
    found = generation.agents.get(name) if identity.may_use(name) else None
    if found is None:
        visible = [known for known in generation.agents if identity.may_use(known)]
        raise AgentNotFound(name, visible, generation.errors if identity.agents is None else ())
    return found
