"""Tools of HTTP hosts that describe them in a file: their format, and the source that calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from framework.tools.http import HttpClient, HttpFailed, HttpReply, UrlRefused, WebUrl, parse_http_url
from framework.tools.tool import HostedOutput, Tool, ToolContext
from framework.tools.tool_source import OnChange, RefreshedSource, RemoteCall, external_tool, request_in_span
from framework.types.errors import ConfigError, ToolError
from framework.types.text import shorten
from framework.types.tool_servers import Skill, SkillHost

_MAX_SKILLS = 200
_MAX_DESCRIPTION_CHARS = 500
_MAX_ERROR_CHARS = 500
_MAX_META_CHARS = 4096
"""Size, as JSON, of what a host says of a call."""
_TRACE_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class SkillError(ToolError):
    """A skill failed, or its host sent an invalid result. The message has its reason."""

    code = "skill_failed"


class SkillResult(BaseModel):
    """The host's response to a call."""

    model_config = ConfigDict(strict=True)

    success: bool
    output: Any = None
    error: str | None = None
    trace_id: str | None = None
    """Id of the trace in which the host recorded the call."""
    meta: dict[str, Any] = {}

    @property
    def about(self) -> dict[str, Any]:
        """What the host says of the call: `trace_id` and `meta`. One that is too large is left out."""
        trace_id = self.trace_id if _TRACE_ID.fullmatch(self.trace_id or "") else None
        is_short = len(json.dumps(self.meta, ensure_ascii=False)) <= _MAX_META_CHARS
        found = {"trace_id": trace_id, "meta": self.meta if is_short else None}
        return {key: value for key, value in found.items() if value}


class ListedSkill(BaseModel):
    """A skill in the host's list. The manifest takes precedence over the description, docstring and document."""

    model_config = ConfigDict(strict=True)

    id: str
    description: str | None = None
    docstring: str | None = None
    document: str | None = None
    parameters: dict[str, Any] = {}
    manifest: dict[str, Any] = {}

    @property
    def summary(self) -> str:
        """The first paragraph of the first non-empty description."""
        texts = (self.manifest.get("description"), self.description, self.docstring, self.document)
        best = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")
        paragraph = " ".join(best.split("\n\n")[0].split()).lstrip("# ")
        return shorten(paragraph, _MAX_DESCRIPTION_CHARS)

    @property
    def arguments(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        own = self.manifest.get("parameters")
        return own if isinstance(own, dict) and own else self.parameters


def parse_listing(reply: HttpReply) -> tuple[dict[str, Skill], list[str]]:
    """Return the skills that a host lists, by id, and the faults of invalid ones.

    Raises:
        HttpFailed: the response is not a list of skills.
    """
    if reply.status != 200:
        raise HttpFailed(f"{reply.url} responded with HTTP {reply.status} instead of its list of skills")
    data = _json(reply)
    listed = data.get("skills") if isinstance(data, dict) else data
    if not isinstance(listed, list):
        raise HttpFailed(f'{reply.url} responded without a list of skills: expected {{"skills": […]}}')
    skills: dict[str, Skill] = {}
    faults: list[str] = []
    for entry in listed[:_MAX_SKILLS]:
        try:
            offered = ListedSkill.model_validate(entry)
            skill = Skill(id=offered.id, description=offered.summary or None, parameters=offered.arguments)
        except ValidationError as error:
            name = entry.get("id") if isinstance(entry, dict) else None
            faults.append(f"invalid skill {str(name)[:80]!r}: {_first(error)}")
            continue
        if skill.id in skills:
            faults.append(f"skill {skill.id!r} is listed twice: using the first")
        skills.setdefault(skill.id, skill)
    if len(listed) > _MAX_SKILLS:
        faults.append(f"the host lists {len(listed)} skills: only the first {_MAX_SKILLS} are used")
    return skills, faults


def parse_result(skill_id: str, reply: HttpReply) -> SkillResult:
    """Return the result of a call that succeeded. Raise SkillError if it failed or the response is invalid."""
    try:
        result = SkillResult.model_validate(_json(reply))
    except (HttpFailed, ValidationError) as error:
        why = error.message if isinstance(error, HttpFailed) else _first(error)
        advice = "; the host may have removed it" if reply.status == 404 else ""
        raise SkillError(
            f"skill {skill_id!r} responded with HTTP {reply.status} and no result: {why}{advice}"
        ) from None
    if result.success and reply.status < 300:
        return result
    message = (result.error or f"the skill failed without an error message (HTTP {reply.status})")[:_MAX_ERROR_CHARS]
    trace = f" (trace of the host: {result.trace_id[:64]})" if result.trace_id else ""
    raise SkillError(f"{message}{trace}")


def _json(reply: HttpReply) -> Any:
    if reply.truncated:
        raise HttpFailed(f"the response is larger than {len(reply.body)} bytes")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise HttpFailed(f"the response is not JSON; its content type is {reply.content_type or 'missing'}") from None


def _first(error: ValidationError) -> str:
    finding = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in finding['loc']) or 'it'}: {finding['msg']}"


