"""The contract of `model: offline`: the calls for each sentence, and the answers for each result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from framework.llm.client import Delta, ModelClient, ModelReply, ModelRequest
from framework.llm.offline import OfflineModel
from framework.tools.tool import Tool, tool
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, ToolDefinition
from framework.types.plan import PlanDraft
from framework.types.spec import ModelSettings
from tests.support.cases import cases, each


@tool
def echo(text: str) -> str:
    """Give the text back."""
    return text


@tool
def calculator(expression: str) -> float:
    """Calculate exactly: arithmetic, and mean, median, sum, min, max, round, count over lists, e.g. mean([1,2,3])."""
    return 0


@tool
def list_dir(path: str = ".") -> list[str]:
    """List the entries of a directory."""
    return []


@tool
def read_file(path: str, start_line: int = 1, max_lines: int = 200) -> str:
    """Read a text file."""
    return ""


@tool
def search_files(query: str, root_dir: str = ".", limit: int = 20) -> list[str]:
    """Search files by name and content."""
    return []


@tool
def log_transform(
    path: str,
    operation: Literal["summary", "levels", "errors", "tail", "grep"] = "summary",
    pattern: str = "",
    limit: int = 20,
) -> str:
    """Analyse a log file: summary, number of lines per level, errors, last lines, or lines with a pattern."""
    return ""


@tool(name="orders.lookup")
def lookup(order_id: str) -> str:
    """Look up one order."""
    return ""


@tool(name="orders.refund")
def refund(order: str, amount: float, reason: str | None = None) -> str:
    """Give money back for an order."""
    return ""


@tool(name="weather.current")
def weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Current weather of a city."""
    return ""


@tool(name="stats.histogram")
def histogram(values: list[int], bins: int) -> str:
    """Draw a histogram of values."""
    return ""


@tool(name="agent.billing")
def billing(message: str) -> str:
    """Refunds and invoices."""
    return ""


BUILT_IN = (echo, calculator, list_dir, read_file, search_files, log_transform)
UNKNOWN = (lookup, refund, weather, histogram, billing)
LOG = "data/logs/app.log"

Call = tuple[str, dict[str, Any]]
Answers = Mapping[str, str] | Callable[[ToolCall], str]


def deltas(request: ModelRequest) -> list[Delta]:
    async def drain() -> list[Delta]:
        return [delta async for delta in OfflineModel().stream(request)]

    return asyncio.run(drain())


def reply_to(messages: Sequence[Message], tools: Sequence[Tool] = BUILT_IN, **options: Any) -> ModelReply:
    request = ModelRequest(tuple(messages), tools=tuple(tool.definition for tool in tools), **options)
    reply = deltas(request)[-1].reply
    assert reply is not None
    return reply


def user(text: str) -> Message:
    return Message(role="user", content=text)


def first_calls(text: str, tools: Sequence[Tool] = BUILT_IN) -> list[Call]:
    return [(call.tool, call.arguments) for call in reply_to([user(text)], tools).message.tool_calls]


def drive(text: str, answers: Answers, tools: Sequence[Tool] = BUILT_IN) -> tuple[list[list[Call]], str]:
    """Answer the model's calls until it requests none; return the calls of each turn, and the answer."""
    messages, turns = [user(text)], list[list[Call]]()
    while True:
        message = reply_to(messages, tools).message
        if not message.tool_calls:
            return turns, message.content
        turns.append([(call.tool, call.arguments) for call in message.tool_calls])
        messages.append(message)
        for call in message.tool_calls:
            content = answers(call) if callable(answers) else answers[call.tool]
            messages.append(Message(role="tool", tool_call_id=call.id, content=content))
        assert len(turns) < 10


def calculation(expression: str) -> Call:
    return "calculator", {"expression": expression}


