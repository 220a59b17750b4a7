"""Template analysis rejects templates that cannot work, and accepts all that can."""

from __future__ import annotations

import re
from itertools import count, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jinja2 import DictLoader, Environment, StrictUndefined, UndefinedError

from framework.config.templates.prompts import Prompts
from framework.types.problem import Problem
from tests.support.cases import cases, each


def faults(sources: dict[str, str] | str, *given_names: str) -> tuple[Problem, ...]:
    prompts = Prompts({"t.j2": sources} if isinstance(sources, str) else sources)
    return prompts.check("t.j2", given_names)


def needed(sources: dict[str, str] | str, *given_names: str) -> list[str]:
    return [
        f"{problem.path.removeprefix('prompts/')}:{problem.line} {problem.message}"
        for problem in faults(sources, *given_names)
    ]


@each(
    "source",
    [
        "{% set x = 1 %}{{ x }}",
        "{% set a, x = 1, 2 %}{{ x }}",
        "{% set x %}text{% endset %}{{ x }}",
        "{% if y %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% for x in y %}{{ x }}{{ loop.index }}{% endfor %}",
        "{% for a, x in y if x %}{{ x }}{% endfor %}",
        "{% with x = 1 %}{{ x }}{% endwith %}",
        "{% macro m(x) %}{{ x }}{{ varargs }}{{ kwargs }}{{ caller() }}{% endmacro %}",
        "{% macro x() %}{% endmacro %}{% block b %}{{ x() }}{% endblock %}",
        "{% block b %}{{ self.c() }}{% endblock %}{% block c %}{% endblock %}",
        "{% set x = namespace(n=0) %}{% for i in y %}{% set x.n = x.n + 1 %}{% endfor %}{{ x.n }}",
        "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
        "{% if x is defined %}{{ x }}{% endif %}",
        "{{ x | default('a') }}{{ x | d('a') | upper }}",
        "{{ range(3) | list }}{{ dict(a=1) }}",
        "{% import 'm.j2' as x %}{{ x.f() }}",
        "{% from 'm.j2' import f as x %}{{ x() }}",
        "{% include 'gone.j2' ignore missing %}",
        "{% include ['gone.j2', 'm.j2'] %}",
    ],
)
def test_variables_that_a_template_sets_or_guards_are_not_required(source: str) -> None:
    assert needed({"t.j2": source, "m.j2": "{% macro f() %}{% endmacro %}"}, "y") == []


@pytest.mark.parametrize(
    "source",
    [
        "a\n{{ x }}",
        "{% if y %}\n{{ x }}\n{% endif %}",
        "{{ y if y else\n x }}",
        "{% for i in\n x %}{% endfor %}",
        "{% macro m() %}\n{{ x }}{% endmacro %}",
        "{% set a =\n x %}",
        "{{ y |\n join(x) }}",
        "{% if false %}{% elif y %}\n{{ x.z }}{% endif %}",
    ],
)
def test_an_undefined_variable_is_reported_on_every_path(source: str) -> None:
    assert needed(source, "y") == ["t.j2:2 'x' is undefined; there are: y"]
    assert needed(source, "x", "y") == []


def test_a_similar_variable_is_suggested() -> None:
    (problem,) = faults("{{ custmer_id }}", "customer_id", "agent")
    assert problem.message == "'custmer_id' is undefined; did you mean customer_id?"
    assert problem.hint == "declare it under `inputs`, or set it under `vars`"


FAMILY = {
    "t.j2": "{% extends 'base.j2' %}{{ nobody }}{% set title = 'T' %}{% block body %}{{ own }}{% endblock %}",
    "base.j2": "{{ title }}{% block body %}{{ body }}{% endblock %}{% block end %}{{ foot }}{% endblock %}",
}


def test_replaced_blocks_of_a_parent_and_text_outside_blocks_require_nothing() -> None:
    assert needed(FAMILY, "own") == ["base.j2:1 'foot' is undefined; there are: own"]
    assert needed(FAMILY, "own", "foot") == []


def test_super_requires_the_variables_of_the_parents_block() -> None:
    child = FAMILY["t.j2"].replace("{{ own }}", "{{ super() }}")
    assert [line.split(" is")[0] for line in needed({**FAMILY, "t.j2": child}, "foot")] == ["base.j2:1 'body'"]


