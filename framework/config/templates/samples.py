"""Sample values for inputs and for the runtime's own templates, which are rendered once before they take effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from framework.types.messages import Summary
from framework.types.plan import Plan, PlanStep
from framework.types.spec import InputSpec


class AnyValue(dict[str, Any]):
    """A placeholder for an object of undeclared shape: it has every key and accepts every operator."""

    def __missing__(self, key: str) -> AnyValue:
        return self

    def _self(self, *_: object) -> AnyValue:
        return self

    def _false(self, _: object) -> bool:
        return False

    def __format__(self, _: str) -> str:
        return ""

    def __float__(self) -> float:
        return 0.0

    def __index__(self) -> int:
        return 0

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _self
    __floordiv__ = __mod__ = __neg__ = __round__ = _self
    __lt__ = __le__ = __gt__ = __ge__ = _false


def input_samples(inputs: Mapping[str, InputSpec]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield sample requests with a description: one with all inputs, and one with the required inputs only."""
    samples = {name: _sample(field) if field.default is None else field.default for name, field in inputs.items()}
    yield "with all inputs", samples
    if optional := {name: field.default for name, field in inputs.items() if not field.required}:
        yield f"without {', '.join(optional)}", samples | optional


def placeholders(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Return a value to display for each input: its default, or its name in angle brackets."""
    return {
        name: field.default if field.default is not None else f"<{name}>" if field.type == "string" else _sample(field)
        for name, field in inputs.items()
    }


def runtime_samples(shared: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the runtime's own templates with sample variables; all but `error.j2` also receive `shared`."""
    steps = tuple(PlanStep(id=f"s{n}", description="text", status=s) for n, s in enumerate(("done", "failed")))
    yield "react.j2", shared
    planning = {"findings": [], "feedback": "", "progress": [], "max_plan_steps": 1}
    progress = [{"id": "s1", "status": "done", "description": "text"}]
    yield "plan.j2", {**shared, **planning}
    yield "plan.j2", {**shared, **planning, "findings": ["text"], "feedback": "text", "progress": progress}
    yield "summary.j2", {**shared, "plan": Plan(goal="text", steps=steps).model_dump()}
    yield "compress.j2", {**shared, "requests": ["text"]}
    summary = Summary(upto=1, text="text", events=("text",), facts=("text",)).model_dump()
    yield "earlier.j2", {**shared, "summary": summary}
    yield "earlier.j2", {**shared, "summary": {**summary, "events": (), "facts": ()}}
    finding = {"field": "text", "kind": "value", "problem": "text", "value": "text", "expected": "text", "fix": "text"}
    yield "error.j2", {"tool": "text", "message": "text", "hint": None, "findings": []}
    yield "error.j2", {"tool": "text", "message": "text", "hint": None, "findings": [finding]}


def _sample(field: InputSpec) -> Any:
    match field.type:
        case "string":
            return "text"
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
        case "array":
            return [AnyValue()]
        case "object":
            return AnyValue()
