"""Example skill host: functions that agents call over HTTP. Use it as a starting point for your own.

    pip install fastapi uvicorn
    uvicorn examples.skill_host.app:app --port 8900

and in a project, `plugins/skills.yaml`:

    version: 1
    skill_hosts:
      example: {url: "http://127.0.0.1:8900", discover: true, headers: {authorization: "Bearer ${SKILL_KEY}"}}

`GET /skills` lists the skills, and `POST /skills/ID/invoke` invokes one. If SKILL_KEY is set, callers must send it.
SKILL_ROOT (default: the working directory) is the folder of file_search and log_transform.
"""

from __future__ import annotations

import hmac
import inspect
import math
import os
import statistics
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_ANSWERS = 1000
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Strict(BaseModel):
    """Arguments or output of a skill; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


class Echo(Strict):
    """Arguments of echo."""

    text: str = Field(description="the text to return")


class EchoOutput(Strict):
    """Output of echo."""

    text: str


def echo(arguments: Echo) -> EchoOutput:
    """Return the text unchanged."""
    return EchoOutput(text=arguments.text)


class FileSearch(Strict):
    """Arguments of file_search."""

    query: str = Field(min_length=1, description="part of a file's name")
    root_dir: str = Field(".", description="folder to search, relative to the host's root")
    limit: int = Field(20, ge=1, le=200, description="maximum number of files")


class FileSearchOutput(Strict):
    """Output of file_search: paths relative to the host's root, sorted."""

    files: list[str]
    total: int = Field(description="number of files found, including those above the limit")


def file_search(arguments: FileSearch) -> FileSearchOutput:
    """Find files by a part of their name."""
    matches = _below(arguments.root_dir).rglob(f"*{arguments.query.replace('*', '')}*")
    files = sorted(path.relative_to(_root()).as_posix() for path in matches if path.is_file())
    return FileSearchOutput(files=files[: arguments.limit], total=len(files))


class Calculator(Strict):
    """Arguments of calculator."""

    operation: Literal["mean", "median", "sum", "min", "max", "count"]
    numbers: list[float] = Field(min_length=1, max_length=10_000)


class CalculatorOutput(Strict):
    """Output of calculator."""

    result: float


def calculator(arguments: Calculator) -> CalculatorOutput:
    """Calculate the mean, median, sum, minimum, maximum or count of a list of numbers."""
    operations: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean, "median": statistics.median, "sum": math.fsum, "min": min, "max": max, "count": len,
    }  # fmt: skip
    return CalculatorOutput(result=operations[arguments.operation](arguments.numbers))


class LogTransform(Strict):
    """Arguments of log_transform."""

    path: str = Field(description="log file, relative to the host's root")
    operation: Literal["levels", "errors", "tail"] = "levels"
    limit: int = Field(20, ge=1, le=200, description="maximum number of lines")


class LogTransformOutput(Strict):
    """Output of log_transform."""

    levels: dict[str, int] = Field(description="number of lines by level")
    lines: list[str] = Field(description="the requested lines, in the order of the file")


def log_transform(arguments: LogTransform) -> LogTransformOutput:  # noqa: D103 - described by its document in SKILLS
    path = _below(arguments.path)
    if not path.is_file():
        raise ValueError(f"no such file: {arguments.path!r}")
    lines = path.read_text("utf-8", "replace").splitlines()
    levels = {level: sum(level in line for line in lines) for level in LEVELS}
    errors = [line for line in lines if "ERROR" in line or "CRITICAL" in line]
    chosen = {"levels": [], "errors": errors, "tail": lines}[arguments.operation]
    return LogTransformOutput(levels={level: n for level, n in levels.items() if n}, lines=chosen[-arguments.limit :])


def _root() -> Path:
    return Path(os.environ.get("SKILL_ROOT", ".")).resolve()


def _below(relative: str) -> Path:
    path = (_root() / relative).resolve()
    if not path.is_relative_to(_root()):
        raise ValueError(f"{relative!r} is outside the host's root")
    return path


SKILLS: dict[str, tuple[Callable[[Any], BaseModel], type[BaseModel], dict[str, str]]] = {
    "echo": (echo, Echo, {}),
    "file_search": (file_search, FileSearch, {"description": "Search the host's files by name."}),
    "calculator": (calculator, Calculator, {}),
    "log_transform": (
        log_transform,
        LogTransform,
        {"document": "# Count the levels of a log file, or show its errors or last lines\n\nPlain text only."},
    ),
}
"""Function, arguments and texts of each skill, by id. Models get the first of description, docstring and document."""


class Invocation(BaseModel):
    """Body of an invocation."""

    arguments: dict[str, Any] = {}


def require_key(authorization: Annotated[str, Header()] = "") -> None:
    """Reject callers without the key, if SKILL_KEY is set."""
    key = os.environ.get("SKILL_KEY")
    if key and not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        raise HTTPException(401, "the key in the authorization header is missing or wrong")


app = FastAPI(dependencies=[Depends(require_key)])
answers: OrderedDict[str, dict[str, Any]] = OrderedDict()
"""Results by idempotency key: a repeated call is executed once."""


@app.get("/skills")
def list_skills() -> dict[str, list[dict[str, Any]]]:
    """List the skills with their schemas."""
    return {
        "skills": [
            {"id": name, "docstring": inspect.getdoc(function), "parameters": model.model_json_schema(), **texts}
            for name, (function, model, texts) in SKILLS.items()
        ]
    }


@app.post("/skills/{name}/invoke")
def invoke(
    name: str,
    body: Invocation,
    idempotency_key: Annotated[str, Header()] = "",
    traceparent: Annotated[str, Header()] = "",
) -> dict[str, Any]:
    """Invoke a skill, or return the stored result of the same idempotency key."""
    if name not in SKILLS:
        raise HTTPException(404, f"no such skill: {name!r}")
    if idempotency_key not in answers:
        trace_id = traceparent.split("-")[1] if traceparent.count("-") == 3 else uuid4().hex
        answers[idempotency_key or trace_id] = answer = {**_result(name, body.arguments), "trace_id": trace_id}
        if len(answers) > MAX_ANSWERS:
            answers.popitem(last=False)
        return answer
    return {**answers[idempotency_key], "meta": {"repeated": True}}


def _result(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function, model, _ = SKILLS[name]
    try:
        return {
            "success": True,
            "output": function(model.model_validate(arguments)).model_dump(),
            "meta": {"skill": name},
        }
    except ValidationError as error:
        return {"success": False, "error": "; ".join(f"{e['loc']}: {e['msg']}" for e in error.errors())}
    except ValueError as error:
        return {"success": False, "error": str(error)}
