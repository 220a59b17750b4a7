"""Validates what a tool returns, by the annotation of its function, and describes it to the model.

Only annotations that contain a Pydantic model, a TypedDict or a dataclass are checked: they declare a structure, while
`-> str` or `-> dict` declares little.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from framework.types.errors import ToolError
from framework.types.file import File

MAX_DESCRIBED_SCHEMA_CHARS = 2000
"""Maximum length of a schema that is described to the model, because every request pays for it."""
_MAX_PROBLEMS = 5
_GENERATED_KEYS = ("title", "description")
"""Keys of a schema that Pydantic generates; descriptions of fields are kept."""


class ReturnError(ToolError):
    """A tool returned data that its annotation does not allow. Correct the tool or its annotation."""

    code = "invalid_return"


@dataclass(frozen=True, slots=True)
class ReturnType:
    """The declared return type of a tool."""

    name: str
    adapter: TypeAdapter[Any]

    @classmethod
    def from_annotation(cls, annotation: Any) -> ReturnType | None:
        """Return the type of a return annotation, or None if it declares no structure."""
        parts = [*_parts(annotation)]
        if File in parts or not any(map(_is_structure, parts)):
            return None
        name = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        return cls(name, TypeAdapter(annotation))

    @property
    def described(self) -> str:
        """Type as JSON Schema, for the description of the tool; empty if it is too long."""
        schema = self.adapter.json_schema(by_alias=False, mode="serialization")
        text = json.dumps(_without_titles(schema), ensure_ascii=False, separators=(",", ":"))
        return f"Returns JSON of this schema: {text}" if len(text) <= MAX_DESCRIBED_SCHEMA_CHARS else ""

    def check(self, output: Any) -> Any:
        """Return the output as JSON data of the declared type.

        Raises:
            ReturnError: the output does not match. The tool has already run.
        """
        try:
            value = self.adapter.validate_python(output)
            return self.adapter.dump_python(value, mode="json", by_alias=False, warnings="error")
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            problems = [f"{'.'.join(map(str, detail['loc'])) or 'result'}: {detail['msg']}" for detail in details]
            reason = "; ".join(problems[:_MAX_PROBLEMS])
        except Exception as error:  # noqa: BLE001 - validators and serializers are the tool's own code
            reason = f"{type(error).__name__}: {error}"
        raise ReturnError(f"the tool ran, but its return value is not a valid {self.name}: {reason}") from None


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all its type arguments, such as those of `list[Out] | None`."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)


def _is_structure(part: Any) -> bool:
    if not isinstance(part, type):
        return False
    return is_dataclass(part) or is_typeddict(part) or (issubclass(part, BaseModel) and part is not BaseModel)


def _without_titles(schema: Any, *, is_names: bool = False) -> Any:
    """Return a schema without its titles and without the descriptions of whole types."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    generated = () if is_names else _GENERATED_KEYS if "properties" in schema else ("title",)
    declared = {key: value for key, value in schema.items() if key not in generated}
    return {key: _without_titles(value, is_names=key in ("properties", "$defs")) for key, value in declared.items()}