@each(
    ("sentence", "expected"),
    [
        ("echo hello", [("echo", {"text": "hello"})]),
        ("please echo 'it's fine, then'", [("echo", {"text": "it's fine, then"})]),
        ("回显 你好世界", [("echo", {"text": "你好世界"})]),
        ("重复一遍：你好", [("echo", {"text": "你好"})]),
        ("搜索包含 'calculator' 的文件", [("search_files", {"query": "calculator"})]),
        ("查找包含「calculator」的文件", [("search_files", {"query": "calculator"})]),
        ("搜索不存在的文件", [("search_files", {"query": "不存在"})]),
        ("find files that mention retry policy", [("search_files", {"query": "retry policy"})]),
        (
            'look for "timeout" in the plugins directory',
            [("search_files", {"query": "timeout", "root_dir": "plugins"})],
        ),
        ("计算 [1,2,3,4,5] 的平均值", [calculation("mean([1,2,3,4,5])")]),
        (
            "计算 [10,20,30] 的平均值、最大值和最小值",
            [calculation("mean([10,20,30])"), calculation("max([10,20,30])"), calculation("min([10,20,30])")],
        ),
        ("what is the average of 3, 4 and 5?", [calculation("mean([3,4,5])")]),
        ("median of [5, 3, 1]", [calculation("median([5,3,1])")]),
        ("what is 2 + 3 * 4?", [calculation("2 + 3 * 4")]),
        ("计算 (1+2)/3", [calculation("(1+2)/3")]),
        ("round(3.14159, 2)", [calculation("round(3.14159, 2)")]),
        ("list the directory data/logs", [("list_dir", {"path": "data/logs"})]),
        ("列出 data 目录", [("list_dir", {"path": "data"})]),
        ("list the folder plugins", [("list_dir", {"path": "plugins"})]),
        ("list files", [("list_dir", {})]),
        ("列出所有 Go 文件", [("search_files", {"query": "*.go"})]),
        ("list all Go files", [("search_files", {"query": "*.go"})]),
        ("find python files in the plugins directory", [("search_files", {"query": "*.py", "root_dir": "plugins"})]),
        ("read the JSON file data/notes.json", [("read_file", {"path": "data/notes.json"})]),
        ("read data/notes.txt.", [("read_file", {"path": "data/notes.txt"})]),
        ("帮我分析一下 data/logs/app.log", [("log_transform", {"path": LOG})]),
        ("show the errors in data/logs/app.log", [("log_transform", {"path": LOG, "operation": "errors"})]),
        ("统计 data/logs/app.log 里的错误", [("log_transform", {"path": LOG, "operation": "errors"})]),
        ("last lines of data/logs/app.log", [("log_transform", {"path": LOG, "operation": "tail"})]),
        (
            "search for 'timeout' in data/logs/app.log",
            [("log_transform", {"path": LOG, "operation": "grep", "pattern": "timeout"})],
        ),
        ("tell me a joke about files", []),
        ("hello", []),
        ("你好，再见", []),
        ("搜索文件", []),
        ("it takes 3-4 days from 2024-11-25", []),
        ("delete data/notes.txt", []),
    ],
)
def test_a_sentence_calls_exactly(sentence: str, expected: list[Call]) -> None:
    assert first_calls(sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("look up order '1234'", ("orders.lookup", {"order_id": "1234"})),
        ("refund 80 for order A-17", ("orders.refund", {"order": "A-17", "amount": 80})),
        ("what is the weather in Paris", ("weather.current", {"city": "Paris"})),
        ("draw a histogram of [1,2,2] with 3 bins", ("stats.histogram", {"values": [1, 2, 2], "bins": 3})),
        ("draw a histogram of [01,2] with 007 bins", ("stats.histogram", {"values": [1, 2], "bins": 7})),
        ("refund 0.50 for order A-17", ("orders.refund", {"order": "A-17", "amount": 0.5})),
        ("ask billing about invoice 12", ("agent.billing", {"message": "ask billing about invoice 12"})),
        ("I have two invoices to pay", ("agent.billing", {"message": "I have two invoices to pay"})),
    ],
)
def test_unknown_tools_are_matched_and_filled(sentence: str, expected: Call) -> None:
    assert first_calls(sentence, (*BUILT_IN, *UNKNOWN)) == [expected]


def test_one_clause_is_one_turn_and_the_answer_contains_all_results() -> None:
    results = {"search_files": "calculator.py", "calculator": "3"}
    turns, answer = drive("搜索包含 'calculator' 的文件，然后计算 [1,2,3,4,5] 的平均值", results)
    assert turns == [[("search_files", {"query": "calculator"})], [calculation("mean([1,2,3,4,5])")]]
    assert answer == "- search_files(calculator): calculator.py\n- mean([1,2,3,4,5]) = 3"


FOUND = "a.txt:7: 10 calculators and 30 more\nb/2.txt:12: costs 2.5\nc9.txt"


