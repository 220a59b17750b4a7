"""Prompts are rendered exactly, from plain data only, or rejected with their line."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.templates.prompt_check import AnyValue, runtime_samples
from framework.config.templates.prompts import MAX_RENDERED_CHARS, PromptError, Prompts, shipped_templates
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write


def render(source: str, locale: str = "en", **variables: Any) -> str:
    return Prompts({"t.j2": source}).render("t.j2", locale, variables)


def refused(sources: dict[str, str] | str, **variables: Any) -> Problem:
    prompts = Prompts({"t.j2": sources} if isinstance(sources, str) else sources)
    with pytest.raises(PromptError) as caught:
        prompts.render("t.j2", "en", variables)
    return caught.value.problem


@pytest.mark.parametrize(
    "source",
    ["", "\n", "one", "one\n", "one\n\n", "one\r\ntwo\r\n", "\ttwo\r", "  好 { % } # }} \n", "${X} $x \\n \x0b"],
)
def test_a_file_without_jinja_is_returned_unchanged(source: str) -> None:
    assert render(source) == source


@cases(200)
@given(source=st.text(st.characters(codec="utf-8", exclude_characters="{")))
def test_any_text_without_jinja_is_returned_unchanged(source: str) -> None:
    assert render(source) == source


async def _instructions(root: Path, locale: str = "en") -> str:
    async with Runtime.open(root, watch=False) as runtime:
        return runtime.catalog.current.agents["a"].instructions(locale, {}, None)


@pytest.mark.parametrize("text", ["plain, no newline", "two\nlines\n", "crlf\r\nends\r\n\r\n", "好\n"])
def test_instructions_are_the_bytes_of_the_template_file(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="{template: x/a.j2}")})
    (tmp_path / "prompts/x").mkdir(parents=True)
    (tmp_path / "prompts/x/a.j2").write_bytes(text.encode())
    assert asyncio.run(_instructions(tmp_path)).encode() == (tmp_path / "prompts/x/a.j2").read_bytes()


def test_instructions_in_the_agent_file_are_never_rendered(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", instructions="'{{ agent.name }} {% if %}'")})
    assert asyncio.run(_instructions(tmp_path)) == "{{ agent.name }} {% if %}"


def test_with_jinja_the_spaces_and_newlines_around_it_stay() -> None:
    assert render("  a {{ x }}\n\n{% if x %}\n b\n{% endif %}\n\n", x=1) == "  a 1\n\n\n b\n\n\n"


def test_an_undefined_variable_is_an_error_with_its_line() -> None:
    problem = refused("one\n\nHello {{ nmae }}\n", name="x")
    assert (problem.place, problem.message) == ("prompts/t.j2:3:10", "'nmae' is undefined")
    assert (problem.excerpt, problem.hint) == ("Hello {{ nmae }}", "declare it under `inputs`, or set it under `vars`")


def test_a_missing_attribute_is_an_error_with_its_line() -> None:
    problem = refused("\n{{ agent.nmae }}", agent={"name": "x"})
    assert (problem.place, problem.message) == ("prompts/t.j2:2:10", "'dict object' has no attribute 'nmae'")


def test_an_error_in_an_included_template_has_its_position() -> None:
    problem = refused({"t.j2": "a\n{% include 'u.j2' %}", "u.j2": "\n\n{{ y }}\n"})
    assert (problem.place, problem.excerpt) == ("prompts/u.j2:3:4", "{{ y }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "Expected an expression"),
        ("a\n{% for x in y %}", "Unexpected end of template"),
        ("a\n{{ x | shuot }}", "No filter named 'shuot'"),
        ("a\n{% include 'gone.j2' %}", "there is no template 'gone.j2'"),
        ("a\n{% extends 'systme.j2' %}", "there is no template 'systme.j2'; did you mean system.j2"),
        ("a\n{% include 't.j2' %}", "template includes form a cycle"),
        ("a\n{{ 1 / 0 }}", "division by zero"),
        ("a\n{{ [] + 1 }}", "can only concatenate list"),
        ("a\n{{ 'x' | dictsort }}", "has no attribute 'items'"),
        ("a\n{{ range(10 ** 9) }}", "Range too big"),
    ],
)
def test_an_invalid_template_is_rejected_with_its_line(source: str, message: str) -> None:
    problem = refused(source, x="x", y=[])
    assert (problem.path, problem.line) == ("prompts/t.j2", 2)
    assert message in problem.message


def test_a_cycle_of_several_templates_is_rejected() -> None:
    circle = {"t.j2": "{% include 'u.j2' %}", "u.j2": "{% include 'v.j2' %}", "v.j2": "{% include 't.j2' %}"}
    assert "form a cycle" in refused(circle).message


@pytest.mark.parametrize(
    "source", ["{% for i in [1] %}" * 25 + "{% endfor %}" * 25, "{{ " + "(" * 3000 + ")" * 3000 + " }}"]
)
def test_compiler_errors_are_problems_of_the_template(source: str) -> None:
    assert [problem.path for problem in Prompts({"t.j2": source}).problems()] == ["prompts/t.j2"]
    assert refused(source).path == "prompts/t.j2"


def test_a_missing_template_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(PromptError, match=r"there is no template 'systm.j2'; did you mean system\.j2"):
        Prompts({}).render("systm.j2", "en", {})


def test_the_syntax_errors_of_the_projects_templates_are_listed_in_order() -> None:
    prompts = Prompts({"b.j2": "{{", "a.j2": "\n{% endif %}", "good.j2": "{{ x }}"})
    assert [problem.place for problem in prompts.problems()] == ["prompts/a.j2:2:4", "prompts/b.j2:1:1"]


@pytest.mark.hostile(28)
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x.__init__.__globals__ }}",
        "{{ range.__self__ }}",
        "{{ self.__init__ }}",
        "{{ dict.mro() }}",
        "{{ things.append(1) }}",
        "{{ agent.update({}) }}",
        "{% do things.clear() %}",
        "{{ cycler }}",
        "{{ lipsum.__globals__ }}",
        "{% import 'os' as os %}",
        "{% include '/etc/passwd' %}",
        "{% include '../t.j2' %}",
    ],
)
def test_a_template_can_access_only_its_data(source: str) -> None:
    things: list[int] = [1]
    refused(source, x="x", things=things, agent={"name": "a"})
    assert things == [1]


@pytest.mark.hostile(28)
def test_text_in_values_is_never_rendered() -> None:
    hostile = "{{ secret }} {% for x in y %} {# #} {{ ''.__class__ }}"
    assert (
        render("{{ user }}|{{ notes | join(',') }}", user=hostile, notes=[hostile], secret="s")
        == f"{hostile}|{hostile}"
    )


@cases(100)
@given(value=st.text())
def test_any_value_is_inserted_unchanged(value: str) -> None:
    assert render("<{{ x }}>", x=value) == f"<{value}>"


@pytest.mark.hostile(29)
@pytest.mark.parametrize(
    "source",
    ["{{ 'x' * (cap + 1) }}", "{% for i in range(9999) %}{% for j in range(9999) %}text{% endfor %}{% endfor %}"],
)
def test_text_that_is_too_long_is_rejected(source: str) -> None:
    assert f"exceeds {MAX_RENDERED_CHARS} characters" in refused(source, cap=MAX_RENDERED_CHARS).message


def test_the_cap_is_exact_with_and_without_jinja() -> None:
    full = "x" * MAX_RENDERED_CHARS
    assert render(full) == render("{{ x }}", x=full) == full
    assert refused(full + "x").path == "prompts/t.j2"
    assert refused("{{ x }}!", x=full).path == "prompts/t.j2"


VARIANTS = {"s.j2": "plain", "s.zh.j2": "zh", "s.zh-Hant-TW.j2": "tw", "s.en-GB.j2": "gb", "x/s.j2": "folder"}


@pytest.mark.parametrize(
    ("locale", "expected"),
    [
        ("en", "plain"),
        ("en-GB", "gb"),
        ("en_GB", "gb"),
        ("zh", "zh"),
        ("zh-TW", "zh"),
        ("zh_TW", "zh"),
        ("zh-Hant-TW", "tw"),
        ("zh-Hant-TW-x-private", "tw"),
        ("zh-Hant", "zh"),
        ("de-DE", "plain"),
        ("", "plain"),
        ("../x/s", "plain"),
        ("-" * 100_000, "plain"),
    ],
)
def test_the_closest_variant_of_the_locale_is_rendered(locale: str, expected: str) -> None:
    assert Prompts(VARIANTS).render("s.j2", locale, {}) == expected


def test_variants_are_in_the_folder_of_the_template() -> None:
    assert Prompts(VARIANTS).variants("s.j2") == ["s.en-GB.j2", "s.j2", "s.zh-Hant-TW.j2", "s.zh.j2"]
    assert Prompts(VARIANTS).variants("x/s.j2") == ["x/s.j2"]


def test_project_templates_override_shipped_ones() -> None:
    prompts = Prompts({"react.j2": "mine"})
    assert prompts.render("react.j2", "en", {}) == "mine"
    assert prompts.render("plan.j2", "en", dict(runtime_values())["plan.j2"]) != ""


def runtime_values() -> list[tuple[str, dict[str, Any]]]:
    tools = [{"name": "x.y", "description": "Does y.", "parameters": {"type": "object"}}]
    shared: dict[str, Any] = {
        "agent": {"name": "a", "description": "d"},
        "limits": {"max_steps": 3, "max_tool_calls": None, "timeout": 90.0, "max_observation_chars": 4000},
        "locale": "en",
        "parallel_calls": True,
    }
    http = {"domains": ["example.com"], "methods": ["GET"], "timeout": 20.0}
    unlimited = {**shared["limits"], "timeout": None}
    with_and_without = [
        {**shared, "tools": tools, "http": http},
        {**shared, "tools": tools, "http": None, "limits": unlimited, "parallel_calls": False},
    ]
    samples = [(name, dict(values)) for base in with_and_without for name, values in runtime_samples(base)]
    return [*samples, *(("system.j2", base) for base in with_and_without)]


@pytest.mark.parametrize("locale", ["en", "zh"])
@pytest.mark.parametrize("sample", runtime_values(), ids=lambda sample: str(sample[0]))
def test_the_shipped_templates_render_in_both_languages(locale: str, sample: tuple[str, dict[str, Any]]) -> None:
    name, variables = sample
    text = Prompts({}).render(name, locale, variables)
    assert text.strip()
    assert any("\u4e00" <= char <= "\u9fff" for char in text) == (locale == "zh")


def test_seven_templates_ship_each_in_two_languages() -> None:
    names = {"system", "react", "plan", "summary", "error", "compress", "earlier"}
    assert set(shipped_templates()) == {f"{name}{locale}.j2" for name in names for locale in ("", ".zh")}


def test_the_closure_contains_all_reachable_templates() -> None:
    sources = {
        "t.j2": "{% extends 'base.j2' %}{% block b %}{% include 'u.j2' %}{% endblock %}",
        "t.zh.j2": "{% import 'm.j2' as m %}",
        "base.j2": "{% block b %}{% endblock %}",
        "u.j2": "{% include ['gone.j2', 'v.j2'] %}",
        "v.j2": "v",
        "m.j2": "{% macro f() %}{% endmacro %}",
        "other.j2": "{% include 't.j2' %}",
        "broken.j2": "{{",
    }
    prompts = Prompts(sources)
    assert set(prompts.closure(["t.j2"])) == {"t.j2", "t.zh.j2", "base.j2", "u.j2", "v.j2", "m.j2", "gone.j2"}
    assert prompts.closure(["v.j2"]) == {"v.j2": "v"}
    assert prompts.closure(["broken.j2"]) == {"broken.j2": "{{"}
    assert prompts.closure(["nowhere.j2"]) == {"nowhere.j2": ""}


def test_an_edit_compiles_one_of_many_templates() -> None:
    sources = {f"t{index}.j2": f"{{{{ a }}}} {index}" for index in range(600)}
    seconds, prompts, problems = [], Prompts({}), list[Problem]()
    for text in ("{{ a }}", "{{ a", "{{ a }} {{ b }}"):
        start = time.thread_time()
        prompts = Prompts({**sources, "t7.j2": text}, prompts)
        problems += prompts.problems()
        seconds.append(time.thread_time() - start)
    assert [problem.path for problem in problems] == ["prompts/t7.j2"]
    assert [problem.message for problem in prompts.check("t7.j2", ["a"])] == ["'b' is undefined; there are: a"]
    assert prompts.render("t8.j2", "en", {"a": "A"}) == "A 8"
    assert max(seconds[1:]) < seconds[0] / 4


def test_placeholder_objects_accept_any_operation() -> None:
    source = (
        "{{ o.a.b }}{{ o['x'] }}{{ o | tojson }}{{ o.s ~ 'x' }}{{ o.s | upper }}{{ o.list | length }}{{ o.n | int }}"
        "{{ o.n + 1 }}{{ 2 * o.n }}{{ o.n - o.m }}{{ -o.n }}{{ o.n / 2 }}{{ o.n % 3 }}{{ o.n | round }}"
        "{{ '%d' % o.n }}{{ '%.2f' % o.n }}{{ '{:.2f}'.format(o.n) }}"
        "{% if o.n > 3 or o.n <= 2 %}{% endif %}{% for x in o.list %}{{ x.y }}{% endfor %}"
    )
    assert render(source, o=AnyValue())
