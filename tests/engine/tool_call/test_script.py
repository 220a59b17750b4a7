"""Code mode: a script of the model calls the agent's tools as functions, each through the one gate."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from framework import Approve, Edit, File, Reject, RunResult, Runtime, Tool, tool
from framework.testing import JsonStore, ScriptedModel, calls
from framework.tools import scripts
from framework.tools.scripts import script_functions
from framework.types.events import wire
from framework.types.messages import ToolDefinition
from framework.types.state import Decision
from tests.support.media import png
from tests.support.projects import agent, write

ALL = '{allow: ["*"]}'


def project(root: Path, policy: str = ALL, **more: str) -> Path:
    return write(root, {"agents.d/clerk.yaml": agent("clerk", skill_policy=policy, executor="code", **more)})


class Books:
    """Tools, and the calls that they got."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def tools(self) -> list[Tool]:
        @tool(name="books.balance", risk="low", idempotent=True)
        async def balance(account: str) -> float:
            """Return the balance of an account."""
            self.made.append(f"balance {account}")
            return {"1": 40.0, "2": 2.5}[account]

        @tool(name="books.pay", risk="low")
        async def pay(invoice: str, amount: float, currency: Literal["EUR", "USD"] = "EUR") -> dict[str, object]:
            """Pay an invoice."""
            self.made.append(f"pay {invoice} {amount:g} {currency}")
            return {"paid": amount, "invoice": invoice}

        return [balance, pay]


def script(code: str) -> tuple[Any, ...]:
    """Return a turn in which the model runs a script."""
    return calls(("run_script", {"code": code}))


def run(root: Path, books: Books, *turns: Any) -> tuple[RunResult, ScriptedModel]:
    """Run with these turns of the model; return the result and the model."""
    model = ScriptedModel(*turns)

    async def main() -> RunResult:
        async with Runtime.open(root, tools=books.tools(), models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("go", agent="clerk")

    return asyncio.run(main()), model


def outcome_of(root: Path, books: Books, code: str) -> str:
    """Return what the model gets of one script."""
    result, _ = run(root, books, script(code), "done")
    assert result.status == "completed", result
    return result.messages[2].content


def test_a_script_calls_tools_and_its_output_is_the_observation(tmp_path: Path) -> None:
    books = Books()
    code = 'total = sum(books__balance(account=a) for a in ("1", "2"))\nprint("total", total)\nbooks__pay("7", total)'
    result, model = run(project(tmp_path), books, script(code), "done")
    assert books.made == ["balance 1", "balance 2", "pay 7 42.5 EUR"]
    assert result.messages[2].content == 'total 42.5\nvalue: {"paid": 42.5, "invoice": "7"}'
    assert [(call.id.partition("@")[2], call.tool) for call in result.tool_calls] == [
        ("", "run_script"),
        ("1", "books.balance"),
        ("2", "books.balance"),
        ("3", "books.pay"),
    ]
    (request, _) = model.requests
    assert [one.name for one in request.tools] == ["run_script"]
    assert "def books__balance(account: str) -> Any:" in request.messages[0].content
    assert "currency: Literal['EUR', 'USD'] = 'EUR'" in request.messages[0].content


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print([chart(item=n) for n in range(2)])", "['[image/png 100 bytes 0.png]', '[image/png 100 bytes 1.png]']"),
        ("for n in range(12): chart(item=n)", "(2 earlier files that its calls returned are not shown)"),
        ("chart(item=7)\n1 / 0", "ZeroDivisionError"),
    ],
)
def test_the_model_gets_the_images_that_the_calls_of_a_script_return(tmp_path: Path, code: str, text: str) -> None:
    @tool(risk="low", idempotent=True)
    def chart(item: int) -> File:
        """Draw a chart."""
        return File.from_bytes(png(str(item)), name=f"{item}.png")

    model = ScriptedModel(script(code), "done")

    async def main() -> None:
        async with Runtime.open(project(tmp_path), tools=[chart], models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go", agent="clerk")

    asyncio.run(main())
    got = model.requests[1].messages[-1]
    expected = {"print": ["0.png", "1.png"], "for n": [f"{n}.png" for n in range(2, 12)], "chart": ["7.png"]}
    assert [part.name for part in got.media] == expected[code[:5]]
    assert text in re.sub(r"\d+ bytes", "100 bytes", got.content)


def test_the_calls_of_a_script_are_events_and_part_of_the_trace(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, str, str]]:
        model = ScriptedModel(script('books__balance("1")'), "done")
        async with Runtime.open(
            project(tmp_path), tools=Books().tools(), models={"scripted": model}, watch=False
        ) as runtime:
            async with runtime.stream("go") as stream:
                events = [wire(event) async for event in stream]
            result = await stream.result()
            assert [entry.action.tool for entry in result.trace] == ["run_script", "books.balance", None]
            return [(e["event"], e["tool"], e["status"]) for e in events if e["event"].startswith("tool_")]

    assert asyncio.run(main()) == [
        ("tool_call", "run_script", "pending"),
        ("tool_call", "run_script", "running"),
        ("tool_call", "books.balance", "pending"),
        ("tool_call", "books.balance", "running"),
        ("tool_result", "books.balance", "success"),
        ("tool_result", "run_script", "success"),
    ]