@pytest.mark.parametrize(
    "sentence",
    [
        "搜索包含 'calculator' 的文件，然后计算文件中数字的平均值",
        "search for 'calculator' then calculate the average of the numbers",
    ],
)
def test_the_numbers_that_a_search_found_are_averaged_without_line_numbers_and_names(sentence: str) -> None:
    turns, answer = drive(sentence, {"search_files": FOUND, "calculator": "14.166666666666666"})
    assert turns == [[("search_files", {"query": "calculator"})], [calculation("mean([10,30,2.5])")]]
    assert "14.166666666666666" in answer


def test_a_clause_without_a_matching_tool_is_named_in_the_answer() -> None:
    _, answer = drive("search for 'timeout' then send it to ann@example.com", {"search_files": "a.txt:1: timeout"})
    assert answer.endswith("- send it to ann@example.com: no tool fits")
    _, answer = drive("搜索包含 'timeout' 的文件，然后删除它们", {"search_files": "a.txt:1: timeout"})
    assert answer.endswith("- 删除它们: no tool fits")


def test_an_english_chain_reads_the_file_that_the_search_found() -> None:
    results = {"search_files": "data/notes.txt:3: retries\ndata/old.txt", "read_file": "retries: 3", "calculator": "2"}
    turns, answer = drive(
        "Find files containing 'retries', then read the first one and compute the mean of [1,3]", results
    )
    assert turns == [
        [("search_files", {"query": "retries"})],
        [("read_file", {"path": "data/notes.txt"})],
        [calculation("mean([1,3])")],
    ]
    assert "retries: 3" in answer
    assert "mean([1,3]) = 2" in answer


def test_it_refers_to_a_result_of_the_previous_turn() -> None:
    search = ToolCall(id="call_1", tool="search_files", arguments={"query": "a"})
    history = [
        user("search for 'a'"),
        Message(role="assistant", tool_calls=(search,)),
        Message(role="tool", tool_call_id="call_1", content='["src/a.py", "src/b.py"]'),
        Message(role="assistant", content="src/a.py, src/b.py"),
        user("read the first one"),
    ]
    (call,) = reply_to(history).message.tool_calls
    assert (call.id, call.tool, call.arguments) == ("call_1", "read_file", {"path": "src/a.py"})


def test_calls_are_numbered_over_the_turns() -> None:
    first = reply_to([user("echo a then compute max and min of [1,2]")]).message
    result = Message(role="tool", tool_call_id="call_1", content="a")
    second = reply_to([user("echo a then compute max and min of [1,2]"), first, result]).message
    assert [call.id for call in (*first.tool_calls, *second.tool_calls)] == ["call_1", "call_2", "call_3"]


def test_instructions_after_the_request_are_not_the_request() -> None:
    messages = [user("echo hello"), Message(role="system", content="Answer briefly: list data/logs")]
    assert [call.tool for call in reply_to(messages).message.tool_calls] == ["echo"]


@pytest.mark.parametrize(
    ("request_text", "results", "answer"),
    [
        ("echo hello", {"echo": "hello"}, "hello"),
        ("搜索不存在的文件", {"search_files": "[]"}, "Nothing was found (search_files(不存在))."),
        ("search for 'q'", {"search_files": "No files match 'q'."}, "Nothing was found (search_files(q))."),
        ("read a.txt", {"read_file": "Error: no such file"}, "read_file(a.txt) failed: no such file"),
        ("读取 a.txt", {"read_file": "Denied: 不允许"}, "read_file(a.txt) was denied: 不允许"),
        ("list data/", {"list_dir": '["a", "b"]'}, '["a", "b"]'),
    ],
)
def test_one_result_is_the_answer(request_text: str, results: dict[str, str], answer: str) -> None:
    assert drive(request_text, results)[1] == answer


def test_several_results_are_labelled() -> None:
    values = {"mean([10,20,30])": "20", "max([10,20,30])": "30", "min([10,20,30])": "Error: no"}

    def answers(call: ToolCall) -> str:
        return values[call.arguments["expression"]]

    _, answer = drive("mean, max and min of [10,20,30]", answers)
    assert answer == "- mean([10,20,30]) = 20\n- max([10,20,30]) = 30\n- min([10,20,30]) failed: no"


def test_a_long_result_is_shortened() -> None:
    _, answer = drive("read a.txt", {"read_file": "x" * 5000})
    assert len(answer) == 600
    assert answer.endswith("…")


