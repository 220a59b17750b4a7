"""Parts of agents that are equal are one object: a thousand agents often have a handful of policies."""

from __future__ import annotations

from weakref import WeakValueDictionary

from framework.types.frozen import Frozen
from framework.types.spec import AgentSpec


class Shared:
    """The parts in use, by what is written in them."""

    def __init__(self) -> None:
        self._parts: WeakValueDictionary[tuple[type[Frozen], str], Frozen] = WeakValueDictionary()

    def spec(self, spec: AgentSpec) -> AgentSpec:
        """The same spec, of parts that others have as well."""
        written = {name: getattr(spec, name) for name in spec.model_fields_set}
        parts = {name: self._part(value) for name, value in written.items() if isinstance(value, Frozen)}
        return spec.model_copy(update=parts) if parts else spec

    def _part(self, part: Frozen) -> Frozen:
        return self._parts.setdefault((type(part), part.model_dump_json(exclude_unset=True)), part)
