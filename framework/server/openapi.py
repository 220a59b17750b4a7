"""Bodies of the routes, and `/openapi.json`, which describes the routes with an example for each body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from weakref import ref

import yaml
from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.routing import BaseRoute

from framework.config.api_keys import ROLES
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Preview, ReloadOutcome
from framework.config.generations.history import HistoryEntry, Trigger
from framework.config.overlay import environment_in
from framework.config.schema import field_docs
from framework.server.errors import ErrorResponse
from framework.server.identity import requires
from framework.types.extras import installed_version
from framework.types.problem import Change, Problem
from framework.types.redact import redact_data, redact_problem

STREAM_RESPONSE: dict[str, Any] = {
    "content": {
        "text/event-stream": {
            "x-item-schema": {  # `itemSchema` of OpenAPI 3.2; in 3.1, a schema would describe the whole stream
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "event": {"type": "string"},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                    "retry": {"type": "integer", "minimum": 0},
                },
            },
        }
    }
}
"""Description of a response of server-sent events."""
DEFAULT_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorResponse, "description": "Any other error"}
}
"""The `responses` of every router."""
_COMMON_ERRORS = (400, 401, 403, 429, 500)
"""HTTP statuses of errors that every route can have."""
_EXAMPLES = Path(__file__).with_name("examples.yaml")
_DESCRIPTION = (
    "Runs of agents that are defined in files. Errors have the same form on every route; `default` stands for statuses"
    " that are not listed."
)
_KEY = {"type": "http", "scheme": "bearer", "description": "A key of `server.api_keys`, if any are set."}
_TAGS = {
    "configuration": "The project's files, generations and agents, and the processes that serve them.",
    "protocols": "Protocols of other programs. Those with specifications of their own are not described: `/v1`"
    " (OpenAI's chat completions and Responses), `/mcp` (MCP) and `/a2a/{agent}` (A2A).",
    "runs": "Runs, their conversations, decisions and figures.",
}
_JSON, _STREAM = "application/json", "text/event-stream"


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route or router for errors with these HTTP statuses."""
    return {status: {"model": ErrorResponse, "description": HTTPStatus(status).phrase} for status in sorted(statuses)}


def add_openapi_route(router: APIRouter, routes: Sequence[BaseRoute]) -> None:
    """Add `/openapi.json`, which describes `routes`, and refers to them weakly: FastAPI caches functions of routes."""
    described = [ref(route) for route in routes]
    built = cache(lambda: build_document([route for weak in described if (route := weak()) is not None]))

    @router.get("/openapi.json", include_in_schema=False, dependencies=[requires(*ROLES)])
    async def openapi(request: Request) -> JSONResponse:
        """Return the OpenAPI document of the routes."""
        base = request.url.path.removesuffix("/agent/openapi.json")
        document = await asyncio.to_thread(built)  # the first time takes long
        return JSONResponse({**document, "servers": [{"url": base or "/"}]})


def build_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of routes, with the docstrings of fields as descriptions, and examples."""
    document = get_openapi(title="agentsd", version=installed_version(), description=_DESCRIPTION, routes=routes)
    document["info"] |= {"license": {"name": "MIT", "identifier": "MIT"}, "contact": {"name": "agentsd"}}
    document["tags"] = [{"name": tag, "description": text} for tag, text in _TAGS.items()]
    document["components"]["securitySchemes"] = {"key": _KEY}
    document["security"] = [{"key": []}, {}]
    schemas = document["components"]["schemas"]
    # Without it, the kind of a decision or of a part is unknown.
    for kind in ("Approve", "Edit", "Reject", "Respond", "TextPart", "MediaPart"):
        schemas[kind]["required"] = [*dict.fromkeys([*schemas[kind].get("required", ()), "type"])]
    _describe_fields(schemas)
    _remove_null_parameters(document["paths"])
    _add_common_errors(document["paths"])
    _add_examples(document["paths"])
    return document


def _describe_fields(schemas: dict[str, Any]) -> None:
    models = {model.__name__: model for model in _models(BaseModel)}
    for name, schema in schemas.items():
        model = models.get(name.removesuffix("-Input").removesuffix("-Output"))
        for field, text in field_docs(model).items() if model else ():
            if (node := schema.get("properties", {}).get(field)) is not None:
                node.setdefault("description", text)


def _models(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models of this package. Their names are unique."""
    for model in kind.__subclasses__():
        if model.__module__.partition(".")[0] == __name__.partition(".")[0]:
            yield model
        yield from _models(model)


def _remove_null_parameters(paths: dict[str, Any]) -> None:
    """Let no parameter be null: a query and a header have only texts, and one that is not set is left out."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
            if len(kinds) == 1:
                del schema["anyOf"]
                parameter["schema"] = {**kinds[0], **schema}


def _add_common_errors(paths: dict[str, Any]) -> None:
    """Add the errors of every route. As `responses` of the routers, they would take a third of the time to build."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        responses = operation["responses"]
        for status in _COMMON_ERRORS:
            common = {**responses["default"], "description": HTTPStatus(status).phrase}
            responses.setdefault(str(status), common)


def _add_examples(paths: dict[str, Any]) -> None:
    examples = yaml.safe_load(_EXAMPLES.read_text("utf-8"))
    for path, operations in paths.items():
        for method, operation in operations.items():
            found = examples.get(f"{method.upper()} {path}", {})
            if "requests" in found:
                named = {name: {"value": value} for name, value in found["requests"].items()}
                operation["requestBody"]["content"][_JSON]["examples"] = named
            success = next(response for status, response in operation["responses"].items() if status.startswith("2"))
            for kind, media_type in (("response", _JSON), ("stream", _STREAM)):
                if kind in found:
                    success["content"][media_type]["example"] = found[kind]