@pytest.mark.parametrize(
    ("code", "finding"),
    [
        ('books__balance("1")\nbooks__pay(7, 1)', "line 2:12: error[invalid-argument-type]"),
        ('books__balance("1")\nbooks__pay("7", "1")', "Expected `float`"),
        ('books__balance("1")\nbooks__pay("7", 1, currency="GBP")', 'found `Literal["GBP"]`'),
        ('books__balance("1")\nbooks__pay("7")', "No argument provided for required parameter `amount`"),
        ('books__balance("1")\nbooks__pay("7", 1, note="x")', "Argument `note` does not match"),
        ('books__balance("1")\nbooks_pay("7", 1)', "books_pay; did you mean books__pay"),
        ('books__balance("1")\nbooks.pay("7", 1)', "books; did you mean books__pay"),
        ('books__balance("1")\nimport subprocess', "Cannot resolve imported module `subprocess`"),
        ('books__balance("1")\nprint(open("/etc/passwd"))', "Name `open` used when not defined"),
        ('books__balance("1"\n', "error[invalid-syntax]"),
    ],
)
def test_an_invalid_script_is_corrected_before_any_call(tmp_path: Path, code: str, finding: str) -> None:
    books = Books()
    result, _ = run(project(tmp_path), books, script(code), script("1 + 1"), "done")
    assert result.status == "completed"
    assert finding in result.messages[2].content
    assert books.made == []
    assert result.messages[4].content == "value: 2"


def test_corrections_of_scripts_have_the_limit_of_all_corrections(tmp_path: Path) -> None:
    books = Books()
    result, _ = run(project(tmp_path), books, *[script(f"nothing_{n}()") for n in range(5)])
    assert (result.status, result.finish_reason, result.steps) == ("stopped", "max_corrections", 3)


@pytest.mark.hostile(7)
def test_a_denied_tool_is_no_function_and_is_denied_at_the_gate(tmp_path: Path) -> None:
    books, policy = Books(), "{deny: [{tool: books.pay, reason: closed}], allow: ['*']}"
    hidden, text = (
        'books__pay("7", 1)',
        "try:\n    exec(\"books__pay('7', 1)\")\nexcept RuntimeError as error:\n    print(error)",
    )
    result, model = run(project(tmp_path, policy), books, script(hidden), script(text), "done")
    assert "books__pay" not in model.requests[0].messages[0].content
    assert "Name `books__pay` used when not defined" in result.messages[2].content
    assert "books__pay denied: the policy forbids this call: deny books.pay" in result.messages[4].content
    assert books.made == []


@pytest.mark.hostile(7)
def test_a_script_that_catches_a_denial_and_tries_again_gets_no_further(tmp_path: Path) -> None:
    books, policy = Books(), "{deny: [{tool: books.pay, when: {amount: '> 5'}}], allow: ['*']}"
    code = (
        "for attempt in range(50):\n    try:\n        books__pay('7', 6.0 + attempt)\n    except RuntimeError:\n"
        "        pass\nbooks__pay('7', 4)"
    )
    result, _ = run(project(tmp_path, policy), books, script(code))
    assert (result.status, result.finish_reason) == ("stopped", "max_tool_calls")
    assert books.made == []
    same = "for attempt in range(50):\n    try:\n        books__pay('7', 6)\n    except RuntimeError:\n        pass\n"
    result, _ = run(tmp_path, books, script(same))
    assert (result.status, result.finish_reason) == ("stopped", "max_repeated_calls")
    assert books.made == []


def test_the_gate_repairs_and_checks_the_arguments_of_calls(tmp_path: Path) -> None:
    books = Books()
    code = "books__pay(['7'][0], [1, 'x'][0])\nbooks__pay(amount='2', **{'invoice': '8'})"
    outcome = outcome_of(project(tmp_path), books, f"exec({code!r})")
    assert books.made == ["pay 7 1 EUR", "pay 8 2 EUR"], outcome