def test_results_are_reported_when_no_tools_are_offered_any_longer() -> None:
    asked = reply_to([user("echo a then echo b")]).message
    messages = [user("echo a then echo b"), asked, Message(role="tool", tool_call_id="call_1", content="a")]
    assert reply_to(messages, tools=()).message.content == "a"


def test_a_list_in_the_last_instruction_is_the_answer_without_tools() -> None:
    messages = [user("echo a"), Message(role="system", content="Sum up:\n\n- s1: done\n  a\n")]
    assert reply_to(messages, tools=()).message.content == "- s1: done\n  a"


@pytest.mark.parametrize("text", ["tell me a joke", "讲个笑话"])
def test_without_a_matching_tool_it_explains_itself(text: str) -> None:
    with_tools, without = reply_to([user(text)]), reply_to([user(text)], tools=())
    for reply in (with_tools, without):
        assert reply.finish_reason == "stop"
        assert "offline stand-in" in reply.message.content
        assert "openai/" in reply.message.content
        assert "OPENAI_API_KEY" in reply.message.content
    assert "log_transform" in with_tools.message.content


def test_at_most_six_tools_are_named() -> None:
    content = reply_to([user("hm")], (*BUILT_IN, lookup)).message.content
    assert "log_transform and others" in content
    assert "orders.lookup" not in content


def test_no_tool_is_called_against_the_settings() -> None:
    forbidden = reply_to([user("echo hello")], settings=ModelSettings(tool_choice="none"))
    assert not forbidden.message.tool_calls
    forced = reply_to([user("echo hello")], settings=ModelSettings(tool_choice="echo"))
    assert [call.tool for call in forced.message.tool_calls] == ["echo"]


def plan(text: str, tools: Sequence[Tool] = BUILT_IN) -> PlanDraft:
    return PlanDraft.model_validate_json(reply_to([user(text)], tools, output=PlanDraft).message.content)


def test_a_plan_has_the_clauses_as_steps() -> None:
    text = "搜索包含 'calculator' 的文件，然后计算 [10,20,30] 的平均值和最大值，再写一份报告"
    draft = plan(text)
    assert draft.goal == text
    assert [(s.id, s.tool, s.depends_on) for s in draft.steps] == [
        ("s1", "search_files", ()),
        ("s2", "calculator", ("s1",)),
        ("s3", "calculator", ("s1",)),
        ("s4", None, ("s2", "s3")),
    ]
    assert [s.parameters for s in draft.steps[1:]] == [
        {"expression": "mean([10,20,30])"},
        {"expression": "max([10,20,30])"},
        {},
    ]
    assert draft.steps[3].description == "写一份报告"


def test_a_plan_analyzes_a_log_in_several_modes() -> None:
    steps = plan("analyse data/logs/app.log").steps
    assert [s.parameters["operation"] for s in steps] == ["summary", "levels", "errors"]
    assert {(s.tool, s.depends_on) for s in steps} == {("log_transform", ())}


def test_a_failed_step_keeps_its_other_arguments_when_a_name_in_it_is_corrected() -> None:
    text = "search_files 'notes' in the folder dota with limit 5"
    arguments = {"query": "notes", "root_dir": "dota", "limit": 5}
    error = "Error: there is no folder 'dota'; did you mean data?"

    @tool(name="search_files")
    def search(query: str, root_dir: str, limit: int) -> str:
        """Search files."""
        return ""

    call = ToolCall(id="call_1", tool="search_files", arguments=arguments)
    messages = (
        user(text),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="call_1", content=error),
        Message(role="system", content="The plan so far:\n- s1 (failed)"),
    )
    draft = PlanDraft.model_validate_json(reply_to(messages, (search,), output=PlanDraft).message.content)
    assert [step.parameters for step in draft.steps] == [{"query": "notes", "root_dir": "data", "limit": 5}]


def test_a_plan_without_matching_tools_is_one_goal_step() -> None:
    (step,) = plan("write a poem, then another").steps
    assert (step.tool, step.description) == (None, "write a poem, then another")


def test_other_typed_answers_are_rejected() -> None:
    class Verdict(BaseModel):
        good: bool

    with pytest.raises(ModelError, match="only plans"):
        reply_to([user("echo hello")], output=Verdict)


