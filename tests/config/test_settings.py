"""`agentsd.yaml` and the environment: precedence, errors with positions, and masked secrets."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.api_keys import ApiKey, key_digest
from framework.config.generations.reload_effects import leaves
from framework.config.overlay import SettingsSource
from framework.config.settings import ENV_PREFIX, Settings, unset_key_problems, variable_name
from framework.engine.runtime.project import Project
from framework.server.routes import runtime_access_check
from framework.types.errors import ConfigError
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write

SECRET = "sk-5eCr3t"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def load(root: Path, text: str | None = None) -> Settings:
    if text is not None:
        (root / "agentsd.yaml").write_text(text)
    return Settings.load(root)


def refused(root: Path, text: str | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(root, text)
    return caught.value


def only(error: ConfigError) -> Problem:
    (problem,) = error.problems
    return problem


def test_defaults_apply_without_a_file_and_variables(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert (settings.model, settings.locale, settings.reload.quiet) == ("offline", "en", 0.1)
    assert (settings.models, settings.routing.default_agent, settings.tools.base_path) == ({}, None, ".")


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "version: 1\nmodel: fast\nlocale: zh\nmodels: {fast: {model: openai/x, base_url: 'http://h/v1'}}\n"
        "routing: {default_agent: helper}\ntools: {base_path: data}\nreload: {quiet: 250ms}\n",
    )
    assert (settings.model, settings.locale, settings.models["fast"].base_url) == ("fast", "zh", "http://h/v1")
    assert (settings.routing.default_agent, settings.tools.base_path) == ("helper", "data")
    assert settings.reload.quiet == 0.25


@given(st.dictionaries(st.sampled_from(["fast", "smart"]), st.sampled_from(["offline", "openai/x", "${M:-openai/y}"])))
@cases(40)
def test_a_model_may_be_only_its_name(models: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        root, whole = Path(folder), {name: {"model": model} for name, model in models.items()}
        read = [load(root, json.dumps({"models": given})) for given in (models, whole)]
    assert read[0] == read[1]


def test_a_model_that_is_only_its_name_keeps_its_place_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "models:\n  fast: openai/x\n  good: ${NOT_SET}\n"
    assert str(only(refused(tmp_path, text))).startswith("agentsd.yaml:3:9: ")
    assert only(refused(tmp_path, "models: {fast: openai/x, bad: [x]}\n")).line == 1
    monkeypatch.setenv("AGENTSD_MODELS__FAST__BASE_URL", "http://h/v1")
    (tmp_path / "agentsd.staging.yaml").write_text("models: {fast: {api: chat}, good: openai/z}\n")
    monkeypatch.setenv("AGENTSD_ENV", "staging")
    models = load(tmp_path, text).models
    assert (models["fast"].model, models["fast"].api, models["fast"].base_url) == ("openai/x", "chat", "http://h/v1")
    assert models["good"].model == "openai/z"


def test_the_environment_overrides_single_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSD_MODEL", "openai/y")
    monkeypatch.setenv("AGENTSD_RELOAD__QUIET", "2s")
    monkeypatch.setenv("AGENTSD_MODELS__FAST__BASE_URL", "http://other/v1")
    monkeypatch.setenv("AGENTSD_MODELS__SLOW__MODEL", "openai/z")
    text = "model: x\nlocale: zh\nmodels: {fast: {model: openai/x, base_url: 'http://h/v1'}}\nreload: {quiet: 1s}\n"
    settings = load(tmp_path, text)
    assert (settings.model, settings.locale, settings.reload.quiet) == ("openai/y", "zh", 2.0)
    fast = settings.models["fast"]
    assert (fast.model, fast.base_url) == ("openai/x", "http://other/v1")
    assert settings.models["slow"].model == "openai/z"


@pytest.mark.parametrize("name", ["AGENTSD_MODEL", "agentsd_model", "Agentsd_Model"])
def test_the_case_of_a_variable_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "openai/y")
    assert load(tmp_path, "model: x\n").model == "openai/y"


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ("modle: x\n", "agentsd.yaml:1:1", "unknown key 'modle'", "did you mean 'model'?"),
        (
            "model: x\nrouting: {defalt_agent: x}\n",
            "agentsd.yaml:2:11",
            "unknown key 'defalt_agent'",
            "'default_agent'",
        ),
        ("models: {fast: {model: x, base: y}}\n", "agentsd.yaml:1:27", "unknown key 'base'", "'base_url'"),
        ("reload: {quiet: soon}\n", "agentsd.yaml:1:17", "invalid duration", ""),
        ("routing: helper\n", "agentsd.yaml:1:10", "must be a mapping of keys", ""),
        ("models: {fast: {}}\n", "agentsd.yaml:1:10", "the key 'model' is missing", ""),
        ("version: 2\n", "agentsd.yaml:1:10", "unsupported version 2 of this file format; supported: 1", ""),
        ("- model\n", "agentsd.yaml:1:1", "expected a mapping of keys", ""),
        ("model: x\nmodel: y\n", "agentsd.yaml:2:1", "duplicate key 'model'", ""),
        ("tools:\n  write_below:  # all\n", "agentsd.yaml:2:15", "the key 'write_below' has no value", "or null"),
        ("_env_file: .env\n", "agentsd.yaml:1:1", "unknown key '_env_file'", ""),
        ("_cli_parse_args: true\n", "agentsd.yaml:1:1", "unknown key '_cli_parse_args'", ""),
    ],
)
def test_file_errors_have_positions(tmp_path: Path, text: str, place: str, message: str, hint: str) -> None:
    error = refused(tmp_path, text)
    problem = only(error)
    assert error.message == "agentsd.yaml is invalid"
    assert problem.place == place
    assert problem.message.startswith(message)
    assert hint in (problem.hint or "")


def test_all_errors_are_reported_in_order(tmp_path: Path) -> None:
    error = refused(tmp_path, "routing: {x: 1}\n_a: 1\nreload: {quiet: soon}\nmodle: x\n")
    assert [problem.line for problem in error.problems] == [1, 2, 3, 4]


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "agentsd.yaml").write_bytes(b"model: caf\xe9\n")
    assert only(refused(tmp_path)).place == "agentsd.yaml:1:11"


def test_settings_under_another_ending_are_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "agentsd.yml").write_text("server: {api_keys: [a-key-of-sixteen-characters]}\n")
    with pytest.raises(ConfigError, match=r"agentsd\.yml is not read: rename it"):
        Settings.load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_reported(tmp_path: Path) -> None:
    (tmp_path / "agentsd.yaml").write_text("model: x\n")
    (tmp_path / "agentsd.yaml").chmod(0)
    assert refused(tmp_path).message == "agentsd.yaml cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("name", "value", "path", "message"),
    [
        ("AGENTSD_MODLE", "x", "AGENTSD_MODLE", "unknown setting; did you mean AGENTSD_MODEL"),
        ("AGENTSD_TOPIC__X", "x", "AGENTSD_TOPIC__X", "unknown setting"),
        ("AGENTSD_ROUTING__DEFALT_AGENT", "x", "AGENTSD_ROUTING__DEFALT_AGENT", "unknown key 'defalt_agent'"),
        ("AGENTSD_RELOAD__QUIET", "soon", "AGENTSD_RELOAD__QUIET", "invalid duration"),
        ("AGENTSD_MODELS", '{"fast": 5}', "AGENTSD_MODELS", "must be a mapping of keys"),
        ("AGENTSD_MODELS__FAST__BASE_URL", "http://x", "AGENTSD_MODELS__FAST__MODEL", "the key 'model' is missing"),
    ],
)
@pytest.mark.parametrize("text", [None, "model: x\nreload: {quiet: 1s}\n"], ids=["no file", "a file"])
def test_environment_errors_name_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, path: str, message: str, text: str | None
) -> None:
    monkeypatch.setenv(name, value)
    error = refused(tmp_path, text)
    assert error.message == "invalid environment variable"
    assert only(error).path == path
    assert only(error).message.startswith(message)


def test_the_hint_for_an_unknown_variable_lists_the_sections_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSD_ROUTING__DEFALT_AGENT", "x")
    assert only(refused(tmp_path)).hint == "did you mean 'default_agent'?"


SERVICE_LINKS = {
    "AGENTSD_SERVICE_HOST": "10.0.0.1",
    "AGENTSD_SERVICE_PORT": "80",
    "AGENTSD_SERVICE_PORT_HTTP": "80",
    "AGENTSD_PORT": "tcp://10.0.0.1:80",
    "AGENTSD_PORT_80_TCP": "tcp://10.0.0.1:80",
    "AGENTSD_PORT_80_TCP_PROTO": "tcp",
    "AGENTSD_PORT_80_TCP_PORT": "80",
    "AGENTSD_PORT_80_TCP_ADDR": "fd00::1",
    "AGENTSD_SERVER_SERVICE_HOST": "10.0.0.2",
    "AGENTSD_SERVER_PORT": "udp://10.0.0.2:53",
}
"""Variables that Kubernetes adds to pods for Services named `agentsd` and `agentsd-server`."""


@pytest.mark.parametrize("name", SERVICE_LINKS)
def test_service_links_of_kubernetes_are_ignored_with_a_debug_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, SERVICE_LINKS[name])
    with caplog.at_level("DEBUG", "framework.config"):
        assert load(tmp_path) == Settings()
    assert [(line.levelname, line.message.split()[0]) for line in caplog.records] == [("DEBUG", name)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AGENTSD_SERVER_PORT", "8080"),
        ("AGENTSD_PORT", "8321"),
        ("AGENTSD_SERVICE_HOST", "localhost"),
        ("AGENTSD_SERVICE", "x"),
    ],
)
def test_a_mistyped_setting_is_no_service_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert only(refused(tmp_path)).path == name


def test_variables_without_the_prefix_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_MODEL", "x")
    monkeypatch.setenv("MODEL", "x")
    assert load(tmp_path).model == "offline"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${SOME_NAME}", "text"),
        ("a ${SOME_NAME} b ${SOME_NAME}", "a text b text"),
        ("${SOME_NAME:-other}", "text"),
        ("${NOT_SET:-other}", "other"),
        ("${NOT_SET:-}", ""),
        ("${SET_TO_NOTHING:-other}", "other"),
        ("${SET_TO_NOTHING}x", "x"),
        ("$${SOME_NAME}", "${SOME_NAME}"),
        ("$$", "$"),
        ("$SOME_NAME", "$SOME_NAME"),
        ("cost: 5$", "cost: 5$"),
        ("${NEWLINES}", "x\nversion: 7\nmodel: {injected: 1}"),
        ("${NESTED}", "${SOME_NAME}"),
    ],
)
def test_variables_are_substituted_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, value: str
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("SOME_NAME", "text")
    monkeypatch.setenv("SET_TO_NOTHING", "")
    monkeypatch.setenv("NEWLINES", "x\nversion: 7\nmodel: {injected: 1}")
    monkeypatch.setenv("NESTED", "${SOME_NAME}")
    assert load(tmp_path, f"telemetry: {{service_name: '{written}'}}\n").telemetry.service_name == value


def test_an_invalid_base_url_is_reported_at_its_position(tmp_path: Path) -> None:
    problem = only(refused(tmp_path, "models:\n  local: {model: openai/m, base_url: 'localhost:8080/v1'}\n"))
    assert (problem.line, problem.column) == (2, 38)
    assert problem.message.endswith("it does not start with http:// or https://")


@pytest.mark.parametrize("choice", ["api: responses", "capabilities: {api: chat}"])
@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_a_choice_of_apis_is_rejected_for_a_provider_with_only_one(tmp_path: Path, provider: str, choice: str) -> None:
    problem = only(refused(tmp_path, f"models:\n  mine:\n    model: {provider}/m\n    {choice}\n"))
    assert problem.line == 4
    assert problem.message == f"{provider} has only one API: remove `api`, a choice of OpenAI's APIs"


def test_an_unknown_api_is_reported_with_the_valid_ones(tmp_path: Path) -> None:
    problem = only(refused(tmp_path, "models: {mine: {model: openai/m, api: completions}}\n"))
    assert problem.place == "agentsd.yaml:1:39"
    assert "'chat' or 'responses'" in problem.message


PROBLEMS = [
    (
        "model: locl\nmodels: {local: {model: openai/m}}\n",
        "agentsd.yaml:1:8: unknown model 'locl'; did you mean local?",
    ),
    ("routing: {model: opnai/m}\n", "agentsd.yaml:1:18: unknown model 'opnai/m'; did you mean openai?"),
    ("models: {a: {model: openai/m}, b: {model: a}}\n", "agentsd.yaml:1:43: unknown model 'a'; there are: anthropic,"),
    (
        "model: openai\n",
        "agentsd.yaml:1:8: unknown model 'openai': openai is a provider; add the name of one of its",
    ),
    ("model: '${M:-opnai/m}'\n", "agentsd.yaml:1:8: unknown model 'opnai/m'; did you mean openai?"),
]


@pytest.mark.parametrize(("text", "message"), PROBLEMS)
def test_unknown_models_in_settings_are_reported_at_their_position(tmp_path: Path, text: str, message: str) -> None:
    for fixed in (None, load(tmp_path, text)):
        project = asyncio.run(Project.read(write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")}), fixed))
        (problem,) = project.catalog.problems
        assert str(problem).startswith(message)
        assert problem.severity == "error"
        assert project.catalog.current.agents, "agents with their own model are served"


def test_an_unknown_model_from_a_program_or_variable_is_not_reported_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline"), "agentsd.yaml": "model: mine\n"})

    def problems(settings: Settings | None = None) -> list[str]:
        project = asyncio.run(Project.read(root, settings, models=["mine"]))
        return [str(problem) for problem in project.catalog.problems]

    assert problems() == []
    assert problems(Settings(model="thine")) == []
    monkeypatch.setenv("AGENTSD_MODEL", "thine")
    assert [text.partition(";")[0] for text in problems()] == ["AGENTSD_MODEL: unknown model 'thine'"]


def test_a_variable_can_contain_a_number_or_a_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIET", "3s")
    assert load(tmp_path, "reload: {quiet: '${QUIET}'}\n").reload.quiet == 3.0


def test_all_unset_variables_are_reported_with_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    error = refused(tmp_path, "model: ${NOT_SET}\nmodels: {fast: {model: '${NOT_SET}/${NOT_SET_EITHER}'}}\n")
    assert [(p.place, p.message, p.hint) for p in error.problems] == [
        ("agentsd.yaml:1:8", "the variable NOT_SET is not set", "set it, or write ${NOT_SET:-default}"),
        ("agentsd.yaml:2:24", "the variable NOT_SET is not set", "set it, or write ${NOT_SET:-default}"),
        ("agentsd.yaml:2:24", "the variable NOT_SET_EITHER is not set", "set it, or write ${NOT_SET_EITHER:-default}"),
    ]


def test_a_secret_is_kept_but_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    settings = load(tmp_path, "models: {fast: {model: x, api_key: '${SOME_KEY}'}}\n")
    key = settings.models["fast"].api_key
    assert key is not None
    assert key.get_secret_value() == SECRET
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        "models: {fast: {model: x, api_key: '${SOME_KEY}', base: 1}}\n",
        "models: {fast: {model: x, api_key: '${SOME_KEY}', base_url: ['${SOME_KEY}']}}\n",
        "reload: {quiet: '${SOME_KEY}'}\n",
        "routing: {default_agent: '${SOME_KEY}'}\n",
        "version: ${SOME_KEY}\n",
        f"models: {{fast: {{modle: x, api_key: {SECRET}}}}}\n",
        f"models: {{fast: {{model: x, api_key: [{SECRET}]}}}}\n",
        f"models:\n  fast:\n    model: x\n    api_key:\n      - {SECRET}\n",
        f"models:\n  fast:\n    model: x\n    api_key:\n      {SECRET}: [\n",
        f'models: {{fast: {{"api_key": "{SECRET}}}}}\n',
        f"models: {{fast: {{api_key: {SECRET}, model: '${{NOT_SET}}'}}}}\n",
        f"models: {{fast: {{api_key: !x {SECRET}}}}}\n",
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("SOME_KEY", SECRET)
    error = refused(tmp_path, text)
    assert error.problems
    shown = str(error) + repr(error) + "".join(problem.model_dump_json() for problem in error.problems)
    assert SECRET not in shown


LONG_SECRET = "9f86d081884c7d659a2feaa0c55ad015"


@pytest.mark.parametrize(
    "text",
    [
        f"server: {{api_kyes: [{LONG_SECRET}]}}\n",
        f"server: [{LONG_SECRET}]\n",
        f"sevrer:\n  '{LONG_SECRET}'\n",
        f'models: {{fast: {{modle: openai/x, apikye: "{LONG_SECRET}"}}}}\n',
    ],
)
def test_no_error_shows_a_secret_under_a_misspelled_key(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text)
    assert error.problems
    shown = str(error) + repr(error) + "".join(problem.model_dump_json() for problem in error.problems)
    assert LONG_SECRET not in shown
    assert all(problem.excerpt is not None for problem in error.problems)


@pytest.mark.parametrize(
    "name", ["AGENTSD_MODELS", "AGENTSD_RELOAD__QUIET", "AGENTSD_MODELS__FAST", "AGENTSD_ROUTING", "AGENTSD_VERSION"]
)
@pytest.mark.parametrize("value", [SECRET, f'{{"fast": "{SECRET}"}}', f'["{SECRET}'])
def test_no_error_shows_the_value_of_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    error = refused(tmp_path)
    assert SECRET not in str(error) + repr(error)


def test_excerpts_are_shown_if_secrets_come_from_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    error = refused(tmp_path, "models: {fast: {modle: x, api_key: '${SOME_KEY}'}}\n")
    assert all(problem.excerpt == "models: {fast: {modle: x, api_key: '${SOME_KEY}'}}" for problem in error.problems)


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, value in leaves(Settings.model_construct()) if isinstance(value, bool | int | str)],
)
def test_every_setting_can_come_from_its_variable(key: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        variable_name(tuple(key.split("."))), str(value).lower() if isinstance(value, bool) else str(value)
    )
    assert dict(leaves(Settings()))[key] == value


@pytest.mark.parametrize("text", ["", "\n\n", "# model: openai/x\n", "\ufeff# a\n\n  # b", "---\n# a\n", "{}\n"])
def test_a_file_without_keys_means_defaults(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == Settings()
    project = asyncio.run(Project.read(write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline")})))
    assert project.catalog.current.problems == ()


def test_an_unset_variable_does_not_hide_the_other_mistakes_of_its_file(tmp_path: Path) -> None:
    models = "models:\n  fast: {model: '${NOWHERE}'}\n"
    text = f"{models}server: {{port: '${{NOPE}}'}}\nreload: {{mode: strct}}\nmodle: x\n"
    assert [(problem.line, problem.message) for problem in refused(tmp_path, text).problems] == [
        (2, "the variable NOWHERE is not set"),
        (3, "the variable NOPE is not set"),
        (4, "must be 'tolerant' or 'strict'"),
        (5, "unknown key 'modle'"),
    ]


KEYS = f"""\
server:
  api_keys:
    - "${{NO_KEY}}"
    - {{name: web, sha256: "${{NO_HASH}}", tenant: "${{NO_TENANT}}", roles: [admin]}}
    - {"k" * 20}
