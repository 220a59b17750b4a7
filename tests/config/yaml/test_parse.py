"""All errors of an agent file are reported with positions and suggestions."""

from __future__ import annotations

import pytest

from framework.config.settings import Settings
from framework.config.yaml.agent_keys import TOP_LEVEL
from framework.config.yaml.document import apply_fixes
from framework.config.yaml.parse import MAX_FILE_PROBLEMS, SETTINGS_KEYS, ParseError, parse_agent
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, ApprovalFrom, Rule, TemplateRef
from tests.support.cases import each

GOOD = "version: 1\nname: a\ndescription: Does a.\ninstructions: Do a.\n"


def spec(more: str = "", base: str = GOOD) -> AgentSpec:
    return parse_agent("agents.d/a.yaml", (base + more).encode())[0]


def problems(more: str, base: str = GOOD) -> tuple[Problem, ...]:
    with pytest.raises(ParseError) as caught:
        spec(more, base)
    return caught.value.problems


def found(more: str, base: str = GOOD) -> list[tuple[int | None, int | None, str, str | None]]:
    return [(p.line, p.column, p.message, p.hint) for p in problems(more, base)]


WITHOUT_INSTRUCTIONS = "version: 1\nname: a\ndescription: Does a.\n"


def test_omitted_keys_have_safe_defaults() -> None:
    plain = spec()
    assert plain.skill_policy.allow == ()
    assert (plain.runtime_policy.risk_level, plain.runtime_policy.confirm.from_) == ("medium", "high")
    assert (plain.runtime_policy.max_steps, plain.runtime_policy.timeout) == (10, 120.0)
    assert plain.plan.approval == ApprovalFrom(**{"from": "high"})


def test_every_key_of_a_typical_file_is_read() -> None:
    read = spec(
        "executor: plan\n"
        "skill_policy: {deny: ['x.*'], ask: [{tool: y, when: {amount: '> 50'}, reason: money}], allow: ['*']}\n"
        "runtime_policy: {timeout: 90s, model_timeout: 1.5m, tool_timeout: 250ms, max_total_tokens: null}\n"
        "plan: {approval: always}\n"
        "inputs: {customer: {type: string, required: true}}\n"
        "instructions: {template: s.j2, vars: {tone: short}}\n",
        WITHOUT_INSTRUCTIONS,
    )
    assert read.instructions == TemplateRef(template="s.j2", vars={"tone": "short"})
    assert read.skill_policy.deny == (Rule(tool="x.*"),)
    assert read.skill_policy.ask == (Rule(tool="y", when={"amount": "> 50"}, reason="money"),)
    limits = read.runtime_policy
    assert (limits.timeout, limits.model_timeout, limits.tool_timeout, limits.max_total_tokens) == (90, 90, 0.25, None)
    assert read.plan.approval == "always"


@pytest.mark.parametrize(
    ("more", "column", "key", "hint"),
    [
        ("modle: x\n", 1, "modle", "did you mean 'model'?"),
        ("runtime_policy: {max_step: 3}\n", 18, "max_step", "did you mean 'max_steps'?"),
        ("runtime_policy: {confirm: {form: low}}\n", 28, "form", "did you mean 'from'?"),
        ("skill_policy: {allow: [], deny: [{tool: x, reson: y}]}\n", 44, "reson", "did you mean 'reason'?"),
        ("inputs: {order: {typ: string}}\n", 18, "typ", "did you mean 'type'?"),
        (
            "examples: [{user: a, assistant: b}, {user: a, assistant: b, asistant: c}]\n",
            61,
            "asistant",
            "did you mean 'assistant'?",
        ),
        ("routing: {zzz: 1}\n", 11, "zzz", "valid keys: priority, keywords, patterns, examples"),
    ],
)
def test_an_unknown_key_is_reported_with_a_suggestion(more: str, column: int, key: str, hint: str) -> None:
    assert found(more) == [(5, column, f"unknown key {key!r}", hint)]


@pytest.mark.parametrize(
    ("more", "column", "key", "hint"),
    [
        ("instructions: {template: x, var: {}}\n", 29, "var", "did you mean 'vars'?"),
        ("instructions: {template: x, vars: {}, templat: y}\n", 39, "templat", "did you mean 'template'?"),
    ],
)
def test_an_unknown_key_is_reported_next_to_a_key_named_like_a_union_label(
    more: str, column: int, key: str, hint: str
) -> None:
    assert found(more, WITHOUT_INSTRUCTIONS) == [(4, column, f"unknown key {key!r}", hint)]


