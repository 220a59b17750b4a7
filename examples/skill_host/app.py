"""A host of skills: functions that agents call over HTTP. Take it as a pattern for your own.

    pip install fastapi uvicorn
    uvicorn examples.skill_host.app:app --port 8900

and in a project, `plugins/skills.yaml`:

    version: 1
    skill_hosts:
      example: {url: "http://127.0.0.1:8900", discover: true, headers: {authorization: "Bearer ${SKILL_KEY}"}}

`GET /skills` says what there is, `POST /skills/ID/invoke` does it. With SKILL_KEY set, callers must bring it; below
SKILL_ROOT (the working directory) file_search looks for files.
"""

from __future__ import annotations

import hmac
import inspect
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

KEPT_ANSWERS = 1000
LENGTHS = {"m": 1.0, "km": 1000.0, "cm": 0.01, "mile": 1609.344, "inch": 0.0254}


class FileSearch(BaseModel):
    """Arguments of file_search."""

    model_config = ConfigDict(extra="forbid")
    query: str = Field(min_length=1, description="part of a file's name")
    limit: int = Field(20, ge=1, le=200, description="how many at most")


def file_search(asked: FileSearch) -> list[str]:
    """Find files by a part of their name."""
    root = Path(os.environ.get("SKILL_ROOT", "."))
    found = (path for path in root.rglob(f"*{asked.query.replace('*', '')}*") if path.is_file())
    return sorted(path.relative_to(root).as_posix() for path in found)[: asked.limit]


class TextStats(BaseModel):
    """Arguments of text_stats."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(description="what to count in")


def text_stats(asked: TextStats) -> dict[str, int]:
    """Count the characters, words and lines of a text.

    A word is what stands between spaces; an empty text has no line.
    """
    return {
        "characters": len(asked.text),
        "words": len(asked.text.split()),
        "lines": len(asked.text.splitlines()),
    }


class ConvertUnits(BaseModel):
    """Arguments of convert_units."""

    model_config = ConfigDict(extra="forbid")
    value: float = Field(description="how many")
    from_unit: str = Field(description="m, km, cm, mile or inch")
    to_unit: Literal["m", "km", "cm", "mile", "inch"] = "m"


def convert_units(asked: ConvertUnits) -> float:  # noqa: D103 - its document below is what is told of it
    if asked.from_unit not in LENGTHS:
        raise ValueError(f"there is no unit {asked.from_unit!r}; there are: {', '.join(LENGTHS)}")
    return asked.value * LENGTHS[asked.from_unit] / LENGTHS[asked.to_unit]


SKILLS: dict[str, tuple[Callable[[Any], Any], type[BaseModel], dict[str, str]]] = {
    "file_search": (file_search, FileSearch, {"description": "Search the host's files by name."}),
    "text_stats": (text_stats, TextStats, {}),
    "convert_units": (
        convert_units,
        ConvertUnits,
        {"document": "# Convert a length to another unit\n\nMetric, mostly."},
    ),
}
"""Each with its arguments and what else is known of it; models get the first of description, docstring, document."""


class Invocation(BaseModel):
    """A call's body."""

    arguments: dict[str, Any] = {}


def authorised(authorization: Annotated[str, Header()] = "") -> None:
    """Refuse callers without the key, if there is one."""
    key = os.environ.get("SKILL_KEY")
    if key and not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        raise HTTPException(401, "the key in the header authorization is missing or wrong")


app = FastAPI(dependencies=[Depends(authorised)])
answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
"""By idempotency key: a call that arrives twice is made once."""


@app.get("/skills")
def list_skills() -> dict[str, list[dict[str, Any]]]:
    """What there is."""
    return {
        "skills": [
            {"id": name, "docstring": inspect.getdoc(function), "parameters": model.model_json_schema(), **known}
            for name, (function, model, known) in SKILLS.items()
        ]
    }


@app.post("/skills/{name}/invoke")
def invoke(
    name: str,
    body: Invocation,
    idempotency_key: Annotated[str, Header()] = "",
    traceparent: Annotated[str, Header()] = "",
) -> dict[str, Any]:
    """Do it."""
    if name not in SKILLS:
        raise HTTPException(404, f"there is no skill {name!r}")
    if idempotency_key not in answers:
        trace_id = traceparent.split("-")[1] if traceparent.count("-") == 3 else uuid4().hex
        answers[idempotency_key or trace_id] = answer = {**_result(name, body.arguments), "trace_id": trace_id}
        if len(answers) > KEPT_ANSWERS:
            answers.popitem(last=False)
        return answer
    return {**answers[idempotency_key], "meta": {"repeated": True}}


def _result(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function, model, _ = SKILLS[name]
    try:
        return {"success": True, "output": function(model.model_validate(arguments)), "meta": {"skill": name}}
    except ValidationError as error:
        return {"success": False, "error": "; ".join(f"{e['loc']}: {e['msg']}" for e in error.errors())}
    except ValueError as error:
        return {"success": False, "error": str(error)}
