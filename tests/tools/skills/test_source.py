"""HTTP skills: the skills of a real host are an agent's tools, and invalid responses affect only their call."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from framework import Runtime, ToolContext
from framework.testing import ScriptedModel
from framework.tools.arguments import ArgumentsError
from framework.tools.http import HttpReply
from framework.tools.remote_sources import SkillSource, parse_listing, parse_result
from framework.tools.tool import HostedOutput, Tool
from framework.tools.tool_source import ToolSource
from framework.types.errors import ConfigError, ToolError
from framework.types.messages import ToolCall
from framework.types.tool_servers import Skill, SkillHost
from tests.support.cases import cases
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.site import Pages, Site, answer, redirect, site

KEY = "host-key"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkillHost]:
    """The example host, in a separate process."""
    files = write(
        tmp_path_factory.mktemp("files"), {"a/report.txt": "x", "notes.md": "y", "app.log": "INFO up\nERROR down\n"}
    )
    command = [sys.executable, "-m", "uvicorn", "examples.skill_host.app:app", "--port", "0", "--no-access-log"]
    env = {**os.environ, "SKILL_KEY": KEY, "SKILL_ROOT": str(files), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
            yield SkillHost(url=url, discover=True, headers={"authorization": SecretStr(f"Bearer {KEY}")})
        finally:
            process.terminate()


def ctx(call: str = "c") -> ToolContext:
    return ToolContext(run_id="r", call_id=call, agent="a", base_path=Path())


async def call(tool: Tool, arguments: Mapping[str, Any], call_id: str = "c") -> Any:
    returned = await hosted(tool, arguments, call_id)
    return returned.output


async def hosted(tool: Tool, arguments: Mapping[str, Any], call_id: str = "c") -> HostedOutput:
    bound = tool.bind(arguments)
    returned = await tool.function(**bound, **{tool.context_parameter or "": ctx(call_id)})
    assert isinstance(returned, HostedOutput)
    return returned


def nothing() -> None:
    """Ignore changes of a source."""


def host_at(served: Site) -> SkillHost:
    return SkillHost(url=served.url, discover=True)


@asynccontextmanager
async def opened(
    host: SkillHost, changed: Callable[[], None] = nothing, *, poll_interval: float = 3600.0
) -> AsyncIterator[SkillSource]:
    source = SkillSource("files", host, changed, poll_interval=poll_interval, first_retry=0.01)
    await source.start()
    try:
        yield source
    finally:
        await source.close()


@asynccontextmanager
async def discovered(*skills: Any) -> AsyncIterator[SkillSource]:
    """Yield a source of a host that lists these skills."""
    async with site({"/skills": listing(*skills)}) as served, opened(host_at(served)) as source:
        yield source


@asynccontextmanager
async def one_skill(pages: Pages, **keys: Any) -> AsyncIterator[tuple[Site, Tool]]:
    """Yield a host with one declared skill, and the tool made from it."""
    async with site(pages) as served:
        declared = SkillHost.model_validate({"url": served.url, "skills": [{"id": "echo", "parameters": TEXT}], **keys})
        async with opened(declared) as source:
            assert source.faults == ()
            yield served, source.tools[0]


def listing(*skills: Any) -> bytes:
    return answer(json.dumps({"skills": skills}), "content-type: application/json")


def result(**fields: Any) -> bytes:
    return answer(json.dumps(fields), "content-type: application/json")


# --- the example host


def test_the_skills_of_a_host_become_tools(host: SkillHost) -> None:
    async def main() -> None:
        async with opened(host) as source:
            as_source: ToolSource = source
            tools = {tool.name: tool for tool in as_source.tools}
            assert (as_source.name, as_source.faults) == ("skill.files", ())
            assert {name: tool.definition.description for name, tool in tools.items()} == {
                "skill.files.file_search": "Search the host's files by name.",
                "skill.files.echo": "Return the text unchanged.",
                "skill.files.calculator": "Calculate the mean, median, sum, minimum, maximum or count of a list of "
                "numbers.",
                "skill.files.log_transform": "Count the levels of a log file, or show its errors or last lines",
            }
            assert {(tool.source, tool.risk, tool.idempotent) for tool in tools.values()} == {
                ("skill", "medium", False)
            }
            search = tools["skill.files.file_search"]
            assert await call(search, {"query": "report"}) == {"files": ["a/report.txt"], "total": 1}
            assert await call(search, {"query": "report", "root_dir": "a"}, "2") == {
                "files": ["a/report.txt"],
                "total": 1,
            }
            assert await call(tools["skill.files.echo"], {"text": "hi"}, "3") == {"text": "hi"}
            mean = {"operation": "mean", "numbers": [1, 2, 6]}
            assert await call(tools["skill.files.calculator"], mean, "4") == {"result": 3}
            log = tools["skill.files.log_transform"]
            assert await call(log, {"path": "app.log", "operation": "errors"}, "5") == {
                "levels": {"INFO": 1, "ERROR": 1},
                "lines": ["ERROR down"],
            }
            with pytest.raises(ToolError, match="outside the host's root"):
                await call(log, {"path": "../app.log"}, "6")

    asyncio.run(main())


def test_arguments_are_checked_before_anything_is_sent() -> None:
    async def main() -> None:
        async with one_skill({}) as (served, tool):
            for wrong in ({}, {"text": 5}, {"text": "a", "more": 1}):
                with pytest.raises(ArgumentsError):
                    await call(tool, wrong)
            assert served.requests == []

    asyncio.run(main())


def test_a_call_sent_twice_is_executed_once(host: SkillHost) -> None:
    async def main() -> None:
        async with opened(host) as source:
            search = next(tool for tool in source.tools if tool.name.endswith("file_search"))
            first = await call(search, {"query": "notes"}, "same")
            assert await call(search, {"query": "report"}, "same") == first, "the host knows the call"
            assert first == {"files": ["notes.md"], "total": 1}
            assert (await call(search, {"query": "report"}, "other"))["files"] == ["a/report.txt"]

    asyncio.run(main())


def test_a_wrong_key_is_reported_without_showing_it(host: SkillHost) -> None:
    async def main() -> None:
        wrong = host.model_copy(update={"headers": {"authorization": SecretStr("Bearer wr0ng")}})
        async with opened(wrong) as source:
            assert source.tools == ()
            assert "responded with HTTP 401" in source.faults[0]
            assert "wr0ng" not in source.faults[0]

    asyncio.run(main())


def test_an_agent_uses_a_skill(host: SkillHost, tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy='{allow: ["skill.files.*"]}')})
        wish = ToolCall(id="1", tool="skill.files.echo", arguments={"text": "one two"})
        model = ScriptedModel((wish,), "It says one two.")
        async with opened(host) as source:
            tools = source.tools
            async with Runtime.open(tmp_path, tools=tools, models={"scripted": model}, watch=False) as runtime:
                made = (await runtime.run("echo")).tool_calls[0]
                assert (made.status, made.result) == ("success", {"text": "one two"})

    asyncio.run(main())


# --- names and descriptions of skills


@pytest.mark.parametrize(
    ("said", "description"),
    [
        ({"manifest": {"description": "M."}, "description": "D.", "docstring": "S.", "document": "T."}, "M."),
        ({"description": "D.", "docstring": "S.", "document": "T."}, "D."),
        ({"description": " ", "docstring": "S.", "document": "T."}, "S."),
        ({"document": "# Title\n\nMore"}, "Title"),
        ({"docstring": "First\n    line.\n\nSecond paragraph."}, "First line."),
        ({"docstring": "x" * 600}, "x" * 499 + "…"),
        ({}, "The skill echo of files."),
    ],
)
def test_the_manifest_precedes_the_docstring_and_the_docstring_the_document(
    said: dict[str, Any], description: str
) -> None:
    async def main() -> None:
        async with discovered({"id": "echo", **said}) as source:
            assert source.tools[0].definition.description == description

    asyncio.run(main())


def test_declared_values_take_precedence_over_those_of_the_host() -> None:
    async def main() -> None:
        theirs = {"id": "echo", "description": "theirs", "parameters": TEXT, "risk": "low", "idempotent": True}
        async with site({"/skills": listing(theirs, {**theirs, "id": "other"})}) as served:
            declared = Skill(id="echo", description="ours", risk="high", timeout=3)
            async with opened(SkillHost(url=served.url, discover=True, skills=(declared,))) as source:
                ours, other = source.tools
                assert (ours.definition.description, ours.risk, ours.timeout) == ("ours", "high", 3)
                assert ours.definition.parameters["required"] == ["text"]
                assert (other.definition.description, other.risk, other.idempotent) == ("theirs", "medium", False)

    asyncio.run(main())


def test_declared_skills_need_no_host_to_be_offered() -> None:
    async def main() -> None:
        async with opened(SkillHost(url="http://127.0.0.1:1", skills=(Skill(id="a"),))) as source:
            assert ([tool.name for tool in source.tools], source.faults) == (["skill.files.a"], ())
            with pytest.raises(ToolError, match="cannot connect to 127"):
                await call(source.tools[0], {})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"id": "a b"}, "invalid skill 'a b'"),
        ({"id": "../admin"}, "invalid skill '../admin'"),
        ({"name": "x"}, "invalid skill 'None': id"),
        ({"id": "x", "description": 5}, "invalid skill 'x': description"),
        ({"id": "x", "parameters": {"type": "string"}}, "does not describe an object"),
        ({"id": "x", "parameters": {"properties": {"a": {"$ref": "file:///etc/passwd"}}}}, "invalid skill 'x'"),
        ("echo", "invalid skill"),
    ],
)
def test_asi04_an_invalid_skill_does_not_affect_the_others(entry: Any, fault: str) -> None:
    async def main() -> None:
        async with discovered(entry, {"id": "good"}) as source:
            assert [tool.name for tool in source.tools] == ["skill.files.good"]
            assert fault in source.faults[0]

    asyncio.run(main())


def test_llm10_a_host_with_too_many_skills_is_cut() -> None:
    async def main() -> None:
        many = [{"id": f"s{number}"} for number in range(300)]
        async with discovered(*many, {"id": "s0"}) as source:
            assert len(source.tools) == 200
            assert "only the first 200" in source.faults[-1]

    asyncio.run(main())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "skills", "manifest", "parameters", "success", "output", "error"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from([200, 302, 404, 500]))
@cases(100)
def test_asi04_any_json_response_of_a_host_is_read_or_a_tool_error(data: Any, status: int) -> None:
    reply = HttpReply("http://h/skills", status, {}, json.dumps(data).encode(), False)
    for read in (parse_listing, lambda got: parse_result("x", got)):
        try:
            read(reply)
        except ToolError:
            continue


# --- invalid responses


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (result(success=False, error="no such order"), "no such order"),
        (result(success=False, error="no", trace_id="t1"), r"no \(trace of the host: t1\)"),
        (result(success=False), r"failed without an error message \(HTTP 200\)"),
        (answer('{"success": true, "output": 1}', status="500 E"), r"HTTP 500"),
        (result(output=1), "responded with HTTP 200 and no result: success: Field required"),
        (result(success="yes"), "no result: success"),
        (
            answer("<html>login</html>", "content-type: text/html"),
            "HTTP 200 .* not JSON; its content type is text/html",
        ),
        (answer("", status="204 No Content"), "responded with HTTP 204 and no result"),
        (answer("down", status="503 Unavailable"), "responded with HTTP 503 and no result"),
        (answer("[" * 5000), "not JSON"),
        (answer('{"success": true, "output": "' + "x" * 1_100_000 + '"}'), "larger than 1000000 bytes"),
        (redirect("http://127.0.0.1:1/"), "responded with HTTP 302 and no result"),
        (answer("{}", status="404 Not Found"), "the host may have removed it"),
        (b"", "no usable response"),
        (result(success=False, error="x" * 5000), "^x{500}$"),
    ],
)
def test_asi08_an_answer_that_is_no_result_is_a_tool_error(page: bytes, message: str) -> None:
    async def main() -> None:
        async with one_skill({"/skills/echo/invoke": page}) as (served, tool):
            with pytest.raises(ToolError, match=message):
                await call(tool, {"text": "a"})
            assert len(served.requests) == 1

    asyncio.run(main())


def test_llm10_a_host_that_does_not_respond_times_out() -> None:
    async def main() -> None:
        async def silence(writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with one_skill({"/skills/echo/invoke": silence}, timeout=0.1) as (_, tool):
            with pytest.raises(ToolError, match=r"within 0\.1s; whether it took effect is unknown"):
                await call(tool, {"text": "a"})

    asyncio.run(main())


def test_asi03_a_redirect_of_a_host_is_not_followed() -> None:
    async def main() -> None:
        async with site({"/skills": listing({"id": "stolen"})}) as other:
            async with site({"/skills": redirect(f"{other.url}/skills", "307 T")}) as served:
                headers = {"authorization": SecretStr("Bearer s3cret")}
                async with opened(SkillHost(url=served.url, discover=True, headers=headers)) as source:
                    assert source.tools == ()
                    assert "responded with HTTP 307" in source.faults[0]
            assert other.requests == []

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://a@b/", "http://h/x?y", "http://127.1", "http://h\\x"])
def test_an_invalid_url_is_a_problem_of_the_file(url: str) -> None:
    with pytest.raises(ConfigError):
        SkillSource("files", SkillHost(url=url), nothing)


def test_asi03_a_metadata_service_is_no_skill_host() -> None:
    async def main() -> None:
        async with opened(SkillHost(url="http://169.254.169.254", discover=True, timeout=5)) as source:
            assert "but no metadata service" in source.faults[0]

    asyncio.run(main())


# --- requests


def test_a_call_sends_its_key_its_arguments_and_the_hosts_headers() -> None:
    async def main() -> None:
        headers = {"authorization": "Bearer s3cret"}
        done = result(success=True, output={"n": [1, None]}, meta={"x": 1}, trace_id="t")
        pages = {"/base/skills/echo/invoke": done}
        async with site(pages) as served:
            declared = {
                "url": f"{served.url}/base/",
                "skills": [{"id": "echo", "parameters": TEXT}],
                "headers": headers,
            }
            async with opened(SkillHost.model_validate(declared)) as source:
                returned = await hosted(source.tools[0], {"text": "ü"})
                assert returned == HostedOutput({"n": [1, None]}, {"trace_id": "t", "meta": {"x": 1}})
            sent = served.requests[0]
            assert (sent.method, json.loads(sent.body)) == ("POST", {"arguments": {"text": "ü"}})
            assert (sent.headers["idempotency-key"], sent.headers["authorization"]) == ("r:c", "Bearer s3cret")
            assert "traceparent" not in sent.headers

    asyncio.run(main())


def test_llm02_vendor_trace_state_is_not_sent() -> None:
    async def main() -> None:
        async with one_skill({"/skills/echo/invoke": result(success=True)}, trace=True) as (served, tool):
            state = trace.TraceState([("vendor", "s3cret")])
            here = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1), trace_state=state)
            with trace.use_span(trace.NonRecordingSpan(here)):
                await call(tool, {"text": "a"})
            assert served.requests[0].headers["traceparent"] == f"00-{1:032x}-{2:016x}-01"
            assert "s3cret" not in str(served.requests[0].headers)

    asyncio.run(main())


@pytest.mark.parametrize("traced", [True, False])
def test_llm02_trace_context_is_sent_only_if_configured_and_baggage_never(
    traced: bool, spans: InMemorySpanExporter
) -> None:
    async def main() -> None:
        async with one_skill({"/skills/echo/invoke": result(success=True)}, trace=traced) as (served, tool):
            token = context.attach(baggage.set_baggage("user.email", "a@example.com"))
            with trace.get_tracer("test").start_as_current_span("around") as span:
                await call(tool, {"text": "a"})
            context.detach(token)
            headers = served.requests[0].headers
            expected = f"00-{span.get_span_context().trace_id:032x}-{span.get_span_context().span_id:016x}-"
            assert headers.get("traceparent", "").startswith(expected) is traced
            assert ("traceparent" in headers) is traced
            assert "example.com" not in str(headers)
            assert not {"baggage", "tracestate"} & headers.keys()

    asyncio.run(main())
    assert spans.get_finished_spans()


# --- unavailable hosts


class Changes:
    """Counts the changes that a source reports, and waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._changed.set()

    async def next(self) -> None:
        await self._changed.wait()
        self._changed.clear()


