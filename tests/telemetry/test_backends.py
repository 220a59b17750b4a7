"""Phoenix and MLflow display the traces correctly; `make test-backends` installs and runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.backend_runs import PRICE, TOKENS, WORD
from tests.support.backends import Backend, Seen, eventually, mlflow, phoenix, send

SERVERS: dict[str, Callable[[Path, Path], AbstractContextManager[Backend]]] = {"PHOENIX": phoenix, "MLFLOW": mlflow}
LLM = {"PHOENIX": "LLM", "MLFLOW": "CHAT_MODEL"}

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Sent:
    """A backend, and the runs sent to it with and without content."""

    which: str
    backend: Backend
    project: str
    runs: dict[str, dict[str, Any]]

    def spans(self, content: str, run: str, count: int) -> list[Seen]:
        """Return all spans of a run in the order of their start."""
        trace_id = self.runs[content][run]["trace_id"]

        def all_of_them() -> list[Seen] | None:
            spans = self.backend.spans(self.project, trace_id)
            return spans if len(spans) >= count else None

        spans = eventually(all_of_them, f"{self.which} does not show the spans of {run}")
        assert spans
        return sorted(spans, key=lambda span: span.began)


@pytest.fixture(scope="module", params=SERVERS)
def sent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    which = request.param
    if not (venv := os.environ.get(f"{which}_VENV")):
        pytest.skip(f"{which}_VENV is not set: see `make test-backends`")
    with SERVERS[which](Path(venv).absolute(), tmp_path_factory.mktemp(which.lower())) as backend:
        headers = backend.project("agentsd-test")
        runs = {mode: send(backend, "agentsd-test", mode, headers) for mode in ("none", "full")}
        yield Sent(which, backend, "agentsd-test", runs)


TREES = {
    "react": """\
        invoke_workflow react CHAIN
          agent.route CHAIN
          invoke_agent react AGENT
            agent.step 1 CHAIN
              chat scripted LLM
              execute_tool work TOOL
              execute_tool work TOOL !
            agent.step 2 CHAIN
              chat scripted LLM""",
    "planner": """\
        invoke_workflow planner CHAIN
          agent.route CHAIN
          invoke_agent planner AGENT
            plan planner CHAIN
              chat scripted LLM
            plan.step a CHAIN
              execute_tool work TOOL
            plan.step b CHAIN
              invoke_agent planner AGENT
                agent.step 1 CHAIN
                  chat scripted LLM
            plan.summary CHAIN
              agent.step 1 CHAIN
                chat scripted LLM""",
    "careful": """\
        invoke_workflow careful CHAIN
          agent.route CHAIN
          invoke_agent careful AGENT
            agent.step 1 CHAIN
              chat scripted LLM
              execute_tool erase TOOL""",
    "resumed": """\
        invoke_workflow careful CHAIN
          invoke_agent careful AGENT
            agent.step 1 CHAIN
              execute_tool erase TOOL
            agent.step 2 CHAIN
              chat scripted LLM""",
    "failing": """\
        invoke_workflow failing CHAIN !
          agent.route CHAIN
          invoke_agent failing AGENT !
            agent.step 1 CHAIN !
              chat scripted LLM !""",
    "flaky": """\
        invoke_workflow flaky CHAIN
          agent.route CHAIN
          invoke_agent flaky AGENT
            agent.step 1 CHAIN
              chat house-1 LLM
                chat.attempt 1 CHAIN !
                chat.attempt 2 CHAIN""",
}
"""Expected names, kinds and errors, with and without content."""
MODEL_CALLS = {"react": 2, "planner": 3, "careful": 1, "resumed": 1, "failing": 0, "flaky": 1}


@pytest.mark.parametrize("content", ["none", "full"])
@pytest.mark.parametrize("run", TREES)
def test_the_backend_shows_the_tree_with_kinds_and_errors(sent: Sent, run: str, content: str) -> None:
    expected = dedent(TREES[run])
    spans = sent.spans(content, run, expected.count("\n") + 1)
    assert drawn(spans, LLM[sent.which]) == expected


@pytest.mark.parametrize("run", TREES)
def test_the_backend_counts_tokens_once(sent: Sent, run: str) -> None:
    trace_id = sent.runs["full"][run]["trace_id"]
    expected = MODEL_CALLS[run] * TOKENS

    def counted() -> bool:
        return sent.backend.tokens(sent.project, trace_id) == expected

    assert eventually(counted, f"{sent.which} does not count {expected} tokens")


def test_the_backend_shows_the_cost_of_a_custom_price(sent: Sent) -> None:
    trace_id = sent.runs["none"]["flaky"]["trace_id"]
    # Phoenix computes cost from its own price list and ignores the cost in the span.
    expected = 0 if sent.which == "PHOENIX" else TOKENS * PRICE
    assert sent.spans("none", "flaky", 7)
    assert sent.backend.cost(sent.project, trace_id) == pytest.approx(expected)


def test_the_backend_shows_pending_decisions(sent: Sent) -> None:
    texts = [span.text for span in sent.spans("none", "careful", 6) if "waits for approval: erase" in span.text]
    assert len(texts) == 4, "the run, its agent, the turn and the call"


def test_the_parts_of_a_paused_run_are_one_session(sent: Sent) -> None:
    parts = [sent.runs["none"][part]["trace_id"] for part in ("careful", "resumed")]
    assert len(set(parts)) == 2
    assert sent.backend.sessions(sent.project, parts) == {"careful-none"}
    assert sent.backend.sessions(sent.project, [sent.runs["none"]["react"]["trace_id"]]) == {"react-none"}


def test_the_backend_has_content_only_if_enabled(sent: Sent) -> None:
    for run, tree in TREES.items():
        without_content, with_content = (
            "".join(span.text for span in sent.spans(mode, run, tree.count("\n") + 1)) for mode in ("none", "full")
        )
        assert WORD not in without_content, run
        assert WORD in with_content, run


def drawn(spans: list[Seen], llm: str) -> str:
    """Draw the tree; each span with its kind, and `!` if it failed."""
    span_ids = {span.span_id for span in spans}
    lines = []

    def below(parent: str | None, depth: int) -> None:
        for span in spans:
            if (span.parent_id if span.parent_id in span_ids else None) == parent:
                kind = "LLM" if span.kind == llm else span.kind
                lines.append("  " * depth + f"{span.name} {kind}" + (" !" if span.failed else ""))
                below(span.span_id, depth + 1)

    below(None, 0)
    return "\n".join(lines)
