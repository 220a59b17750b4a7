"""Rendering has bounded time and memory for any input values."""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined, UndefinedError
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment

from framework import Runtime
from framework.config.templates.prompts import PromptError, Prompts
from tests.support.cases import FACTOR, cases
from tests.support.growth import assert_alike
from tests.support.paths import ROOT
from tests.support.projects import agent, write

MEMORY = 1024 * 1024 * 1024
"""Bytes of address space of a child."""
HUGE = 2_000_000_000
DOUBLED = "{{% set ns = namespace(x={}) %}}{{% for i in range(n) %}}{{% set ns.x = {} %}}{{% endfor %}}"
GROWING = {
    "product of a text": "{{ 'x' * n }}",
    "product of a list": "{{ [1] * n }}",
    "power": "{{ 7 ** n }}",
    "width of a format": "{{ '%*d' % (n, 1) }}",
    "width of str.format": "{{ '{:>{w}}'.format(1, w=n) }}",
    "width of str.format_map": "{{ '{a:>{w}}'.format_map({'a': 1, 'w': n}) }}",
    "fields of a format": "{{ ('%(a)s' * 1000) % {'a': text} }}",
    "fields of str.format": "{{ ('{a}' * 1000).format(a=text) }}",
    "text after text": DOUBLED.format("'ab'", "ns.x ~ ns.x"),
    "sums of texts": DOUBLED.format("'ab'", "ns.x + ns.x"),
    "squares": DOUBLED.format("7", "ns.x * ns.x"),
    "shared lists": DOUBLED.format("[1]", "[ns.x, ns.x]") + "{{ ns.x }}",
    "shared lists compared": DOUBLED.format("[1]", "[ns.x, ns.x]")
    + "{% set ns.y = ns.x %}"
    + DOUBLED.format("[1]", "[ns.x, ns.x]").partition("%}")[2]
    + "{{ ns.x == ns.y }}",
    "captured output": "{% set x %}{% for i in range(n) %}{{ text }}{% endfor %}{% endset %}{{ x | length }}",
    "joined references": "{{ range(n) | map('attr', 'real') | join(text) | length }}",
}
LONG = {
    "loop in a loop": "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}",
    "filtered loop": "{% for i in range(n) %}{% for j in range(n) if false %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [n, n] recursive %}{{ loop([x - 1, x - 1]) if x }}{% endfor %}",
    "recursive macro": "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(n) }}",
    "search in a list": "{% for i in range(n) %}{% if i in items %}{% endif %}{% endfor %}",
    "search in a text": "{% for i in range(n) %}{% if 'ab' in text %}{% endif %}{% endfor %}",
    "select in a list": "{{ items | select('in', items) | list | length }}",
    "parts of a text": "{% for i in range(n) %}{% set x = text[1:] %}{% endfor %}",
    "filters of a text": "{% for i in range(n) %}{% set x = text | upper %}{% endfor %}",
    "methods of a text": "{% for i in range(n) %}{% set x = text.upper() %}{% endfor %}",
    "digits": "{{ 1.5 | round(n, 'floor') }}",
}
ARGUMENTS = (
    "",
    "(n)",
    "(n, n)",
    "(n, '0')",
    "(text)",
    "(text, text)",
    "('(', text)",
    "('b', n)",
    "(items)",
    "(1)",
    "('<')",
)
TEXTS = (
    "'x'",
    "'x '",
    "'- '",
    "'<a '",
    "'<!--'",
    "'(('",
    "'))'",
    "'a@b.c '",
    "'%s'",
    "'{0}'",
    "'\\n'",
    "'\\t'",
    "'&lt;'",
)
VALUES = (
    "items",
    "[items]",
    "nested",
    "{'a': items}",
    "7",
    "7.5",
    "text.encode()",
    *(f"({text} * k)" for text in TEXTS),
)
METHODS = sorted({name for kind in (str, bytes, int, list, dict, tuple) for name in dir(kind) if name[0] != "_"})


def variables(n: int, size: int = 1000) -> dict[str, Any]:
    nested: list[Any] = [1]
    for _ in range(min(size, 400)):
        nested = [nested, 1]
    return {"n": n, "k": size, "text": "ab " * size, "items": list(range(size)), "nested": nested}


def attempt(prompts: Prompts, name: str, given: dict[str, Any]) -> str:
    """Return the text of a template, or its error."""
    try:
        return prompts.render(name, "en", given)
    except PromptError as error:
        return f"refused: {error.problem.message}"


def test_asi08_a_value_that_would_fill_the_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from tests.config.templates.test_sandbox import *\n"
        "prompts = Prompts({f'{n}.j2': t for n, t in GROWING.items()})\n"
        "for name in GROWING:\n"
        "    for n in (60, 100_000, HUGE):\n"
        "        print(n, name, attempt(prompts, f'{name}.j2', variables(n, 100_000))[:80], flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(GROWING), done.stderr[-1000:]
    huge = [line for line in lines if line.startswith(str(HUGE))]
    allowed = ("refused: creates a ", "refused: exceeds the limit of ", "refused: Range too big")
    assert [line for line in huge if not any(reason in line for reason in allowed)] == []
    assert [line for line in lines if "Memory" in line] == []


