"""The JSON of a skill host: its list of skills and the result of a call.

`GET /skills` answers `{"skills": [{"id": …, "description": …, "parameters": {…}}]}`. `POST /skills/ID/invoke` with
`{"arguments": {…}}` answers `{"success": true, "output": …}` or `{"success": false, "error": "…"}`, with optional
`trace_id` and `meta`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from framework.tools.http.client import HttpReply
from framework.tools.http.network import HttpFailed
from framework.types.errors import ToolError
from framework.types.text import shorten
from framework.types.tool_servers import Skill

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
