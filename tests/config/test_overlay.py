"""`AGENTSD_ENV` chooses a file that is laid over `agentsd.yaml`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.main import main
from framework.config.generations.catalog import Catalog
from framework.config.overlay import SettingsSource, environment_in, is_settings_file
from framework.config.settings import Settings
from framework.config.yaml.document import read_document
from framework.tools.files import is_protected
from framework.types.errors import ConfigError
from tests.support.cases import cases

BASE = """\
model: small
models:
  small: {model: offline}
  large: {model: offline}
routing: {default_agent: notes}
budgets:
  team: {max_cost_usd: 5, per: [tenant, day]}
"""
AGENT = "version: 1\nname: notes\ndescription: Notes.\ninstructions: Help.\nmodel: small\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agentsd.yaml").write_text(BASE)
    (tmp_path / "agents.d").mkdir()
    (tmp_path / "agents.d/notes.yaml").write_text(AGENT)
    monkeypatch.setenv("AGENTSD_ENV", "staging")
    return tmp_path


def _problem(project: Path) -> str:
    with pytest.raises(ConfigError) as error:
        Settings.load(project)
    (found,) = error.value.problems
    return str(found).splitlines()[0]


def test_keys_of_the_overlay_replace_those_below_one_by_one(project: Path) -> None:
    (project / "agentsd.staging.yaml").write_text("model: large\nbudgets:\n  team: {max_cost_usd: 1}\n")
    settings = Settings.load(project)
    assert (settings.model, sorted(settings.models), settings.routing.default_agent) == (
        "large",
        ["large", "small"],
        "notes",
    )
    assert (settings.budgets["team"].max_cost_usd, settings.budgets["team"].per) == (1, ("tenant", "day"))


def test_an_environment_variable_replaces_both_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "agentsd.staging.yaml").write_text("locale: zh\n")
    monkeypatch.setenv("AGENTSD_LOCALE", "fr")
    assert Settings.load(project).locale == "fr"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("locale: 5\n", "agentsd.staging.yaml:1:9: must be text"),
        ("budgets:\n  team: {max_cost_usd: -1}\n", "agentsd.staging.yaml:2:24: "),
        ("wrong: 1\n", "agentsd.staging.yaml:1:1: unknown key 'wrong'"),
        ("a: {\n", "agentsd.staging.yaml:"),
        ("locale: ${NOT_SET_ANYWHERE}\n", "agentsd.staging.yaml:1:9: the variable NOT_SET_ANYWHERE is not set"),
    ],
)
def test_a_mistake_is_reported_at_its_place_in_the_overlay(project: Path, text: str, expected: str) -> None:
    (project / "agentsd.staging.yaml").write_text(text)
    assert _problem(project).startswith(expected)


def test_a_mistake_in_the_file_below_keeps_its_place(project: Path) -> None:
    (project / "agentsd.yaml").write_text(BASE + "locale: 5\n")
    (project / "agentsd.staging.yaml").write_text("model: large\n")
    assert _problem(project).startswith("agentsd.yaml:8:9: must be text")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_overlay_without_keys_changes_nothing(project: Path, text: str) -> None:
    (project / "agentsd.staging.yaml").write_text(text)
    assert Settings.load(project).model == "small"


def test_an_environment_without_a_file_is_an_error_and_not_the_base(project: Path) -> None:
    assert _problem(project).startswith("AGENTSD_ENV: there is no agentsd.staging.yaml")


@pytest.mark.parametrize("name", ["../x", "Prod", "a b", "x" * 41, "a.b"])
def test_a_name_that_no_environment_can_have_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AGENTSD_ENV", name)
    assert "cannot be the name of an environment" in _problem(project)


def test_an_edit_of_the_overlay_is_live_and_its_loss_changes_nothing(project: Path) -> None:
    overlay = project / "agentsd.staging.yaml"
    overlay.write_text("budgets: {team: {max_cost_usd: 2}}\n")
    catalog = Catalog(
        project, tools=(), executors=("react",), models=("offline",), settings=Settings.load(project), fixed=False
    )
    live = asyncio.run(catalog.reload())
    assert environment_in(live.files) == "staging"
    overlay.write_text("budgets: {team: {max_cost_usd: 1}}\n")
    edited = asyncio.run(catalog.reload())
    assert edited.settings.budgets["team"].max_cost_usd == 1
    assert edited.digest != live.digest
    overlay.unlink()
    kept = asyncio.run(catalog.reload())
    assert kept.settings.budgets["team"].max_cost_usd == 1
    assert any("there is no agentsd.staging.yaml" in problem.message for problem in catalog.problems)


def test_the_option_of_a_command_names_the_environment_which_check_shows(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AGENTSD_ENV")
    (project / "agentsd.prod.yaml").write_text("model: large\n")
    with pytest.raises(SystemExit) as ended:
        main(["check", "-C", str(project), "--env", "prod", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (ended.value.code, data["environment"]) == (0, "prod")
    assert "AGENTSD_ENV" not in os.environ
    with pytest.raises(SystemExit):
        main(["explain", "notes", "-C", str(project), "--env", "prod"])
    assert "environment prod" in capsys.readouterr().out


def test_agents_cannot_write_overlays() -> None:
    assert is_settings_file("agentsd.prod.yaml")
    assert is_protected("agentsd.prod.yaml")
    assert is_protected("AGENTSD.Prod.YAML")


_DATA = st.recursive(
    st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_FILES = st.dictionaries(st.sampled_from("abc"), _DATA, max_size=3)


@cases(100)
@given(base=_FILES, overlay=_FILES)
def test_each_value_comes_from_the_file_that_its_place_names(
    base: dict[str, object], overlay: dict[str, object]
) -> None:
    texts = {"agentsd.yaml": json.dumps(base).encode(), "agentsd.x.yaml": json.dumps(overlay).encode()}
    merged = SettingsSource(texts["agentsd.yaml"], "agentsd.x.yaml", texts["agentsd.x.yaml"]).document()
    read = {name: read_document(name, text) for name, text in texts.items()}

    def leaves(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                leaves(inner, (*path, key))
        elif path:
            owner = read[merged.problem(path, "x").path]
            found: object = owner.data
            for key in path:
                assert isinstance(found, dict)
                found = found[key]
            assert found == value

    leaves(merged.data, ())