"""


def test_an_api_key_with_an_unset_variable_is_a_key_that_nobody_has(tmp_path: Path) -> None:
    """Without it there might be no key at all, and every local program would have access."""
    (tmp_path / "agentsd.yaml").write_text(KEYS)
    settings = Settings.load(tmp_path)
    unset = settings.server.api_keys[:2]

    assert all(isinstance(entry, ApiKey) and entry.roles == ("chat",) and entry.tenant is None for entry in unset)
    assert len({key_digest(entry) for entry in unset}) == 2
    assert all(key_digest(entry) < bytes(28) + b"\xff" for entry in unset), "no preimage is known"
    assert [problem.line for problem in unset_key_problems(settings, SettingsSource(KEYS.encode()))] == [3, 4, 4]


def test_a_server_does_not_start_with_an_unset_api_key_and_other_programs_do(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline"), "agentsd.yaml": KEYS})
        async with Runtime.open(root, watch=False) as runtime:
            assert (await runtime.run("hello", agent="a")).status == "completed"
            with pytest.raises(ConfigError, match="the variable NO_KEY is not set"):
                runtime_access_check(runtime)
            assert {problem.severity for problem in runtime.catalog.problems} == {"warning"}

    asyncio.run(main())


def test_a_key_from_its_own_variable_replaces_unset_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSD_SERVER__API_KEYS", f'["{"x" * 20}"]')
    (tmp_path / "agentsd.yaml").write_text(KEYS)
    assert unset_key_problems(Settings.load(tmp_path), SettingsSource(KEYS.encode())) == []
