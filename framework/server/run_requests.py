"""The request bodies of the routes that start runs and decide about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from framework.engine.runtime.conversation import ForkPoint
from framework.engine.runtime.request import RunOptions
from framework.server.owned import MAX_URL_ID_CHARS
from framework.server.schemas import PRINTABLE, whole_number
from framework.store.protocol import SEARCHED_RUNS, SEARCHED_TEXTS, RunQuery
from framework.types.errors import RequestError
from framework.types.report import Status
from framework.types.run_request import QUEUE_NAME, Priority
from framework.types.state import Decision, RatingValue
from framework.types.strict_json import content_digest

_Limit = Annotated[int, Field(ge=1), BeforeValidator(whole_number)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_ID_CHARS), *PRINTABLE]
"""An id that the client chooses."""
MAX_COMMENT_CHARS = 4000
MAX_DECISIONS = 100
"""Number of decisions in one request."""


class RequestModel(BaseModel):
    """The base of request bodies. Unknown fields are refused, so that a misspelled limit is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


_RULES: JsonDict = {
    "anyOf": [
        {"required": ["message"], "properties": {"message": {"type": "string"}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array", "items": {}, "minItems": 1}}},
    ],
    "not": {
        "anyOf": [
            {
                "required": ["conversation_id", "messages"],
                "properties": {"conversation_id": {"type": "string"}, "messages": {"type": "array", "items": {}}},
            },
            {
                "required": ["max_total_tokens", "max_tokens"],
                "properties": {"max_total_tokens": {"type": "integer"}, "max_tokens": {"type": "integer"}},
            },
        ]
    },
}
"""What `RunBody.check` refuses, as JSON Schema."""


class RunBody(RequestModel):
    """A message for an agent."""

    model_config = ConfigDict(json_schema_extra=_RULES)

    message: str | None = None
    """The user's message. Default: the last entry of `messages`."""
    agent: Annotated[str, Field(max_length=MAX_URL_ID_CHARS)] | None = None
    """Name of the agent. By default the conversation's agent, or the one that the router chooses."""
    conversation_id: Id | None = None
    """Conversation to continue; an unknown id begins a new one. Default: a new conversation. Excludes `messages`."""
    messages: list[Any] | None = None
    """Earlier messages in the format of OpenAI's chat completions, images and files included, or in that of this
    API. The run then has no stored conversation."""
    inputs: dict[str, Any] | None = None
    """Values of the variables that the agent declares."""
    max_tool_calls: _Limit | None = None
    """Maximum number of tool calls; at most the agent's own limit."""
    max_total_tokens: _Limit | None = None
    """Maximum number of tokens of all model calls; at most the agent's own limit."""
    max_tokens: _Limit | None = None
    """The same as `max_total_tokens`."""
    locale: Annotated[str, Field(max_length=35)] | None = None
    """Language of the prompt templates, such as `zh`."""
    user: Id | None = None
    """Owner of the run and its conversation, if the key names no user."""
    queue: bool = False
    """In a busy conversation, wait for its open run and those that wait already (at most 20), instead of 409."""
    priority: Annotated[Priority, BeforeValidator(whole_number)] = 0
    """Of the runs that can begin, those with a higher priority begin first. Above 0: needs the role `admin`."""
    queue_name: Annotated[str, StringConstraints(pattern=f"^{QUEUE_NAME}$")] | None = None
    """Queue whose workers execute the run; needs the role `admin`. Default: workers of its agent."""

    def check(self) -> None:
        """Raise RequestError for fields that exclude each other, and if there is no message."""
        if self.message is None and not self.messages:
            raise RequestError(
                "message is missing: send message, or messages that end with a user message", param="message"
            )
        if self.conversation_id is not None and self.messages is not None:
            raise RequestError(
                "conversation_id and messages exclude each other: a conversation keeps its own messages",
                param="messages",
            )
        if self.max_total_tokens is not None and self.max_tokens is not None:
            raise RequestError(
                "max_tokens and max_total_tokens are the same limit: send one of them", param="max_tokens"
            )

    @property
    def options(self) -> RunOptions:
        """The options of the run."""
        given = {"max_tool_calls": self.max_tool_calls, "max_total_tokens": self.max_total_tokens or self.max_tokens}
        return {
            "agent": self.agent,
            "conversation": self.conversation_id,
            "history": self.messages,
            "inputs": self.inputs,
            "lower_limits": {name: value for name, value in given.items() if value is not None},
            "locale": self.locale,
            "user": self.user,
        }

    @property
    def digest(self) -> str:
        """Digest of the request, to compare requests with the same idempotency key."""
        return content_digest(self.model_dump_json(exclude_defaults=True))


class ChatBody(RunBody):
    """A message for an agent, and how the answer is returned."""

    stream: bool = False
    """Return the events of the run as server-sent events, instead of the answer as JSON."""
    on_disconnect: Literal["continue", "cancel"] = "continue"
    """What happens to the run if the client closes the connection before the answer."""


class RunFilters(BaseModel):
    """The query of a list of runs. Unset filters match everything."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    status: list[Status] | None = Field(None, description="Only runs with one of these statuses.")
    agent: str | None = Field(None, description="Only runs of this agent.")
    conversation_id: Id | None = Field(None, description="Only runs of this conversation.")
    user: Id | None = Field(None, description="Only runs of this user.")
    generation: int | None = Field(None, ge=1, le=2**31 - 1, description="Only runs on this generation.")
    digest: Id | None = Field(None, description="Only runs on configurations whose digest begins with this.")
    text: Id | None = Field(
        None, description=f"Only runs whose message contains this; looked up in the newest {SEARCHED_RUNS:,} runs."
    )
    q: Id | None = Field(
        None,
        description="Only runs whose message, agent, id or conversation's id contains this, looked up in the newest "
        f"{SEARCHED_RUNS:,} runs; or any message of the user or the model, in the newest {SEARCHED_TEXTS:,}.",
    )
    rating: RatingValue | None = Field(None, description="Only runs whose answer was rated so.")
    since: AwareDatetime | None = Field(
        None, description="Only runs created at this time or later, such as 2026-11-23T00:00:00Z."
    )
    until: AwareDatetime | None = Field(None, description="Only runs created before this time.")

    def query(self, before: str | None, limit: int) -> RunQuery:
        """Return the query of one page."""
        return RunQuery(
            statuses=frozenset(self.status or ()),
            agent=self.agent,
            conversation_id=self.conversation_id,
            user=self.user,
            generation=self.generation,
            digest=self.digest,
            text=self.text,
            search=self.q,
            rating=self.rating,
            since=self.since.timestamp() if self.since else None,
            until=self.until.timestamp() if self.until else None,
            before=before,
            limit=limit,
        )


class ForkBody(RequestModel):
    """Where a fork leaves the history of its conversation: exactly one of `before`, `after` and `messages`."""

    before: Id | None = None
    """Id of the run whose message and answer are left out, with those after it."""
    after: Id | None = None
    """Id of the last run that is kept."""
    messages: Annotated[int, Field(ge=0, le=10**6), BeforeValidator(whole_number)] | None = None
    """Number of messages of the conversation that are kept; the last one must be an answer."""
    conversation_id: Id | None = None
    """Id of the new conversation. Default: a new one."""

    @property
    def point(self) -> ForkPoint:
        """The place."""
        return ForkPoint(self.before, self.after, self.messages)


class RatingBody(RequestModel):
    """A rating of the answer of a run."""

    rating: RatingValue
    """Whether the answer was good (`up`) or not (`down`)."""
    comment: Annotated[str, Field(max_length=MAX_COMMENT_CHARS)] = ""
    """Why: what was good or wrong. `agentsd runs export --as-test` writes it as the note of the case."""


class DecisionsBody(RequestModel):
    """Decisions about what a run waits for. Confirmations without one stay open."""

    decisions: Annotated[dict[str, Decision], Field(min_length=1, max_length=MAX_DECISIONS)]
    """Decisions by the id of the confirmation: `{"type": "approve"}`; `edit` with all `arguments` to call the tool
    with; `reject` with a `reason`; `respond` with a `text`, which answers a question or replaces the tool's result."""