def test_an_included_template_receives_surrounding_variables() -> None:
    row = {"row.j2": "{{ item }}{{ n }}"}
    source = "{% for item in items %}{% set n = 1 %}{% include 'row.j2' %}{% endfor %}"
    assert needed({"t.j2": source, **row}, "items") == []
    assert [line[:15] for line in needed({"t.j2": "{% include 'row.j2' %}", **row}, "n")] == ["row.j2:1 'item'"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% include name %}", "the template name is computed"),
        ("a\n{% include 'a' ~ name %}", "the template name is computed"),
        ("a\n{% include ['u.j2', name] %}", "the template name is computed"),
        ("a\n{% extends name %}", "the template name is computed"),
        ("a\n{% from name import m %}", "the template name is computed"),
        ("a\n{% if name is oddd %}{% endif %}", "there is no test 'oddd'; did you mean odd?"),
        ("a\n{% filter shuot %}{% endfilter %}", "there is no filter 'shuot'"),
        ("a\n{% set b | shuot %}{% endset %}", "there is no filter 'shuot'"),
        ("a\n{% if false %}{% include 'gone.j2' %}{% endif %}", "there is no template 'gone.j2'"),
        ("a\n{% include ['gone.j2', 'gone2.j2'] %}", "there is no template 'gone.j2'"),
        ("a\n{% include [] %}", "there is no template ''"),
        ("a\n{% if false %}{% include 't.j2' %}{% endif %}", "template includes form a cycle: t.j2 -> t.j2"),
    ],
)
def test_errors_are_reported_in_unreachable_branches(source: str, message: str) -> None:
    prompts = Prompts({"t.j2": source, "u.j2": "u"})
    (problem,) = prompts.check("t.j2", ["name"])
    assert (problem.path, problem.line, problem.message[: len(message)]) == ("prompts/t.j2", 2, message)
    assert list(prompts.problems()) == [problem]


def test_a_syntax_error_is_reported_in_the_included_template() -> None:
    (problem,) = faults({"t.j2": "{% if false %}{% include 'u.j2' %}{% endif %}", "u.j2": "\n{% if %}"})
    assert problem.place == "prompts/u.j2:2:1"


def test_a_template_nested_without_end_is_a_problem_not_a_crash() -> None:
    (problem,) = faults("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}")
    assert problem.path == "prompts/t.j2"


# --- valid templates are accepted

NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = (
    "{{{{ {0} }}}}",
    "{{% set {0} = 1 %}}",
    "{{% set {0} = {1} ~ '' %}}",
    "{{{{ {0} | default(1) }}}}",
    "{{% if {0} is defined %}}{{{{ {0} }}}}{{% endif %}}",
)
BRANCHES = (
    "{{% for {0} in [1] %}}{2}{{% endfor %}}",
    "{{% with {0} = 1 %}}{2}{{% endwith %}}",
    "{{% macro m({0}) %}}{2}{{% endmacro %}}{{{{ m(1) }}}}",
    "{{% if switch %}}{2}{{% else %}}{3}{{% endif %}}",
    "{{% filter upper %}}{2}{{% endfilter %}}",
)


@st.composite
def pieces(draw: st.DrawFn, depth: int = 2) -> str:
    """Templates of which every line is reached for some values of the switches."""
    text = ""
    for line in draw(st.lists(st.sampled_from([*LEAVES, *(BRANCHES if depth else ())]), max_size=3)):
        inner = [draw(pieces(depth - 1)) if line in BRANCHES else "" for _ in range(2)]
        text += line.format(draw(NAMES), draw(NAMES), *inner)
    return text


def renders(sources: dict[str, str], given_names: set[str], switches: list[str]) -> bool:
    """Return whether the templates render for all values of the switches."""
    template = Environment(undefined=StrictUndefined, loader=DictLoader(sources)).get_template("t.j2")
    for values in product((True, False), repeat=len(switches)):
        try:
            template.render(dict.fromkeys(given_names, 1), **dict(zip(switches, values, strict=True)))
        except UndefinedError:
            return False
    return True


@cases(50)
@given(source=pieces(), included=pieces(), given_names=st.sets(NAMES))
def test_templates_that_always_render_are_accepted(source: str, included: str, given_names: set[str]) -> None:
    number = count()
    source, included = (re.sub("switch", lambda _: f"s{next(number)}", text) for text in (source, included))
    switches = [f"s{n}" for n in range(next(number))]
    assume(len(switches) <= 5)
    for text in (source, source + "{% include 'u.j2' %}", "{% block x %}" + source + "{% endblock %}"):
        sources = {"t.j2": text, "u.j2": included}
        if renders(sources, given_names, switches):
            assert needed(sources, *given_names, *switches) == []


@cases(100)
@given(names=st.lists(NAMES), given_names=st.sets(NAMES))
def test_templates_that_set_nothing_are_rejected_only_if_they_fail(names: list[str], given_names: set[str]) -> None:
    source = "".join(f"{{{{ {name} }}}}" for name in names)
    assert renders({"t.j2": source}, given_names, []) is (needed(source, *given_names) == [])