def test_an_uncaught_failure_of_a_call_names_the_line_and_what_was_done(tmp_path: Path) -> None:
    books = Books()
    outcome = outcome_of(project(tmp_path), books, 'print("begin")\nbooks__pay("7", 1)\nbooks__balance("3")')
    assert 'File "script", line 3' in outcome
    assert "RuntimeError: books__balance failed: KeyError: '3'" in outcome
    assert "printed before the error:\nbegin" in outcome
    assert 'do not repeat them:\n- books.pay {"invoice": "7", "amount": 1}: success' in outcome


def test_a_result_is_complete_in_the_script_and_its_output_can_be_read_on(tmp_path: Path) -> None:
    @tool(risk="low", idempotent=True)
    def rows() -> list[int]:
        """Return many rows."""
        return list(range(100_000))

    async def main() -> RunResult:
        model = ScriptedModel(script("x = rows()\nprint(len(x), x[-1])\nx"), "done")
        async with Runtime.open(project(tmp_path), tools=[rows], models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
            assert "result__read" in {one.wire_name for one in model.requests[1].tools}
            return result

    result = asyncio.run(main())
    assert result.messages[2].content.startswith("100000 99999\nvalue: [0, 1, 2, ")
    assert "read on with result__read" in result.messages[2].content


# --- pauses


class Office:
    """Runs of a project with a store that survives each runtime."""

    def __init__(self, root: Path, books: Books, *turns: Any) -> None:
        self.root, self.books, self.store, self.model = root, books, JsonStore(), ScriptedModel(*turns)

    def start(self) -> RunResult:
        return self._in_runtime(lambda runtime: runtime.run("go", agent="clerk"))

    def decide(self, result: RunResult, decision: Decision) -> RunResult:
        """Continue in a new runtime, as another process does."""
        return self._in_runtime(lambda one: one.resume(result.run_id, {asked.id: decision for asked in result.pending}))

    def _in_runtime(self, work: Callable[[Runtime], Any]) -> RunResult:
        async def main() -> RunResult:
            options: dict[str, Any] = {"tools": self.books.tools(), "store": self.store, "watch": False}
            async with Runtime.open(self.root, models={"scripted": self.model}, **options) as runtime:
                result: RunResult = await work(runtime)
                return result

        return asyncio.run(main())


ASKING = "{ask: [{tool: books.pay, reason: money}], allow: ['*']}"
PAYING = """
total = books__balance("1") + books__balance("2")
print("sum", total)
paid = books__pay("7", total)
print(paid["paid"])
"""


@pytest.mark.parametrize("version", ["", "0.0.1"])
def test_an_approval_in_a_script_pauses_and_another_process_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    books = Books()
    office = Office(project(tmp_path, ASKING), books, script(PAYING), "done")
    if version:  # the snapshot belongs to another version: the script runs again with the recorded results
        monkeypatch.setattr("framework.engine.tool_call.run_tools.interpreter_version", lambda: version)
    first = office.start()
    monkeypatch.undo()
    assert first.status == "paused"
    assert [(asked.tool, asked.arguments, asked.reason) for asked in first.pending] == [
        ("books.pay", {"invoice": "7", "amount": 42.5}, "money")
    ]
    last = office.decide(first, Approve())
    assert (last.status, last.messages[2].content) == ("completed", "sum 42.5\n42.5")
    assert books.made == ["balance 1", "balance 2", "pay 7 42.5 EUR"]


@pytest.mark.parametrize("snapshot", [b"not a snapshot", bytes(1_000_001)], ids=["damaged", "too large"])
def test_a_snapshot_that_cannot_be_restored_is_replaced_by_the_recorded_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bytes
) -> None:
    books = Books()
    office = Office(project(tmp_path, ASKING), books, script(PAYING), "done")
    monkeypatch.setattr(scripts.Interpreter, "snapshot", lambda _: snapshot)
    last = office.decide(office.start(), Approve())
    assert (last.status, last.messages[2].content) == ("completed", "sum 42.5\n42.5")
    assert books.made == ["balance 1", "balance 2", "pay 7 42.5 EUR"]


@pytest.mark.parametrize(
    ("executor", "turn"),
    [
        ("code", script('chart()\nbooks__pay("7", 1)')),
        ("react", calls(("chart", {}), ("books.pay", {"invoice": "7", "amount": 1}))),
    ],
)
def test_the_model_gets_the_files_of_calls_before_a_pause(tmp_path: Path, executor: str, turn: Any) -> None:
    @tool(risk="low", idempotent=True)
    def chart() -> File:
        """Draw a chart."""
        return File.from_bytes(png("1"), name="1.png")

    class Drawing(Books):
        def tools(self) -> list[Tool]:
            return [*super().tools(), chart]

    root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", skill_policy=ASKING, executor=executor)})
    office = Office(root, Drawing(), turn, "done")
    assert office.decide(office.start(), Approve()).status == "completed"
    request = office.model.requests[-1]
    (part,) = [part for message in request.messages for part in message.media]
    assert request.media == {part.digest: png("1")}