def test_asi08_a_host_that_was_down_is_discovered_later() -> None:
    async def main() -> None:
        async with site({}) as gone:
            port = gone.port
        changes = Changes()
        async with opened(SkillHost(url=f"http://127.0.0.1:{port}", discover=True), changes) as source:
            assert list(source.tools) == []
            assert "cannot connect" in source.faults[0]
            async with site({"/skills": listing({"id": "echo"})}, port=port):
                await changes.next()
                assert [tool.name for tool in source.tools] == ["skill.files.echo"]
                assert (source.faults, changes.count) == ((), 1)

    asyncio.run(main())


def test_asi08_a_host_that_goes_down_keeps_its_tools_and_has_a_fault() -> None:
    async def main() -> None:
        changes = Changes()
        async with site({"/skills": listing({"id": "echo"})}) as served:
            host = host_at(served)
            source = SkillSource("files", host, changes, poll_interval=0.01, first_retry=0.01)
            await source.start()
            before = source.tools
        await changes.next()
        assert source.tools == before
        assert "cannot connect" in source.faults[0]
        await source.close()

    asyncio.run(main())


def test_a_change_of_one_skill_leaves_the_others_the_same_objects() -> None:
    async def main() -> None:
        changes = Changes()
        pages = {"/skills": listing({"id": "a"}, {"id": "b"}, {"id": "c"})}
        async with site(pages) as served:
            host = host_at(served)
            async with opened(host, changes, poll_interval=0.01) as source:
                a, b, _ = source.tools
                pages["/skills"] = listing({"id": "a"}, {"id": "b", "description": "New."}, {"id": "d"})
                await changes.next()
                assert [tool.name for tool in source.tools] == [f"skill.files.{name}" for name in "abd"]
                assert source.tools[0] is a
                assert source.tools[1] is not b
                await served.wait_for_requests(3)
                assert changes.count == 1, "no callback without a change"

    asyncio.run(main())


def test_a_call_of_a_removed_skill_refreshes_the_list_immediately() -> None:
    async def main() -> None:
        changes = Changes()
        pages = {"/skills": listing({"id": "echo"})}
        async with site(pages) as served, opened(host_at(served), changes) as source:
            pages["/skills"] = listing()
            with pytest.raises(ToolError, match="may have removed it"):
                await call(source.tools[0], {})
            await changes.next()
            assert source.tools == ()

    asyncio.run(main())


def test_a_closed_source_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with opened(SkillHost(url="http://127.0.0.1:1", discover=True)):
            assert len(asyncio.all_tasks()) == 2
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
