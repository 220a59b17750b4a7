"""`/metrics` and `/ready` of a server, as Prometheus and load balancers use them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

import httpx2
import psycopg
import pytest
from fastapi import FastAPI
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from examples.scale_demo.postgres import new_database
from framework import Runtime
from framework.server.event_stream import ConfigFeed
from framework.server.operations_api import StoreCheck
from framework.server.process import create_app
from framework.server.startup import housekeeping
from framework.store import open_store
from framework.store.types import Blueprint
from framework.telemetry.metrics import ServerMetrics
from framework.telemetry.setup import Scrape, collect_metrics
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.otlp_sink import sink
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.served import Served, served
from tests.support.telemetry import metric_points
from tests.support.waiting import until, wait_until

ONE = {"agents.d/one.yaml": agent("one", model="offline")}
KEY = "a-key-for-tests-only"
Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the tests that change nothing."""
    with served(write(tmp_path_factory.mktemp("still"), ONE)) as server:
        yield server


def samples(server: Served) -> dict[Sample, float]:
    """The values of `/metrics`, by name and labels."""
    response = server.request("GET", "/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    """The sum of the values with this name and at least these labels."""
    return sum(number for (key, has), number in found.items() if key == name and labels.items() <= dict(has).items())


# --- metrics


def test_requests_are_counted_by_route_template_and_status(still: Served) -> None:
    count = "http_server_request_duration_seconds_count"
    before = samples(still)
    still.get("/agent/config")
    still.request("POST", "/agent/config/rollback", json={"generation": 99})
    after = samples(still)
    for route, status in (("/agent/config", "200"), ("/agent/config/rollback", "404"), ("/metrics", "200")):
        labels = {"http_route": route, "http_response_status_code": status}
        assert value(after, count, **labels) - value(before, count, **labels) == 1
    assert value(after, "agentsd_config_generation") == 1
    assert value(after, "process_resident_memory_bytes") > 1e6
    assert value(after, "target_info", service_name="agentsd") == 1


def test_nothing_that_a_client_chooses_becomes_a_label(still: Served) -> None:
    def probe(number: int) -> None:
        still.request("GET", f"/agent/{number}/x", headers={"traceparent": f"00-{number:032x}-{1:016x}-01"})
        still.request(f"M{number}", "/agent/config", headers={"user-agent": f"u{number}", "host": f"h{number}.test"})
        still.request("GET", f"/agent/agents?q={number}", headers={"host": f"h{number}.test"})

    probe(0)
    before = samples(still)
    for number in range(1, 6):
        probe(number)
    assert samples(still).keys() == before.keys()


def test_rejected_requests_are_counted_by_reason(tmp_path: Path) -> None:
    with served(write(tmp_path, ONE), key=KEY, environment={"AGENTSD_SERVER__API_KEYS": f'["{KEY}"]'}) as server:
        for key in ("wrong", "Bearer of-another-server"):
            assert server.request("GET", "/metrics", headers={"authorization": key}).status_code == 401
        found = samples(server)
        assert value(found, "agentsd_server_rejected_total", reason="unauthenticated") == 2
        assert value(found, "http_server_request_duration_seconds_count", http_response_status_code="401") == 2


def test_metrics_and_problems_are_for_keys_that_may_read_everything(tmp_path: Path) -> None:
    chat = {"name": "chat", "sha256": sha256(b"key-of-a-chat-client").hexdigest(), "roles": ["chat"], "tenant": "a"}
    few = {"name": "few", "sha256": sha256(b"key-of-one-agent-only").hexdigest(), "roles": ["read"], "agents": ["one"]}
    write(tmp_path, {**ONE, "agents.d/bad.yaml": "name: ["})
    with served(tmp_path, environment={"AGENTSD_SERVER__API_KEYS": json.dumps([KEY, chat, few])}) as server:
        for key in ("key-of-a-chat-client", "key-of-one-agent-only"):
            headers = {"authorization": f"Bearer {key}"}
            assert server.request("GET", "/metrics", headers=headers).status_code == 403
            assert server.get("/ready", headers=headers)["problems"] == []
        server.key = KEY
        assert value(samples(server), "agentsd_server_rejected_total", reason="access_denied") == 2
        assert len(server.get("/ready")["problems"]) == 1


def test_without_keys_metrics_are_for_programs_on_this_machine(still: Served) -> None:
    for headers in ({"host": "metrics.example.com"}, {"origin": "https://example.com"}):
        refused = still.request("GET", "/metrics", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "access_denied")


def test_open_event_streams_are_counted_by_route(still: Served) -> None:
    def streams() -> float:
        return value(samples(still), "agentsd_server_streams", http_route="/agent/events")

    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(still.event_stream())
        assert streams() == 3
    while streams():  # the server notices the closed connections a little later
        pass


def test_runs_that_wait_and_failures_of_the_store_are_counted(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    async def main() -> None:
        counted = ServerMetrics()
        store = await open_store("sqlite:///state.db", tmp_path)
        state = RunState(agent="one", blueprint="b", messages=[Message(role="user", content="hello")])
        record = await store.start(state, None, Blueprint("b", {}))
        state.status = "paused"
        await record.write(state, last=True)
        async with Runtime.open(write(tmp_path, ONE), store=store, watch=False) as runtime:
            async with housekeeping(runtime, counted):
                await until(lambda: "agentsd.store.runs" in metric_points(reader), "the runs are counted")
            points = metric_points(reader)
            assert points["agentsd.store.runs"] == [({"status": "queued"}, 0), ({"status": "paused"}, 1)]
            assert ({"work": "housekeeping"}, 0) in points["agentsd.store.errors"]
            await store.close()
            async with housekeeping(runtime, counted):
                while ({"work": "housekeeping"}, 0) in points["agentsd.store.errors"]:
                    points = await asyncio.to_thread(metric_points, reader)

    asyncio.run(main())


def test_the_documented_metrics_are_those_of_a_server(still: Served) -> None:
    page = (ROOT / "docs/tracing.md").read_text("utf-8").split("| metric of a server |")[1].split("\n\n")[0]
    with still.event_stream():
        still.request("GET", "/agent/config", headers={"origin": "https://example.com"})
        while not any(name == "agentsd_store_runs" for name, _ in samples(still)):  # counted once it has started
            pass
        found = {name: {label for label, _ in labels} for name, labels in samples(still)}
    for name, labels in re.findall(r"\| `([a-z_.]+)` \|[^|]*\| (.*) \|", page):
        prefix = name.replace(".", "_")
        own = {one.replace(".", "_") for one in re.findall("`([^`]+)`", labels)}
        used = set().union(*(has for key, has in found.items() if key.startswith(prefix)))
        assert used - {"le", "error_type"} == own - {"error_type"}, name
    server = {key for key in found if key.startswith(("agentsd_server", "agentsd_store", "http"))}
    assert all(
        any(key.startswith(name.replace(".", "_")) for name in re.findall(r"\| `([a-z_.]+)`", page)) for key in server
    )


def test_metrics_are_exported_over_otlp_and_served_at_once(tmp_path: Path) -> None:
    with sink() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRICS_EXPORTER": "otlp"}
        with served(write(tmp_path, ONE), environment=environment) as server:
            assert value(samples(server), "agentsd_config_generation") == 1
            assert server.stop() == 0
    assert {"agentsd.config.generation", "http.server.request.duration"} <= collector.metrics


def test_metrics_can_be_turned_off(tmp_path: Path) -> None:
    with served(write(tmp_path, ONE), environment={"OTEL_SDK_DISABLED": "true"}) as server:
        response = server.request("GET", "/metrics")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "metrics_unavailable")


def test_the_reader_joins_the_hosts_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    own = InMemoryMetricReader()
    provider = MeterProvider([own])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(metrics, "set_meter_provider", lambda _: pytest.fail("the host's provider was replaced"))
    counter = provider.get_meter("host").create_counter("host.calls")
    with collect_metrics("shop") as scrape:
        assert scrape
        counter.add(2)
        assert b"host_calls_total 2.0" in scrape("")[0]
    counter.add(1)
    assert metric_points(own)["host.calls"] == [({}, 3)]


@pytest.mark.parametrize("missing", ["opentelemetry.exporter.prometheus", "prometheus_client"])
def test_without_the_exporter_there_are_no_metrics(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with collect_metrics("agentsd") as scrape:
        assert scrape is None


# --- readiness


async def ask(app: FastAPI, method: str, path: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path)


def test_a_server_without_metrics_says_what_to_install(tmp_path: Path) -> None:
    async def main(scrape: Scrape | None) -> httpx2.Response:
        async with Runtime.open(write(tmp_path, ONE), watch=False) as runtime:
            return await ask(create_app(runtime, ServerMetrics(), scrape=scrape), "GET", "/metrics")

    refused = asyncio.run(main(None))
    assert (refused.status_code, "install agentsd with the extra `serve`" in refused.text) == (404, True)
    assert asyncio.run(main(lambda _: (b"x 1", "text/plain"))).text == "x 1"


def test_a_server_that_stops_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime.open(write(tmp_path, ONE), watch=False) as runtime:
            feed = ConfigFeed()
            app = create_app(runtime, ServerMetrics(), feed=feed)
            assert (await ask(app, "GET", "/ready")).json()["not_ready"] == []
            feed.close()
            response = await ask(app, "GET", "/ready")
            assert (response.status_code, response.json()["not_ready"]) == (503, ["server"])
            assert (await ask(app, "HEAD", "/ready")).status_code == 503
            assert (await ask(app, "GET", "/health")).status_code == 200

    asyncio.run(main())


def test_a_server_without_its_store_is_not_ready_and_keeps_the_reason_to_its_log(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    with served(tmp_path) as server:
        assert server.get("/ready")["ready"] is True
        for file in (tmp_path / ".agentsd").glob("state.db*"):
            file.unlink()
        while (
            response := server.request("GET", "/ready")
        ).status_code == 200:  # the last answer is reused for a second
            pass
        assert (response.status_code, response.json()["not_ready"]) == (503, ["store"])
        assert "state.db" not in response.text
        assert server.request("HEAD", "/ready").status_code == 503
        assert server.get("/health") == {"status": "ok"}
        assert server.stop() == 0
    assert any("the store cannot save" in line for line in server.output)


def test_a_server_that_cannot_save_is_not_ready_and_lets_clients_try_again(tmp_path: Path) -> None:
    """A limit of the size of files fails like a full disk: reads still work."""
    with served(write(tmp_path, ONE)) as server:
        run = server.request("POST", "/agent/runs", json={"message": "hi"}).json()["run_id"]
        prlimit(server.process.pid, RLIMIT_FSIZE, (1, RLIM_INFINITY))
        for path in ("/agent/runs", "/agent/chat"):
            failed = server.request("POST", path, json={"message": "hi"})
            assert (failed.status_code, failed.headers["retry-after"]) == (503, "5"), failed.text
            assert "cannot read or save now; try again later" in failed.json()["error"]["message"]
        while (response := server.request("GET", "/ready")).status_code == 200:  # the last answer is reused
            pass
        assert (response.status_code, response.json()["not_ready"]) == (503, ["store"])
        assert server.get(f"/agent/runs/{run}")["run_id"] == run
        prlimit(server.process.pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        wait_until(lambda: server.request("GET", "/ready").status_code != 503, "the server is ready")
        assert server.request("POST", "/agent/runs", json={"message": "hi"}).status_code == 202


def test_a_store_that_does_not_answer_in_time_is_not_ready(postgres: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = await open_store(url := new_database(postgres), tmp_path)
        check = StoreCheck(store, timeout=0.01)
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE agentsd_processes IN ACCESS EXCLUSIVE MODE")
            assert [await check.can_save() for _ in range(3)] == [False] * 3, "they wait for one and the same write"
        await until(check.can_save, "the store can save")
        await store.close()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is a part of Linux")
def test_other_processes_cannot_read_the_memory_of_the_server(tmp_path: Path) -> None:
    plugin = "import ctypes\n\ndef setup(context):\n    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"
    plugin += f"    open({str(tmp_path / 'dumpable')!r}, 'w').write(str(dumpable))\n"
    with served(write(tmp_path, ONE | {"plugins/spy.py": plugin})):
        assert (tmp_path / "dumpable").read_text() == "0"