def test_an_edited_call_of_a_script_returns_to_it(tmp_path: Path) -> None:
    books = Books()
    office = Office(project(tmp_path, ASKING), books, script(PAYING), "done")
    last = office.decide(office.start(), Edit(arguments={"invoice": "7", "amount": 1}))
    assert (last.status, last.messages[2].content) == ("completed", "sum 42.5\n1.0")


def test_a_rejection_is_an_exception_in_the_script(tmp_path: Path) -> None:
    books = Books()
    code = 'try:\n    books__pay("7", 1)\nexcept RuntimeError as error:\n    print(error)\nbooks__balance("1")'
    office = Office(project(tmp_path, ASKING), books, script(code), "done")
    last = office.decide(office.start(), Reject(reason="too dear"))
    assert last.messages[2].content == "books__pay cancelled: The user rejected this call: too dear\nvalue: 40.0"
    assert books.made == ["balance 1"]


def test_several_approvals_in_one_script_pause_one_after_another(tmp_path: Path) -> None:
    books = Books()
    code = 'x = 0\nfor n in range(3):\n    x += books__pay(str(n), 1.5 + n)["paid"]\nx'
    office = Office(project(tmp_path, ASKING), books, script(code), "done")
    result, pauses = office.start(), 0
    while result.status == "paused":
        pauses += 1
        result = office.decide(result, Approve())
    assert (pauses, result.messages[2].content) == (3, "value: 7.5")
    assert books.made == ["pay 0 1.5 EUR", "pay 1 2.5 EUR", "pay 2 3.5 EUR"]


@pytest.mark.hostile(5)
def test_a_continued_script_that_asks_for_other_calls_ends_without_making_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = Books()
    office = Office(project(tmp_path, ASKING), books, script(PAYING), "done")
    monkeypatch.setattr("framework.engine.tool_call.run_tools.interpreter_version", lambda: "0.0.1")
    first = office.start()
    monkeypatch.undo()
    monkeypatch.setattr(
        "framework.engine.tool_call.run_tools.repetition_key", lambda tool, arguments: f"{tool}{len(arguments)}"
    )
    last = office.decide(first, Approve())
    assert "does not ask for the same calls: call 1 is now books.balance; it was not made" in last.messages[2].content
    assert books.made == ["balance 1", "balance 2"]


def test_a_person_can_be_asked_about_scripts_themselves(tmp_path: Path) -> None:
    books = Books()
    office = Office(
        project(tmp_path, "{ask: [run_script], allow: ['*']}"), books, script("books__balance('1')"), "done"
    )
    first = office.start()
    assert [asked.arguments for asked in first.pending] == [{"code": "books__balance('1')"}]
    assert books.made == []
    assert office.decide(first, Approve()).messages[2].content == "value: 40.0"


# --- hostile scripts


@pytest.mark.hostile(4)
@pytest.mark.parametrize(
    ("code", "finding"),
    [
        ("while True:\n    pass", "TimeoutError"),
        ('x = "a" * (1 << 30)', "MemoryError"),
        ("x = [0]\nwhile True:\n    x += x", "Error"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError"),
        ('while True:\n    print("x" * 100_000)', "prints more than 1000000 characters"),
        ('"a" * 3_000_000', "cannot be shown"),
        ("10 ** 100_000", "cannot be shown"),
        ("import os\nprint(os.environ)", "not supported"),
        ('from pathlib import Path\nPath("/etc/passwd").read_text()', "Permission denied"),
        ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
        ('books__pay("7", 10 ** 5000)', "TypeError: the arguments of books__pay"),
        ('books__pay("7", float("nan"))', "TypeError: the arguments of books__pay"),
        ('exec("books__balance({1, 2})")', "set is not JSON data"),
        ("exec(\"books__balance(b'x')\")", "bytes is not JSON data"),
        ('exec("nothing_like_it(1)")', "NameError"),
        ("await books__balance('1')", "can't be awaited"),
        ("def g():\n    yield 1\nlist(g())", "NotImplementedError"),
        ("#" * 50_001, "it has 50001 characters; the limit is 50000"),
    ],
)
def test_a_hostile_script_ends_with_an_error_that_the_model_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, finding: str
) -> None:
    monkeypatch.setattr(scripts, "_SECONDS", 0.5)
    books = Books()
    assert finding in outcome_of(project(tmp_path), books, code)
    assert all(one.startswith("balance") for one in books.made)