_POLL_SECONDS = 30.0


class SkillSource(RefreshedSource):
    """The skills of one host as a source of tools. The list is refreshed periodically, and when the host was down."""

    def __init__(
        self,
        name: str,
        host: SkillHost,
        changed: OnChange,
        *,
        poll_interval: float = _POLL_SECONDS,
        first_retry: float = 1.0,
    ) -> None:
        """Create a source; `start` requests the list of skills.

        Args:
            name: name of the host in its file.
            host: configuration of the host.
            changed: called whenever the tools or faults change.
            poll_interval: seconds between two requests for the list of skills.
            first_retry: seconds before the first retry of a host that is down. The delay doubles, up to a minute.

        Raises:
            ConfigError: the URL is invalid.
        """
        super().__init__(f"skill.{name}", changed, poll_interval if host.discover else None, first_retry)
        self._host = host
        self._made: dict[str, tuple[Skill, Tool]] = {}
        self._known: dict[str, Skill] = {}
        """Skills from the host's last response, by id."""
        self._base = _base(host.url)
        self._client = HttpClient.to(self._base, timeout=host.timeout)

    # --- discovering skills

    async def _look(self) -> bool:
        """Request the list of skills and build the tools. Return whether the host responded."""
        faults: list[str] = []
        answered = True
        if self._host.discover:
            try:
                reply = await self._client.request("GET", self._url("skills"), headers=self._headers(), follow=False)
                self._known, faults = parse_listing(reply)
            except ToolError as error:
                faults.append(error.message)
                answered = False
        self.tools = tuple(self._tools(faults))
        self.faults = tuple(faults)
        return answered

    def _tools(self, faults: list[str]) -> Iterable[Tool]:
        skills = dict(self._known)
        for declared in self._host.skills:
            skills[declared.id] = _merge(declared, skills.get(declared.id))
        made = {}
        for skill in skills.values():
            known = self._made.get(skill.id)
            try:
                made[skill.id] = known if known and known[0] == skill else (skill, self._tool(skill))
            except ConfigError as error:
                faults.append(f"invalid skill {skill.id!r}: {error.message}")
        self._made = made
        return [tool for _, tool in made.values()]

    def _tool(self, skill: Skill) -> Tool:
        call: RemoteCall = partial(self._call, skill.id)
        return external_tool(
            f"{self.name}.{skill.id}",
            skill.description or f"The skill {skill.id} of {self.name.removeprefix('skill.')}.",
            skill.parameters,
            call,
            source="skill",
            risk=skill.risk,
            idempotent=skill.idempotent,
            timeout=skill.timeout,
        )

    # --- calling skills

    async def _call(self, skill_id: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        headers = {**self._headers(), "content-type": "application/json", "idempotency-key": context.idempotency_key}
        body = json.dumps({"arguments": arguments}, ensure_ascii=False).encode("utf-8", "replace")
        url = self._url(f"skills/{skill_id}/invoke")
        try:
            reply = await request_in_span(
                self._client, context, "POST", url, headers=headers, body=body, trace=self._host.trace
            )
        except HttpFailed:
            self._wake.set()
            raise
        if reply.status == 404:
            self._wake.set()
        result = parse_result(skill_id, reply)
        return HostedOutput(result.output, result.about)

    def _url(self, path: str) -> WebUrl:
        return replace(self._base, target=f"{self._base.target.rstrip('/')}/{path}")

    def _headers(self) -> dict[str, str]:
        return {"accept": "application/json"} | {
            name.lower(): value.get_secret_value() for name, value in self._host.headers.items()
        }


def _merge(declared: Skill, known: Skill | None) -> Skill:
    """Return the declared skill, with description and parameters from the host where it declares none."""
    if known is None:
        return declared
    return declared.model_copy(
        update={
            "description": declared.description or known.description,
            "parameters": declared.parameters or known.parameters,
        }
    )


def _base(url: str) -> WebUrl:
    try:
        base = parse_http_url(url.rstrip("/"))
    except UrlRefused as error:
        raise ConfigError(error.message) from None
    if "?" in base.target:
        raise ConfigError(f"the URL of an HTTP tool host cannot have a query: write {str(base).partition('?')[0]}")
    return base