def test_an_unknown_key_inside_a_union_is_reported() -> None:
    assert found("plan: {approval: {from: low, form: low}}\n") == [
        (5, 30, "unknown key 'form'", "did you mean 'from'?"),
    ]


def test_a_missing_key_is_reported_at_its_parent() -> None:
    assert found("examples:\n  - user: x\n") == [(6, 5, "the key 'assistant' is missing", None)]
    assert found("", "name: a\ninstructions: {vars: {}}\n") == [
        (1, 1, "the key 'description' is missing", None),
        (2, 1, "the key 'file' is missing", None),
    ]


def test_a_policy_without_allow_gets_the_fix() -> None:
    fix = 'list the allowed tools, or write `allow: ["*"]` to allow all'
    assert found("skill_policy: {deny: [x]}\n") == [(5, 1, "the key 'allow' is missing", fix)]


@pytest.mark.parametrize(
    ("more", "column", "message", "hint"),
    [
        ("runtime_policy: {risk_level: hihg}\n", 30, "must be 'low', 'medium', 'high' or 'critical'", "high"),
        ("plan: {approval: alwais}\n", 18, "must be 'never' or 'always'", "always"),
        (
            "inputs: {n: {type: int}}\n",
            20,
            "must be 'string', 'integer', 'number', 'boolean', 'array' or 'object'",
            "integer",
        ),
        ("runtime_policy: {risk_level: zzz}\n", 30, "must be 'low', 'medium', 'high' or 'critical'", None),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(
    more: str, column: int, message: str, hint: str | None
) -> None:
    assert found(more) == [(5, column, message, f"did you mean {hint!r}?" if hint else None)]


def test_another_version_of_the_format_is_rejected() -> None:
    assert found("", GOOD.replace("version: 1", "version: 2")) == [
        (1, 10, "unsupported version 2 of this file format; supported: 1", None)
    ]


@pytest.mark.parametrize(
    ("more", "column", "message"),
    [
        ("model: 3\n", 8, "must be text"),
        ("runtime_policy: {max_steps: many}\n", 29, "must be a whole number"),
        ("runtime_policy: {max_steps: 1.5}\n", 29, "must be a whole number"),
        ("runtime_policy: {max_steps: 0}\n", 29, "must be greater than 0"),
        ("model_settings: {temperature: hot}\n", 31, "must be a number"),
        ("inputs: {n: {required: maybe}}\n", 24, "must be true or false"),
        ("sub_agents: helper\n", 13, "must be a list"),
        ("skill_policy: [a]\n", 15, "must be a mapping of keys"),
        ("runtime_policy: ~\n", 17, "must be a mapping of keys"),
        ("inputs: [a]\n", 9, "must be a mapping of keys"),
        ("skill_policy: {allow: [], deny: [3]}\n", 34, "must be a mapping of keys"),
        ("limits: {steps: }\n", 17, "the key 'steps' has no value"),
        ("tools: {allow: [], files: {deny: [/private/]}}\n", 35, "the pattern is absolute: write it relative"),
        ("tools: {allow: [], files: {deny: ['private/ ']}}\n", 35, "the pattern matches no file: remove the blanks"),
        ("tools: {allow: [], files: {deny: ['{a,b}/']}}\n", 35, "the pattern matches no file: braces are not"),
        ("plan: {approval: [x]}\n", 18, "must be a mapping of keys"),
        (
            "routing: {patterns: [ok, '(']}\n",
            26,
            "not a linear-time regular expression: unclosed group",
        ),
        ("name: A b\n", 7, "must start with a-z, followed by at most 63 characters of a-z0-9_-"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported(more: str, column: int, message: str) -> None:
    base = GOOD.replace("name: a\n", "") if more.startswith("name") else GOOD
    ((line, at, said, _),) = found(more, base)
    assert (line, at) == (base.count("\n") + 1, column)
    assert said.startswith(message)


def test_a_union_reports_one_error() -> None:
    assert found("skill_policy: {allow: [x], ask: [{tool: x, when: {amount: [1]}}]}\n") == [
        (5, 59, "must be text or a whole number or a number or true or false", None)
    ]


@pytest.mark.parametrize("value", ["90", "9 x", "-1s", "1s 2s", "forever", ""])
def test_an_invalid_duration_is_reported_with_the_format(value: str) -> None:
    ((_, column, message, _),) = found(f"runtime_policy: {{timeout: '{value}'}}\n")
    assert (column, message) == (27, "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d")


@pytest.mark.parametrize("value", ["0s", "0", "-3"])
def test_zero_is_not_a_duration(value: str) -> None:
    ((_, column, message, _),) = found(f"runtime_policy: {{timeout: {value}}}\n")
    assert column == 27
    assert message in {"must be greater than 0", "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d"}


def test_a_file_that_is_not_yaml_is_one_problem() -> None:
    assert found("a: [\n") == [(5, 4, "this `[` is not closed", "add `]`, or a comma between two items of it")]


@each(
    ("more", "column", "hint"),
    [
        ("runtime_policy: {budgets: [x]}\n", 18, "it belongs in limits: {budgets: …}"),
        ("runtime_policy: {max_tokens: 30}\n", 18, "it belongs in model_settings: {max_tokens: …}"),
        ("max_steps: 3\n", 1, "it belongs in limits: {steps: …}"),
        ("confirm: high\n", 1, "write it as approve_from: …"),
        ("temperature: 0.3\n", 1, "it belongs in model_settings: {temperature: …}"),
        ("allowed_tools: [calculator]\n", 1, "write it as tools: …"),
        ("risk_level: low\n", 1, "write it as max_risk: …"),
        ("tool: [calculator]\n", 1, "did you mean 'tools'?"),
        ("limit: {steps: 3}\n", 1, "did you mean 'limits'?"),
        ("aproval_from: high\n", 1, "did you mean 'approve_from'?"),
        ("limits: {stepz: 3}\n", 10, "did you mean 'steps'?"),
        ("limits: {max_steps: 3}\n", 10, "write it as steps"),
        ("limits: {max_risk: low}\n", 10, "it belongs at the top level of the file, not in limits"),
        ("limits: {risk_level: low}\n", 10, "write it as max_risk, at the top level of the file"),
        ("tools: {allow: [], dney: [x]}\n", 20, "did you mean 'deny'?"),
        ("approve_from: {from: high}\n", 16, "write it as risk"),
        ("mcp_servers: {}\n", 1, "it belongs in a file plugins/NAME.yaml"),
        ("server: {port: 1}\n", 1, "it belongs in agentsd.yaml"),
        ("model_settings: {max_steps: 3}\n", 18, "it belongs in limits: {steps: …}"),
        ("plan: {max_steps: 3}\n", 8, "it belongs in limits: {steps: …}"),
        ("runtime_polcy: {}\n", 1, "did you mean 'runtime_policy'?"),
    ],
)
def test_a_key_at_the_wrong_level_says_where_it_belongs(more: str, column: int, hint: str) -> None:
    ((_, at, message, said),) = found(more)
    assert (at, said) == (column, hint)
    assert message.startswith("unknown key")


def test_the_keys_of_the_settings_are_known_to_agent_files() -> None:
    assert Settings.model_fields.keys() - AgentSpec.model_fields.keys() - TOP_LEVEL.keys() == SETTINGS_KEYS


@pytest.mark.parametrize(
    ("more", "message", "hint", "fixed"),
    [
        ("runtime_policy: {confirm: high}\n", "{from: RISK}", "confirm: {from: high}", "{confirm: {from: high}}"),
        ("runtime_policy: {confirm: 'low'}\n", "{from: RISK}", "confirm: {from: low}", "{confirm: {from: low}}"),
        ("runtime_policy: {confirm: hihg}\n", "{from: RISK}", "confirm: {from: high}", "{confirm: hihg}"),
        ("plan: {approval: low}\n", "'never' or 'always' or {from: RISK}", "approval: {from: low}", "{from: low}"),
    ],
)
def test_a_risk_in_place_of_its_form_is_one_error_with_the_form(more: str, message: str, hint: str, fixed: str) -> None:
    text = GOOD + more
    with pytest.raises(ParseError) as caught:
        parse_agent("a.yaml", text.encode())
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint) == (f"must be {message}", f"write {hint}")
    assert fixed in apply_fixes("a.yaml", text.encode(), [problem]).decode()


BAD = """\
version: 2
nmae: support
description: ""
instructions:
  template: 7
  vasr: {tone: short}
inputs:
  order: {type: strin, requird: true}
examples:
  - user: hello
routing: {priority: first, patterns: ["("]}
skill_policy:
  deny: [orders.delete]
runtime_policy: {timeout: 2 parsecs, max_steps: -1}
colour: red
"""
PRINTED = """\
agents.d/bad.yaml:1:10: unsupported version 2 of this file format; supported: 1
    1 | version: 2
      |          ^
agents.d/bad.yaml:2:1: unknown key 'nmae'
    2 | nmae: support
      | ^
      = did you mean 'name'?
agents.d/bad.yaml:3:14: string should have at least 1 character
    3 | description: ""
      |              ^
agents.d/bad.yaml:5:13: must be text
    5 |   template: 7
      |             ^
agents.d/bad.yaml:6:3: unknown key 'vasr'
    6 |   vasr: {tone: short}
      |   ^
      = did you mean 'vars'?
agents.d/bad.yaml:8:17: must be 'string', 'integer', 'number', 'boolean', 'array' or 'object'
    8 |   order: {type: strin, requird: true}
      |                 ^
      = did you mean 'string'?
agents.d/bad.yaml:8:24: unknown key 'requird'
    8 |   order: {type: strin, requird: true}
      |                        ^
      = did you mean 'required'?
agents.d/bad.yaml:10:5: the key 'assistant' is missing
   10 |   - user: hello
      |     ^
agents.d/bad.yaml:11:21: must be a whole number
   11 | routing: {priority: first, patterns: ["("]}
      |                     ^
agents.d/bad.yaml:11:39: not a linear-time regular expression: unclosed group
   11 | routing: {priority: first, patterns: ["("]}
      |                                       ^
agents.d/bad.yaml:12:1: the key 'allow' is missing
   12 | skill_policy:
      | ^
      = list the allowed tools, or write `allow: ["*"]` to allow all
agents.d/bad.yaml:14:27: invalid duration: write it as 500ms, 90s, 15m, 24h or 30d
   14 | runtime_policy: {timeout: 2 parsecs, max_steps: -1}
      |                           ^
agents.d/bad.yaml:14:49: must be greater than 0
   14 | runtime_policy: {timeout: 2 parsecs, max_steps: -1}
      |                                                 ^
agents.d/bad.yaml:15:1: unknown key 'colour'
   15 | colour: red
      | ^
      = valid keys: version, name, description, model, fallback_models, model_settings, on_truncation, protocol, \
instructions, guidance, inputs, examples, routing, skills, plan, handoffs, conversation, output_schema, memory, hooks, \
telemetry, tools, max_risk, approve_from, strict_arguments, limits, agents, mode, mcp"""


def test_all_errors_of_a_file_are_printed_in_order() -> None:
    with pytest.raises(ParseError) as caught:
        parse_agent("agents.d/bad.yaml", BAD.encode())
    assert str(caught.value) == PRINTED


@pytest.mark.parametrize(
    "more",
    [
        "model: [sk-hidden]\n",
        "runtime_policy: {max_steps: sk-hidden}\n",
        "runtime_policy: {timeout: sk-hidden}\n",
        "runtime_policy: {risk_level: sk-hidden}\n",
        "inputs: {n: {required: sk-hidden}}\n",
        "sub_agents: [SK-hidden]\n",
        "skill_policy: sk-hidden\n",
    ],
)
def test_a_message_does_not_repeat_the_value(more: str) -> None:
    for problem in problems(more):
        assert "hidden" not in problem.message + (problem.hint or "")


def test_the_first_of_many_errors_are_shown_and_the_rest_counted() -> None:
    many = problems("".join(f"unknown_{number}: 1\n" for number in range(20_000)))
    assert len(many) == MAX_FILE_PROBLEMS + 1
    assert many[-1].message == f"and {20_000 - MAX_FILE_PROBLEMS} more problems"


def test_a_long_key_is_shortened() -> None:
    (only,) = problems("x" * 900 + ": 1\n")
    assert len(only.message) < 100


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("version: true", "expected 1"),
        ("runtime_policy: {max_steps: true}", "must be a whole number"),
        ("runtime_policy: {timeout: true}", "invalid duration"),
        ("runtime_policy: {confirm: {from_: low}}", "unknown key 'from_'"),
        ("routing: {priority: yes}", "must be a whole number"),
    ],
)
def test_similar_values_of_the_wrong_type_are_rejected(line: str, message: str) -> None:
    version = "" if line.startswith("version") else "version: 1\n"
    text = f"{version}name: a\ndescription: d\ninstructions: i\n{line}\n"
    with pytest.raises(ParseError) as refused:
        parse_agent("agents.d/a.yaml", text.encode())
    assert any(message in problem.message for problem in refused.value.problems), str(refused.value)