@pytest.mark.hostile(4)
def test_a_hundred_thousand_calls_end_at_the_limit_of_the_run(tmp_path: Path) -> None:
    books = Books()
    code = "for n in range(100_000):\n    books__pay(str(n), 1)"
    result, _ = run(project(tmp_path), books, script(code))
    assert (result.status, result.finish_reason, len(books.made)) == ("stopped", "max_tool_calls", 19)


def test_a_name_of_the_script_itself_hides_a_tool(tmp_path: Path) -> None:
    books = Books()
    assert outcome_of(project(tmp_path), books, "def books__pay(x):\n    return x\nbooks__pay(3)") == "value: 3"
    assert books.made == []


def test_a_call_with_impossible_arguments_has_no_number(tmp_path: Path) -> None:
    books = Books()
    code = (
        "for n in range(2):\n    try:\n        exec('books__pay({1}, 2)')\n    except TypeError as error:\n"
        "        print('no')\n    books__balance('1')\nbooks__pay('7', 1)"
    )
    office = Office(project(tmp_path, ASKING), books, script(code), "done")
    first = office.start()
    assert [asked.id for asked in first.pending] == ["c1@3"]
    assert office.decide(first, Approve()).messages[2].content.startswith("no\nno\nvalue:")


def test_functions_are_values(tmp_path: Path) -> None:
    books = Books()
    assert (
        outcome_of(project(tmp_path), books, "f = books__balance\n[f(a) for a in ('1', '2')]") == "value: [40.0, 2.5]"
    )


def named(name: str, *parameters: str) -> Tool:
    @tool(risk="low")
    def any_name() -> str:
        """Do it."""
        return ""

    schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}
    definition = ToolDefinition(name=name, description='Do it. """ \\', parameters=schema)
    return Tool(definition, any_name.function, any_name.arguments)


@pytest.mark.hostile(4)
def test_each_tool_gets_a_name_that_python_accepts() -> None:
    names = ("import", "print", "Any", "a-b", "a_b", "a.b", "ü", "9lives", "mcp.x.get-all", "mcp.x.get_all")
    functions = script_functions([named(one, "class", "$filter", "_filter", "a b") for one in names])
    assert {
        function.tool: name for name, function in functions.items() if function.tool[-4:] not in ("_all", "-all")
    } == {
        "import": "import_",
        "print": "print_",
        "Any": "Any_",
        "a-b": "a_b",
        "a.b": "a__b",
        "a_b": next(name for name, function in functions.items() if function.tool == "a_b"),
        "9lives": "_9lives",
        "ü": "_",
    }
    assert len(functions) == len(names)
    for function in functions.values():
        compile(function.text(), "stub", "exec")
        compile(function.stub(), "stub", "exec")
        assert list(function.parameters().values()) == ["class", "$filter", "_filter", "a b"]
        assert function.arguments(["1"], {list(function.parameters())[1]: "2"}) == {"class": "1", "$filter": "2"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "int"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "number"}, {"const": "max"}]}, "float | Literal['max']"),
        ({"enum": ["a", 1, None, True]}, "Literal['a', 1, None, True]"),
        ({"enum": ["x" * 5_000], "type": "string"}, "str"),
        ({"type": "array", "items": {"$ref": "#/$defs/Row"}}, "Sequence[Mapping[str, Any]]"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "Mapping[str, bool]"),
        ({"type": "array"}, "Sequence[Any]"),
        ({"$ref": "#/$defs/Loop"}, "Any"),
        ({"$ref": "https://example.com/schema.json"}, "Any"),
        ({"anyOf": [{"$ref": "#/$defs/Wide"}] * 3}, "Any"),
        ({"allOf": [{"type": "string"}]}, "Any"),
        (True, "Any"),
    ],
)
def test_a_parameter_has_the_type_of_its_schema(schema: Any, expected: str) -> None:
    one = named("t", "x")
    wide = {"anyOf": [{"$ref": "#/$defs/Wide"}] * 50, "properties": {"a": {"$ref": "#/$defs/Wide"}}}
    definitions = {"Row": {"type": "object", "properties": {}}, "Loop": {"$ref": "#/$defs/Loop"}, "Wide": wide}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": definitions}
    definition = one.definition.model_copy(update={"parameters": parameters})
    (function,) = script_functions([Tool(definition, one.function, one.arguments)]).values()
    assert function.stub() == f"def t(x: {expected}) -> Any: ..."
    assert len(function.text()) < 6_000
