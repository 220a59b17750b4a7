"""agentsd with a store that keeps no traces. The other frameworks record none."""

from __future__ import annotations

from functools import partial

from benchmarks.peers import agentsd

TITLE = DURABLE_TITLE = "agentsd without stored traces"
PACKAGES = agentsd.PACKAGES
opened = agentsd.opened
durable = partial(agentsd.durable, settings="telemetry: {store_traces: false}\n")
