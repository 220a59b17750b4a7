"""The Grafana dashboard and the Prometheus rules use only metrics and labels that are emitted."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum

from framework import Approve, ModelError, Runtime
from framework.telemetry.metrics import RunMetrics
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ToolError
from framework.types.messages import Usage
from tests.support.mcp_worlds import opened, raw
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.telemetry import erase, work

FOLDER = ROOT / "examples/monitoring"
UNITS = {"s": "_seconds", "USD": "_USD", "{token}": ""}
SCRAPED = {"job", "instance", "le"}
"""Labels that Prometheus adds."""


def prometheus(reader: InMemoryMetricReader) -> dict[str, set[str]]:
    """Names and labels as Prometheus stores them: dots become underscores, units and `_total` are appended."""
    data = reader.get_metrics_data()
    assert data
    labels_by_name: dict[str, set[str]] = {}
    for metric in (m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics):
        name = metric.name.replace(".", "_") + UNITS.get(metric.unit or "", "")
        match metric.data:
            case Histogram():
                names = {f"{name}_{part}" for part in ("bucket", "sum", "count")}
            case Sum(is_monotonic=True):
                names = {f"{name}_total"}
            case Sum() | Gauge():
                names = {name}
        labels = {key.replace(".", "_") for point in metric.data.data_points for key in point.attributes or {}}
        for one in names:
            labels_by_name.setdefault(one, set()).update(labels)
    return labels_by_name


@pytest.fixture
def emitted(tmp_path: Path, reader: InMemoryMetricReader) -> dict[str, set[str]]:
    """Metrics and labels emitted by runs of every kind, a reload and an MCP server."""

    async def run(*turns: Turn, **keys: str) -> None:
        root = write(tmp_path, {"agents.d/one.yaml": agent("one", **keys)})
        async with Runtime.open(
            root, tools=[work, erase], models={"scripted": ScriptedModel(*turns)}, watch=False
        ) as runtime:
            async with runtime.stream("go", agent="one") as stream:
                async for _ in stream:
                    pass
            result = await stream.result()
            if result.pending:
                await runtime.resume(result.run_id, {question.id: Approve() for question in result.pending})

    async def main() -> None:
        await run(calls(("work", {"n": "1"}), ("work", {"n": "fail"})), "ok")
        await run(ModelError("down"))
        await run(calls(("work", {"n": "1"})), "ok", skill_policy="{allow: ['*'], deny: [work]}")
        await run(calls(("erase", {"n": "1"})), "ok", runtime_policy="{risk_level: high}")
        async with opened(raw(tmp_path)) as world:
            with pytest.raises(ToolError):
                await world.call("fail")

    asyncio.run(main())
    meters = RunMetrics()
    meters.record_model_attempt("house", "house-1", Usage(prompt_tokens=1, cost_usd=1), None)
    return prometheus(reader)


def expressions() -> dict[str, str]:
    """Return every PromQL expression by its place."""
    dashboard: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    labels_by_name = {
        f"{panel['title']}/{t['refId']}": t["expr"] for panel in dashboard["panels"] for t in panel["targets"]
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]  # a variable of another form fails here
            labels_by_name[f"${variable['name']}"] = f"sum by ({label}) ({metric})"
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
    return labels_by_name | {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def test_every_metric_and_label_is_one_that_is_emitted(emitted: dict[str, set[str]]) -> None:
    seen = set()
    for place, expression in expressions().items():
        plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
        labels = {one.strip() for grouped in re.findall(r"by \(([^)]*)\)", plain) for one in grouped.split(",")}
        labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r"==|>=|<=", "", plain)))
        used = re.findall(r"\b(?:agentsd|gen_ai|mcp)_\w+", re.sub(r"by \([^)]*\)|\{[^}]*\}", "", plain))
        assert used, place
        assert not set(used) - set(emitted), f"{place}: not emitted"
        emitted_labels = set.intersection(*(emitted[name] for name in used)) | SCRAPED
        assert labels <= emitted_labels, f"{place}: {labels - emitted_labels} of {used}"
        seen |= set(used)
    assert len(seen) > 15


def test_every_label_in_a_legend_or_summary_is_kept_by_its_expression() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    texts = [(t["expr"], t["legendFormat"]) for panel in dashboard["panels"] for t in panel["targets"]]
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        texts += [(rule["expr"], text) for text in rule["annotations"].values()]
    for expression, text in texts:
        grouped_labels = {
            label.strip() for grouped in re.findall(r"by \(([^)]*)\)", expression) for label in grouped.split(",")
        }
        used_labels = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
        assert used_labels <= grouped_labels, (expression, text)
