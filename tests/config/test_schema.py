"""Editor schemas agree with the loader and contain the names of the project."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from framework import Runtime
from framework.cli.project import refresh_schemas, write_schemas
from framework.config.schema import (
    SCHEMAS,
    ProjectNames,
    agent_schema,
    cases_schema,
    field_docs,
    names_of,
    settings_schema,
    sources_schema,
)
from framework.config.settings import ReloadSettings, Settings
from framework.config.yaml.agent_keys import read_agent_keys
from framework.config.yaml.document import read_document
from framework.config.yaml.parse import ParseError, parse_agent
from framework.types.errors import ConfigError
from framework.types.installation import DATA_FOLDER
from framework.types.spec import (
    AgentSpec,
    ConfirmPolicy,
    ConversationSettings,
    InputSpec,
    ModelSettings,
    PlanSettings,
    Routing,
    RuntimePolicy,
)
from tests.support.cases import cases, each
from tests.support.commands import agentsd
from tests.support.pages import code_blocks
from tests.support.projects import agent, write

NAMES = ProjectNames(
    tools={"read_file": "Read a file.", "echo": "Say it again."},
    agents={"helper": "Helps.", "planner": "Plans."},
    models=["offline", "fast", "openai/"],
    executors=["react", "plan"],
    templates=["a/system.j2"],
)
AGENT, SETTINGS, NAMELESS = agent_schema(NAMES), settings_schema(NAMES), agent_schema(ProjectNames())
CASES, SOURCES = cases_schema(NAMES), sources_schema(NAMES)
GOOD = "version: 1\nname: a\ndescription: Does a.\ninstructions: Do a.\n"


def refuses(schema: dict[str, Any], data: Any) -> bool:
    return not Draft202012Validator(schema).is_valid(data)


def data_of(text: str) -> dict[str, Any]:
    return read_document("agents.d/a.yaml", text.encode()).data


def names_in(root: Path) -> ProjectNames:
    async def main() -> ProjectNames:
        async with Runtime.open(root, watch=False) as runtime:
            return names_of(runtime.catalog)

    return asyncio.run(main())


# --- contents


@pytest.mark.parametrize(
    "schema",
    [
        AGENT,
        SETTINGS,
        CASES,
        SOURCES,
        agent_schema(ProjectNames()),
        cases_schema(ProjectNames()),
        settings_schema(ProjectNames()),
    ],
)
def test_the_schema_is_valid_and_names_its_dialect(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:agentsd:")


@pytest.mark.parametrize("schema", [AGENT, SETTINGS, CASES, SOURCES], ids=["agent", "settings", "cases", "sources"])
def test_every_field_has_a_description(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    for owner, model in {"the file": schema, **definitions}.items():
        for key, node in model["properties"].items():
            behind = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
            assert node.get("description") or behind.get("description"), f"{owner}: {key}"
            assert "title" not in node
        assert "title" not in model
        assert model["additionalProperties"] is False, "an unknown key is a mistake"


def test_inherited_field_docstrings_are_found() -> None:
    docs = field_docs(RuntimePolicy)
    assert docs["max_steps"] == "Maximum number of model turns."
    assert docs["risk_level"].startswith("Highest risk of tools that the agent may use. Tools with a higher risk are")
    assert AGENT["$defs"]["RuntimePolicy"]["properties"]["max_steps"]["description"] == "Maximum number of model turns."


@pytest.mark.parametrize(
    "model",
    [
        ConfirmPolicy,
        ConversationSettings,
        InputSpec,
        ModelSettings,
        PlanSettings,
        Routing,
        RuntimePolicy,
        ReloadSettings,
    ],
    ids=lambda model: model.__name__,
)
def test_schema_defaults_equal_the_models_defaults(model: type[BaseModel]) -> None:
    properties = {**AGENT["$defs"], **SETTINGS["$defs"]}[model.__name__]["properties"]
    own = {info.alias or name for name, info in model.model_fields.items()}
    assert all("default" in node for node in properties.values())
    shown = {key: node["default"] for key, node in properties.items() if key in own}
    assert model.model_validate(shown) == model()


def test_default_durations_are_written_as_strings() -> None:
    assert AGENT["$defs"]["RuntimePolicy"]["properties"]["timeout"]["default"] == "120s"


# --- agreement with the loader


@each(("place", "text"), [block for block in code_blocks("yaml") if "\ninstructions:" in block[1]])
def test_every_documented_agent_is_valid(place: str, text: str) -> None:
    assert not refuses(AGENT, data_of(text))


@pytest.mark.parametrize(("place", "text"), [block for block in code_blocks("yaml") if "\nmodels:" in block[1]])
def test_every_documented_settings_file_is_valid(place: str, text: str) -> None:
    assert not refuses(SETTINGS, data_of(text))


def test_the_starter_project_is_valid(starter: Path) -> None:
    schema = agent_schema(names_in(starter))
    files = [path for path in (starter / "agents.d").glob("*.yaml") if not path.name.endswith(".test.yaml")]
    assert len(files) == 8
    for path in files:
        text = path.read_text("utf-8")
        assert not refuses(schema, data_of(text)), path
        pointer = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
        assert pointer
        assert (path.parent / pointer[1]).resolve() == (starter / DATA_FOLDER / "agent.schema.json").resolve()


def test_starter_and_documented_cases_are_valid(starter: Path) -> None:
    texts = [path.read_text("utf-8") for path in (starter / "agents.d").glob("*.test.yaml")]
    texts += [text for _, text in code_blocks("yaml") if "cases:" in text]
    assert len(texts) > 2
    for text in texts:
        assert not refuses(cases_schema(names_in(starter)), data_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "cases: [{name: a, message: x, expect: {caled: [echo]}}]",
        "cases: [{message: x}]",
        "cases: [{name: a, message: x, model: [{call: 7}]}]",
        "cases: [{name: a, message: x, expect: {status: fine}}]",
    ],
)
def test_invalid_cases_are_rejected(text: str) -> None:
    assert refuses(CASES, data_of(text))


def test_sources_may_contain_variables_and_invalid_ones_are_rejected() -> None:
    good = "version: 1\nmcp_servers: {docs: {command: [x], timeout: '${T:-5s}', env: {TOKEN: '${TOKEN}'}}}\n"
    assert not refuses(SOURCES, data_of(good))
    for bad in (good.replace("command", "comand"), good.replace("version: 1", "version: 2"), good.replace("[x]", "x")):
        assert refuses(SOURCES, data_of(bad))


MISTAKES = [
    "modle: offline\n",
    "model: 7\n",
    "model_settings: {temperature: hot}\n",
    "model_settings: {temperature: 3}\n",
    "model_settings: {top_p: 0}\n",
    "model_settings: {max_tokens: 0}\n",
    "model_settings: {max_tokens: 1.5}\n",
    "model_settings: {reasoning: extreme}\n",
    "model_settings: {stop: END}\n",
    "model_settings: {seed: true}\n",
    "inputs: {a: {type: text}}\n",
    "inputs: {a: {required: 3}}\n",
    "inputs: {a: sting!}\n",
    "inputs: {a: [x]}\n",
    "tools: {deny: [x]}\n",
    "tools: {allow: [], dney: [x]}\n",
    "limits: {max_steps: 3}\n",
    "limits: {steps: 0}\n",
    "max_risk: never\n",
    "approve_from: hihg\n",
    "approve_from: {from: high}\n",
    "plan: {approve: {from: high}}\n",
    "inputs: [a]\n",
    "examples: [{user: hi}]\n",
    "examples: [{user: hi, assistant: ho, asistant: x}]\n",
    "examples: {user: hi, assistant: ho}\n",
    "routing: {priority: high}\n",
    "routing: {priority: 1.5}\n",
    "routing: {keywords: refund}\n",
    "routing: {keyword: [refund]}\n",
    "executor: [plan]\n",
    "skill_policy: {}\n",
    "skill_policy: {deny: [x]}\n",
    "skill_policy: [read_file]\n",
    "skill_policy: {allow: read_file}\n",
    "skill_policy: {allow: ['']}\n",
    f"skill_policy: {{allow: [{'x' * 201}]}}\n",
    "skill_policy: {allow: [5]}\n",
    "skill_policy: {allow: [], deny: ['']}\n",
    "skill_policy: {allow: [], deny: [5]}\n",
    "skill_policy: {allow: [], ask: [{reason: x}]}\n",
    "skill_policy: {allow: [], ask: [{tool: x, reson: y}]}\n",
    "skill_policy: {allow: [], ask: [{tool: x, when: {a: [1]}}]}\n",
    "skill_policy: {allow: [], ask: [{tool: x, when: {a: null}}]}\n",
    "runtime_policy: {max_step: 3}\n",
    "runtime_policy: {max_steps: many}\n",
    "runtime_policy: {max_steps: 0}\n",
    "runtime_policy: {max_steps: 2.5}\n",
    "runtime_policy: {max_steps: true}\n",
    "runtime_policy: {max_parallel_tools: null}\n",
    "runtime_policy: {max_corrections: -1}\n",
    "runtime_policy: {max_observation_chars: 99}\n",
    "runtime_policy: {max_cost_usd: 0}\n",
    "runtime_policy: {timeout: soon}\n",
    "runtime_policy: {timeout: 90 seconds}\n",
    "runtime_policy: {timeout: 0s}\n",
    "runtime_policy: {timeout: '0.0m'}\n",
    "runtime_policy: {timeout: 0}\n",
    "runtime_policy: {timeout: -3}\n",
    "runtime_policy: {timeout: true}\n",
    "runtime_policy: {risk_level: extreme}\n",
    "runtime_policy: {confirm: high}\n",
    "runtime_policy: {confirm: {from: hihg}}\n",
    "runtime_policy: {confirm: {from_: high}}\n",
    "plan: {approval: sometimes}\n",
    "plan: {approval: {form: high}}\n",
    "plan: {approval: {from: never}}\n",
    "plan: {max_parallel: 0}\n",
    "sub_agents: helper\n",
    "sub_agents: [Helper]\n",
    "sub_agents: [helper, 3]\n",
    "conversation: {window: 0}\n",
    "conversation: null\n",
]


@each("text", MISTAKES)
def test_the_schema_rejects_what_the_loader_rejects(text: str) -> None:
    with pytest.raises(ParseError):
        parse_agent("agents.d/a.yaml", (GOOD + text).encode())
    assert refuses(AGENT, data_of(GOOD + text))


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("version: 1", "version: 2"),
        GOOD.replace("version: 1", "version: true"),
        GOOD.replace("version: 1", "version: '1'"),
        GOOD.replace("name: a", "name: Support Agent"),
        GOOD.replace("name: a", f"name: {'a' * 65}"),
        GOOD.replace("Does a.", "''"),
        GOOD.replace("Do a.", "''"),
        GOOD.replace("Do a.", "{template: 3}"),
        GOOD.replace("Do a.", "{vars: {}}"),
        GOOD.replace("Do a.", "{template: x.j2, var: {}}"),
        GOOD.replace("Do a.", "[Do a.]"),
        GOOD.replace("instructions: Do a.\n", ""),
        GOOD + "$schema: x.json\n",
    ],
)
def test_schema_and_loader_reject_invalid_required_keys(text: str) -> None:
    with pytest.raises(ParseError):
        parse_agent("agents.d/a.yaml", text.encode())
    assert refuses(AGENT, data_of(text))


WHOLE = data_of(
    "description: Does a.\ninstructions: {file: a/system.j2, vars: {tone: short}}\n"
    "inputs: {who: string!, how: short, size: 3, why: {type: string, default: x}}\n"
    "tools: {allow: ['*', echo], ask: [{tool: y}], deny: [x, {tool: y, when: {a: 1}}], files: {deny: ['*.env']}}\n"
    "limits: {steps: 3, tokens: null, cost_usd: 0.5, timeout: 90s, prices: known, budgets: [team]}\n"
    "max_risk: low\napprove_from: {risk: never, expires: 15m}\nmode: plan\nagents: [helper]\n"
    "plan: {approve: low, max_plan_steps: 3}\nrouting: [refund]\n"
)
OLDER = data_of(
    GOOD.replace("Do a.", "{template: a/system.j2, vars: {tone: short}}") + "model: fast\n"
    "model_settings: {temperature: 0.2, top_p: 1, max_tokens: 10, stop: [x], seed: 1, tool_choice: x, reasoning: low}\n"
    "inputs: {who: {type: string, required: true, default: x, description: y}}\n"
    "examples: [{user: hi, assistant: ho}]\n"
    "routing: {priority: 1, keywords: [x], patterns: [y], examples: [z]}\n"
    "executor: plan\n"
    "skill_policy: {deny: [x, {tool: y, when: {a: 1, b: '> 2'}, reason: z}], ask: [{tool: y}], allow: ['*', echo]}\n"
    "runtime_policy: {risk_level: low, confirm: {from: never}, max_steps: 3, timeout: 90s, tool_timeout: 3}\n"
    "plan: {approval: {from: low}, max_plan_steps: 3, max_parallel: 1}\n"
    "sub_agents: [helper]\n"
    "conversation: {window: 3}\n"
)


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.sampled_from([0.5, -0.5, 1.5, 2.5]),
    st.sampled_from(
        ["", "x", "3", "1.5", "90s", "0s", "1.5m", "low", "never", "yes", "react", "Aa", "a b", "x.*", "string"]
    ),
    st.sampled_from([[], {}, ["x"], [1], [None], {"from": "high"}, {"tool": "x"}, {"template": "x"}, {"zzz": 1}]),
)


@cases(100)
@given(st.data())
def test_schema_and_loader_accept_the_same_files(draw: st.DataObject) -> None:
    data = deepcopy(draw.draw(st.sampled_from([WHOLE, OLDER])))
    for _ in range(draw.draw(st.integers(1, 2))):
        *above, key = draw.draw(st.sampled_from(sorted(places(data), key=str)))
        holder: Any = data
        for part in above:
            holder = holder[part]
        match draw.draw(st.sampled_from(["change", "change", "remove", "add"])):
            case "change":
                holder[key] = deepcopy(draw.draw(VALUES))
            case "remove":
                del holder[key]
            case _ if isinstance(holder, dict):
                holder["unheard_of"] = 1
    assert_agreement(data)


def assert_agreement(data: dict[str, Any]) -> None:
    """Check that schema and loader agree, except that the loader also accepts words for true and false."""
    refused = refuses(NAMELESS, data)
    try:
        document = read_document("agents.d/a.yaml", json.dumps(data).encode())
        parse_agent(document.path, document.source)
    except ParseError:
        assert refused, data
        return
    if refused:
        with pytest.raises(ValidationError, match="boolean"):
            AgentSpec.model_validate_json(json.dumps(read_agent_keys(document).document.data), strict=True)


@pytest.mark.parametrize(
    "text",
    [
        "modle: x\n",
        "models: {fast: {}}\n",
        "models: {fast: {model: x, base: y}}\n",
        "models: fast\n",
        "models: {fast: 5}\n",
        "routing: {default_agent: Helper}\n",
        "routing: {default_agent: 3}\n",
        "reload: {quiet: soon}\n",
        "reload: {mode: lax}\n",
        "reload: {quiet: 0}\n",
        "version: 2\n",
        "locale: 5\n",
    ],
)
def test_schema_and_loader_reject_invalid_settings(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"agentsd.yaml": text})
    with pytest.raises(ConfigError):
        Settings.load(tmp_path)
    assert refuses(SETTINGS, data_of(text))


@pytest.mark.parametrize(
    "text",
    [
        'models: {fast: {model: "${M}", base_url: "${U:-http://h}", api_key: "${K}"}}\n',
        'models: {fast: openai/x, good: "${M}"}\n',
        'routing: {default_agent: "${A}"}\n',
        'reload: {quiet: "${Q:-1s}", mode: "${NOT_SET:-strict}"}\n',
        "reload: {quiet: 250ms}\nlocale: zh\nrouting: {default_agent: null}\n",
    ],
)
def test_settings_may_contain_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for name, value in {"M": "openai/x", "U": "http://h", "K": "k", "A": "helper", "Q": "2s"}.items():
        monkeypatch.setenv(name, value)
    write(tmp_path, {"agentsd.yaml": text})
    Settings.load(tmp_path)
    assert not refuses(SETTINGS, data_of(text))


# --- the names of the project


def test_names_are_suggested_and_other_names_remain_valid() -> None:
    allow = AGENT["$defs"]["SkillPolicy"]["properties"]["allow"]["items"]
    assert allow["anyOf"][0]["enum"] == ["echo", "read_file"]
    assert allow["anyOf"][0]["enumDescriptions"] == ["Say it again.", "Read a file."]
    for more in (
        "skill_policy: {allow: ['orders.*', not_there], deny: ['agent.*']}\n",
        "sub_agents: [not-there]\n",
        "model: openai/not-there\n",
    ):
        assert not refuses(AGENT, data_of(GOOD + more))
    assert not refuses(AGENT, data_of(GOOD.replace("Do a.", "{template: not/there.j2}")))


def test_an_unknown_executor_is_rejected() -> None:
    assert not refuses(AGENT, data_of(GOOD + "executor: plan\n"))
    assert refuses(AGENT, data_of(GOOD + "executor: plann\n"))


def test_suggestions_include_the_projects_names(starter: Path) -> None:
    names = names_in(starter)
    assert {"read_file", "dates.now"} <= names.tools.keys()
    assert names.agents["planner"] == "Plans a task of several steps, then executes the plan."
    assert {"offline", "openai/", "ollama/"} <= set(names.models)
    assert set(names.executors) == {"react", "plan", "auto", "code"}
    assert "repo-analysis/system.j2" in names.templates


# --- files


def test_schemas_are_written_only_when_they_change(tmp_path: Path) -> None:
    files = [tmp_path / DATA_FOLDER / f"{kind}.schema.json" for kind in SCHEMAS]
    assert write_schemas(tmp_path, NAMES) == files
    before = [path.stat().st_mtime_ns for path in files]
    assert write_schemas(tmp_path, NAMES) == []
    assert [path.stat().st_mtime_ns for path in files] == before
    more = ProjectNames(tools={**NAMES.tools, "new": ""}, agents=NAMES.agents, models=NAMES.models)
    assert write_schemas(tmp_path, more) == files[:2]
    assert sorted((tmp_path / DATA_FOLDER).iterdir()) == sorted([*files, tmp_path / DATA_FOLDER / "schemas.digest"])


def test_a_schema_that_was_changed_or_deleted_is_written_again(tmp_path: Path) -> None:
    first, second, *_ = write_schemas(tmp_path, NAMES)
    first.write_text("{}", "utf-8")
    second.unlink()
    assert write_schemas(tmp_path, NAMES) == [first, second]
    assert json.loads(first.read_text("utf-8"))["properties"]


def refresh(root: Path) -> None:
    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            refresh_schemas(runtime)

    asyncio.run(main())


def test_an_unwritable_folder_is_not_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), DATA_FOLDER: "a file is in the way"})
    refresh(tmp_path)
    assert (tmp_path / DATA_FOLDER).read_text() == "a file is in the way"


def test_schemas_are_written_only_into_project_folders(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": agent("one", model="offline")})
    refresh(tmp_path / "one.yaml")
    refresh(tmp_path)
    assert not (tmp_path / DATA_FOLDER).exists()


@pytest.mark.parametrize("command", [("check",), ("run", "echo hello"), ("schema", "--write")], ids=lambda c: c[0])
def test_commands_write_schemas_with_the_projects_names(tmp_path: Path, command: tuple[str, ...]) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    done = agentsd(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert DATA_FOLDER not in done.stderr
    schema = json.loads((tmp_path / DATA_FOLDER / "agent.schema.json").read_text("utf-8"))
    assert schema["properties"]["sub_agents"]["items"]["anyOf"][0]["enum"] == ["one"]
    Draft202012Validator.check_schema(json.loads((tmp_path / DATA_FOLDER / "settings.schema.json").read_text("utf-8")))


def test_schema_prints_what_it_would_write(starter: Path) -> None:
    for kind in ("agent", "cases", "settings", "sources"):
        done = agentsd("schema", "--kind", kind, cwd=starter)
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        Draft202012Validator.check_schema(printed)
        assert printed["$id"] == f"urn:agentsd:{kind}"
    assert not (starter / DATA_FOLDER).exists()


def test_schema_reports_written_files_and_failures(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    assert "wrote .agentsd/agent.schema.json\n" in agentsd("schema", "--write", cwd=tmp_path).stdout
    assert agentsd("schema", "--write", cwd=tmp_path).stdout == "all schemas are up to date\n"
    write(tmp_path, {"other/two.yaml": agent("two", model="offline"), "other/.agentsd": "in the way"})
    single = agentsd("schema", "other/two.yaml", "--write", cwd=tmp_path)
    assert (single.returncode, single.stdout) == (2, "")
    assert "other/two.yaml is a single file" in single.stderr
    blocked = agentsd("schema", "other", "--write", cwd=tmp_path)
    assert blocked.returncode == 2
    assert ".agentsd cannot be written" in blocked.stderr
