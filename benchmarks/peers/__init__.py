"""Other agent frameworks do the same jobs against the same model server, in turn with agentsd and a hand-written loop.

In reading order: `job` (what is done, and what a peer defines), one module per peer, `environment` (their packages),
`worker` (executes jobs in such an environment), `process` (a worker, seen from here), `measure` (rounds and tables).
"""

from benchmarks.peers.measure import tables

__all__ = ["tables"]
