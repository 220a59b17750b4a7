"""What is said between us and a host of skills, as typed data.

`GET /skills` answers `{"skills": [{"id": …, "description": …, "parameters": {…}}]}`. `POST /skills/ID/invoke` with
`{"arguments": {…}}` answers `{"success": true, "output": …}` or `{"success": false, "error": "…"}`, with `trace_id` and
`meta` if the host likes.
"""

from __future__ import annotations

import json
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


class SkillError(ToolError):
    """A skill could not do what it was asked, or its host answered something that is no result."""

    code = "skill_failed"


class SkillResult(BaseModel):
    """What a host answers to a call."""

    model_config = ConfigDict(strict=True)

    success: bool
    output: Any = None
    error: str | None = None
    trace_id: str | None = None
    """Under which the host has noted the call."""
    meta: dict[str, Any] = {}


class ListedSkill(BaseModel):
    """What a host says of one of its skills; the manifest's word goes before that of the code and its documents."""

    model_config = ConfigDict(strict=True)

    id: str
    description: str | None = None
    docstring: str | None = None
    document: str | None = None
    parameters: dict[str, Any] = {}
    manifest: dict[str, Any] = {}

    @property
    def said(self) -> str:
        """The best description it has, without what follows the first paragraph."""
        texts = (self.manifest.get("description"), self.description, self.docstring, self.document)
        best = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")
        paragraph = " ".join(best.split("\n\n")[0].split()).lstrip("# ")
        return shorten(paragraph, _MAX_DESCRIPTION_CHARS)

    @property
    def arguments(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        own = self.manifest.get("parameters")
        return own if isinstance(own, dict) and own else self.parameters


def parse_listing(reply: HttpReply) -> tuple[dict[str, Skill], list[str]]:
    """The skills that a host lists, by id, and what is wrong with others.

    Raises:
        HttpFailed: it is no list of skills.
    """
    if reply.status != 200:
        raise HttpFailed(f"{reply.url} answered {reply.status}, not 200 with its skills")
    data = _json(reply)
    listed = data.get("skills") if isinstance(data, dict) else data
    if not isinstance(listed, list):
        raise HttpFailed(f'{reply.url} answered without a list of skills: {{"skills": […]}}')
    skills: dict[str, Skill] = {}
    faults: list[str] = []
    for entry in listed[:_MAX_SKILLS]:
        try:
            offered = ListedSkill.model_validate(entry)
            skill = Skill(id=offered.id, description=offered.said or None, parameters=offered.arguments)
        except ValidationError as error:
            name = entry.get("id") if isinstance(entry, dict) else None
            faults.append(f"the skill {str(name)[:80]!r} cannot be used: {_first(error)}")
            continue
        if skill.id in skills:
            faults.append(f"the skill {skill.id!r} is listed twice: the first is used")
        skills.setdefault(skill.id, skill)
    if len(listed) > _MAX_SKILLS:
        faults.append(f"it lists {len(listed)} skills: only the first {_MAX_SKILLS} are used")
    return skills, faults


def parse_result(skill_id: str, reply: HttpReply) -> Any:
    """What a call brought; raises SkillError."""
    try:
        result = SkillResult.model_validate(_json(reply))
    except (HttpFailed, ValidationError) as error:
        why = error.message if isinstance(error, HttpFailed) else _first(error)
        advice = "; its host may not have it any more" if reply.status == 404 else ""
        raise SkillError(f"the skill {skill_id!r} answered {reply.status} without a result: {why}{advice}") from None
    if result.success and reply.status < 300:
        return result.output
    told = (result.error or f"it failed without saying why (status {reply.status})")[:_MAX_ERROR_CHARS]
    noted = f" (its trace: {result.trace_id[:64]})" if result.trace_id else ""
    raise SkillError(f"{told}{noted}")


def _json(reply: HttpReply) -> Any:
    if reply.truncated:
        raise HttpFailed(f"the answer is larger than {len(reply.body)} bytes")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise HttpFailed(f"the answer is not JSON but {reply.content_type or 'of no type'}") from None


def _first(error: ValidationError) -> str:
    finding = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in finding['loc']) or 'it'}: {finding['msg']}"