@pytest.mark.parametrize("name", [*GROWING, *LONG])
def test_asi08_a_larger_input_does_not_make_rendering_take_longer_and_longer(name: str) -> None:
    prompts = Prompts({"t.j2": {**GROWING, **LONG}[name]})
    for n in (12, 48, 192, 768, 3072, 12_288, 24_576):
        small, large = variables(n // 4, 10_000), variables(n, 10_000)
        assert_alike(partial(attempt, prompts, "t.j2"), small, large, noticeable=0.08, label=f"n = {n}")


def _uses(name: str) -> Iterator[str]:
    joint = "." if name in METHODS and name not in FILTERS else " | "
    joints = (".", " | ") if name in METHODS and name in FILTERS else (joint,)
    for value in VALUES:
        for sign in joints:
            for arguments in ARGUMENTS:
                called = arguments or ("()" if sign == "." else "")
                yield f"{{{{ ({value}{sign}{name}{called}) | string | length }}}}"


@pytest.mark.parametrize("name", sorted({*FILTERS, *METHODS}))
def test_no_filter_and_no_method_takes_much_longer_than_its_input(name: str) -> None:
    uses = random.Random(name).sample(list(_uses(name)), 4 * FACTOR)
    prompts = Prompts({f"{index}.j2": use for index, use in enumerate(uses)})
    for index, use in enumerate(uses):
        for n in (16_000, HUGE):
            small, large = variables(n // 4, 4_000), variables(n, 16_000)
            assert_alike(partial(attempt, prompts, f"{index}.j2"), small, large, noticeable=0.06, label=use)


def test_a_costly_template_fails_the_run_with_its_line(tmp_path: Path) -> None:
    text = agent("a", model="offline", instructions="{template: a.j2}", inputs="{n: {type: integer, required: true}}")
    write(tmp_path, {"agents.d/a.yaml": text, "prompts/a.j2": "Be brief.\n{{ 'x' * n }}\n"})

    async def both() -> tuple[Any, Any]:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            few = await runtime.run("hello", agent="a", inputs={"n": 3})
            return few, await runtime.run("hello", agent="a", inputs={"n": HUGE})

    few, many = asyncio.run(both())
    assert few.status == "completed"
    assert many.status == "failed"
    assert many.error.code == "config_invalid"
    assert "prompts/a.j2:2:1: creates a value of size 2000000000; the limit is 1000000" in many.error.message


_NAMES = st.sampled_from(["text", "items", "n", "rows", "nothing"])
_STEPS = st.sampled_from(
    [
        " | upper", " | length", " | join(', ')", " | string", " | list", " | sort | list", " | tojson",
        " | tojson(indent=2)", " | replace('a', 'bb')", " | indent(2)", " | center(20)", " | truncate(9)",
        " | default('none')", " | first", "[1:3]", " | map('string') | join('-')", " | select('odd') | list",
        " | batch(2, 0) | list", " | wordwrap(5)", " | title", " | striptags", " | urlize", " | pprint",
        " | e", " | sum", " | round(1)", " | int", " | unique | list", " | reverse | list", ".upper()",
        ".split()", " * 3", " + 1", " ~ 'é'", " % 3", " ** 2", " // 2", " == n", " in items", " is mapping",
        " is in [1]", " | map(attribute='name') | list", " | groupby('name') | list", " | dictsort", " | safe",
        " | format(1)", " | slice(2) | list",
    ]
)  # fmt: skip
_EXPRESSIONS = st.builds("{{{{ {}{}{} }}}}".format, _NAMES, _STEPS, st.just("") | _STEPS)
_PIECES = st.recursive(
    _EXPRESSIONS
    | st.sampled_from(["plain text\n", "  ", "中文", "{{ '{:>5}|{a}'.format(n, a=text) }}", "{{ '%5d' % n }}"]),
    lambda inner: st.one_of(
        st.builds("{{% for x in {} %}}{{{{ loop.index }}}}{}{{% else %}}-{{% endfor %}}".format, _NAMES, inner),
        st.builds("{{% for x in items if x > 1 %}}{}{{{{ x }}}}{{% endfor %}}".format, inner),
        st.builds("{{% if {} == 3 or text in 'abc' %}}{}{{% else %}}no{{% endif %}}".format, _NAMES, inner),
        st.builds("{{% set y %}}{}{{% endset %}}{{{{ y }}}}".format, inner),
        st.builds("{{% macro m(x) %}}{}{{{{ x }}}}{{% endmacro %}}{{{{ m(n) }}}}".format, inner),
        st.builds("{{% filter upper %}}{}{{% endfilter %}}".format, inner),
        st.builds("{{% block b %}}{}{{% endblock %}}{{{{ self.b() }}}}".format, inner),
    ),
    max_leaves=5,
)


@cases(50)
@given(
    source=st.lists(_PIECES, min_size=1, max_size=4).map("".join),
    text=st.text("abc <&é\n", max_size=12),
    items=st.lists(st.integers(-3, 9), max_size=4),
    n=st.integers(-2, 5) | st.floats(-2, 5),
)
def test_ordinary_templates_render_as_in_an_unlimited_sandbox(source: str, text: str, items: list[int], n: Any) -> None:
    given = {"text": text, "items": items, "n": n, "rows": [{"name": "a", "id": 1}, {"name": "b", "id": 2}]}
    plain = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    try:
        expected = plain.from_string(source).render(given)
    except UndefinedError as error:
        expected = f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - filters raise anything
        expected = f"refused: {error}"
    said = attempt(Prompts({"t.j2": source}), "t.j2", given)
    if expected.startswith("refused: "):  # the position in the message is added by the sandbox
        assert said.startswith("refused: ")
    else:
        assert said.partition(" at 0x")[0] == expected.partition(" at 0x")[0]
