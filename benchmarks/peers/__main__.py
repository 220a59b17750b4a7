"""Builds the environments of all peers with pip: `python -m benchmarks.peers`."""

from __future__ import annotations

from benchmarks.peers.environment import BASELINE, FRAMEWORKS, build

if __name__ == "__main__":
    for name in (BASELINE, *FRAMEWORKS):
        build(name)
