"""The tutorial, followed from an empty folder."""

from __future__ import annotations

from pathlib import Path

from tests.support.loopback import fixed_port
from tests.support.otlp_sink import sink
from tests.support.page_steps import follow
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs/tutorial").glob("0*.md"))


def follow_the_tutorial(folder: Path, **environment: str) -> None:
    """Do all steps. A collector of traces stands in for Phoenix; both ports are free ones."""
    with sink() as phoenix:
        port = str(fixed_port())
        replaced = {"8321": port, "http://127.0.0.1:6006": phoenix.url}
        for page in PAGES:
            follow(page, folder, replaced, AGENTSD_SERVER__PORT=port, **environment)
        assert {span.name for span in phoenix.spans} >= {"invoke_agent clerk", "execute_tool shop.order"}
    assert len(PAGES) == 8
