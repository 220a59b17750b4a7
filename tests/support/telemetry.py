"""Tools for tests of metrics, and the values that a metric reader has collected."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from framework import tool


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    if n == "fail":
        raise ValueError(n)
    return n


@tool(risk="high")
async def erase(n: str) -> str:
    """Erases."""
    return n


def metric_points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Return the points of each metric: attributes, and the sum or the count."""
    data = reader.get_metrics_data()
    assert data
    points: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    counted = getattr(point, "count", value)
                    points.setdefault(metric.name, []).append((dict(point.attributes or {}), counted))
    return points