_R = TypeVar("_R", bound="ResponseModel")


class ResponseModel(BaseModel):
    """The base of response bodies. Immutable; clients ignore unknown fields of newer servers.

    `model_validate` reads the attributes of an object, such as a row of the store; times in seconds become dates.
    """

    model_config = ConfigDict(
        frozen=True, defer_build=True, extra="ignore", from_attributes=True, hide_input_in_errors=True
    )


class HeldSince(ResponseModel):
    """The rollback that holds back the files."""

    generation: int
    """Number of the generation that was rolled back to, in the process that did it."""
    digest: str
    """The digest of its files."""
    at: datetime
    """The time of the rollback, which may be before the start of the server."""


class LiveConfig(ResponseModel):
    """The live configuration."""

    generation: int
    digest: str
    environment: str | None = None
    """The environment (`AGENTSD_ENV`), whose settings file is laid over `agentsd.yaml`."""
    at: datetime | None = None
    """The time of publication."""
    trigger: Trigger | None = None
    """The cause of the publication."""
    held: bool
    """Whether the current files are ignored because of a rollback, until they change again."""
    hold: HeldSince | None = None
    """That rollback, while `held` is true. It survives restarts of the server."""
    agents: tuple[str, ...]
    stale: tuple[str, ...]
    """The agents whose files are invalid, and whose last good versions are live."""
    problems: tuple[Problem, ...]
    """Errors and warnings of the files that were last read, even if they were rejected."""

    @classmethod
    def of(cls, catalog: Catalog) -> LiveConfig:
        """Return the live configuration of a catalog."""
        current, last, hold = catalog.current, catalog.history.last, catalog.hold if catalog.held else None
        return cls(
            generation=current.number,
            digest=current.digest,
            environment=environment_in(current.files),
            at=last and last.at,
            trigger=last and last.trigger,
            held=catalog.held,
            hold=hold and HeldSince.model_validate(hold),
            agents=tuple(sorted(current.agents)),
            stale=tuple(sorted(name for name, agent in current.agents.items() if agent.stale)),
            problems=redact_problems(catalog.problems),
        )


class PastConfig(ResponseModel):
    """A generation that is or was live."""

    generation: int
    digest: str
    at: datetime
    trigger: Trigger
    live: bool
    changes: tuple[Change, ...]
    """The changes against the generation before it."""
    unusable: tuple[str, ...] = ()
    """The invalid files. Their last good versions, if any, were live."""

    @classmethod
    def of(cls, entry: HistoryEntry, live: int) -> PastConfig:
        """Return a history entry. `live` is the number of the live generation."""
        return cls(
            generation=entry.number,
            digest=entry.digest,
            at=entry.at,
            trigger=entry.trigger,
            live=entry.number == live,
            changes=redact_changes(entry.changes),
            unusable=entry.unusable,
        )


class ConfigHistory(ResponseModel):
    """The generations in the history, the live one first."""

    generations: tuple[PastConfig, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


class CheckedConfig(ResponseModel):
    """The result of a check of the files. Plugins are loaded but not set up, and no test case runs."""

    outcome: ReloadOutcome
    """`applied`: all files are valid; `partial`: some are; `rejected`: nothing would be published; `unchanged`."""
    held: bool
    """Whether the files are ignored because of a rollback, until they change again."""
    digest: str
    agents: tuple[str, ...]
    """The names of the agents that would be live."""
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, preview: Preview) -> CheckedConfig:
        """Return the result of a preview."""
        candidate = preview.candidate
        return cls(
            outcome=preview.outcome,
            held=preview.held,
            digest=candidate.digest,
            agents=tuple(sorted(candidate.generation.agents)),
            changes=redact_changes(candidate.changes),
            problems=redact_problems(preview.problems),
        )


def check_printable(text: str | None) -> str | None:
    """Return a text without characters such as line breaks; raises ValueError if it has some."""
    if text is not None and not text.isprintable():
        raise ValueError("must contain printable characters only")
    return text


PRINTABLE = AfterValidator(check_printable), Field(json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f]*$"})
"""What makes a text one without such characters. The pattern describes those of ASCII."""
Printable = Annotated[str, *PRINTABLE]


def whole_number(value: object) -> object:
    """Return a number such as 5.0, which JSON does not distinguish from 5, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Rollback(BaseModel):
    """The generation to publish again."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    generation: Annotated[int, Field(ge=1, strict=True), BeforeValidator(whole_number)]


class HealthResponse(ResponseModel):
    """The response of `/health`."""

    status: str = "ok"


class ReadinessResponse(ResponseModel):
    """Whether the server can do its work."""

    ready: bool
    not_ready: tuple[Literal["agents", "store", "server"], ...] = ()
    """`agents`: none is available; `store`: it cannot save; `server`: it is stopping."""
    generation: int
    agents: int
    problems: tuple[Problem, ...] = ()
    """Empty for clients without access."""


def redacted_json(body: BaseModel) -> dict[str, Any]:
    """Return a response body as JSON data, with secrets redacted."""
    data: dict[str, Any] = redact_data(body.model_dump(mode="json", exclude_none=True))
    return data


def redact_changes(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Redact secrets in changes, and every value at or below a key that is named like a secret."""
    return tuple(_redact_change(change) for change in changes)


def redact_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Redact secrets in problems."""
    return tuple(redact_problem(problem) for problem in problems)


def _redact_change(change: Change) -> Change:
    before, after = change.before, change.after
    for name in change.key.split("."):
        before, after = redact_data({name: before})[name], redact_data({name: after})[name]
    return change.model_copy(update={"before": before, "after": after})