def test_deltas_add_up_to_the_answer_and_calls_stream_no_text() -> None:
    tools = tuple(tool.definition for tool in BUILT_IN)
    for text in ("tell me\n a joke", "讲个笑话"):
        *pieces, last = deltas(ModelRequest((user(text),), tools=tools, stream=True))
        assert last.reply is not None
        assert len(pieces) > 5
        assert "".join(piece.text for piece in pieces) == last.reply.message.content
    assert len(deltas(ModelRequest((user("echo hi"),), tools=tools, stream=True))) == 1
    assert len(deltas(ModelRequest((user("hm"),), tools=tools))) == 1


def test_usage_grows_with_the_transcript() -> None:
    short = reply_to([user("echo hello")])
    long = reply_to([Message(role="system", content="x" * 400), user("echo hello")])
    assert short.finish_reason == "tool_calls"
    assert short.usage.prompt_tokens >= 1
    assert short.usage.completion_tokens >= 1
    assert long.usage.prompt_tokens == short.usage.prompt_tokens + 100
    assert long.usage.total_tokens == long.usage.prompt_tokens + long.usage.completion_tokens


def test_it_is_a_model_client_that_answers_typed_requests() -> None:
    client: ModelClient = OfflineModel()
    assert (client.info.name, client.info.typed) == ("offline", True)
    asyncio.run(client.close())


def test_schemas_with_references_and_alternatives_are_filled() -> None:
    parameters = {
        "type": "object",
        "$defs": {"Level": {"enum": ["INFO", "ERROR"], "type": "string"}},
        "properties": {
            "query": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "level": {"$ref": "#/$defs/Level"},
            "whole": {"type": ["boolean", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["query", "level"],
    }
    definition = ToolDefinition(name="logs.search", description="Search logs.", parameters=parameters)
    request = ModelRequest((user("search the logs for 'disk' 'full' with level error"),), tools=(definition,))
    reply = deltas(request)[-1].reply
    assert reply is not None
    (call,) = reply.message.tool_calls
    assert call.arguments == {"query": "disk", "level": "ERROR", "tags": ["full"]}


PIECES = r"""
echo search find read list 计算 搜索 分析 然后 then and 的平均值 mean max [1,2,3] [1, -2.5] 'calculator' “引号” " ' ( )
+ 3 40 007 2.5 [01,2] [1.5] 99999999999999999999 data/a.txt ../x.log http://h/x it 第一个 limit lines 行 order
refund weather bins histogram ask billing of in for , ， . 。 1/0 ** [ ] [] ERROR grep 目录
"""
WORDS = st.sampled_from(PIECES.split())
TEXTS = st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=12).map(" ".join))


@given(
    TEXTS,
    st.lists(st.sampled_from((*BUILT_IN, *UNKNOWN)), unique_by=lambda tool: tool.name),
    st.lists(TEXTS, max_size=3),
)
@cases(50)
def test_any_text_is_answered_or_calls_offered_tools_with_valid_arguments(
    text: str, tools: list[Tool], results: list[str]
) -> None:
    messages = [user(text), *(Message(role="tool", tool_call_id=str(at), content=r) for at, r in enumerate(results))]
    reply = reply_to(messages, tools)
    assert reply == reply_to(messages, tools)
    assert bool(reply.message.content) != bool(reply.message.tool_calls)
    by_name = {tool.name: tool for tool in tools}
    for call in reply.message.tool_calls:
        by_name[call.tool].bind(call.arguments)
    draft = PlanDraft.model_validate_json(reply_to(messages, tools, output=PlanDraft).message.content)
    for step in draft.steps:
        if step.tool is not None:
            by_name[step.tool].bind(step.parameters)


@given(TEXTS)
@cases(100)
def test_every_request_terminates(text: str) -> None:
    turns, answer = drive(text, lambda call: json.dumps(call.arguments))
    assert answer
    assert len(turns) <= len(text) + 1


@pytest.mark.parametrize("text", ["hello", "Hi! What can you do?", "你好，你能做什么？"])
def test_a_greeting_gets_messages_to_try_and_one_line_about_the_stand_in(text: str) -> None:
    first, *tries, _ = reply_to([user(text)]).message.content.splitlines()
    assert "rule-based stand-in" in first
    assert len(tries) == 3
    for line in tries:
        assert reply_to([user(line.removeprefix("- try: "))], BUILT_IN).message.tool_calls, line


@pytest.mark.parametrize("text", ["hello world, calculate 2 + 3", "hi calculate 2 + 3"])
def test_a_greeting_with_a_request_is_a_request(text: str) -> None:
    assert [call.tool for call in reply_to([user(text)]).message.tool_calls] == ["calculator"]
