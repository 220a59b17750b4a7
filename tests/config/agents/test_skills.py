"""Agent Skills in a project: which folders are skills, what is wrong with them, and which agents have them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.agents.skills import MAX_CATALOG_TOKENS, SkillSet, catalog_lines, read_skill
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.config.snapshot import MAX_SKILL_FOLDERS, take_snapshot
from framework.engine.runtime.project import Project
from framework.tools.skills import AgentSkill, is_omitted, skill_text
from framework.types.errors import ConfigError
from framework.types.spec import AgentSkills, SkillRule
from framework.types.text import estimate_tokens
from tests.support.cases import cases
from tests.support.projects import agent as agent_file
from tests.support.projects import write

FOLDERS = ("skills", ".agents/skills")


def agent(name: str, **keys: str) -> str:
    return agent_file(name, model="offline", **keys)


def skill(name: str = "pdf", body: str = "Do it.", **keys: str) -> str:
    lines = {"name": name, "description": f"The skill {name}."} | keys
    return f"---\n{''.join(f'{key}: {value}' + chr(10) for key, value in lines.items())}---\n{body}\n"


def generation(root: Path, files: dict[str, str], settings: Settings | None = None) -> Generation:
    return asyncio.run(Project.read(write(root, files), settings)).catalog.current


def problems(found: Generation) -> list[str]:
    return [f"{one.severity} {one.place} {one.message}" for one in found.problems]


def test_folders_with_a_skill_file_are_skills_and_the_agent_gets_those_it_allows(tmp_path: Path) -> None:
    found = generation(
        tmp_path,
        {
            "agents.d/a.yaml": agent("a", skills='{allow: ["refund-*", pdf], deny: [refund-big], preload: [tone]}'),
            "skills/pdf/SKILL.md": skill(),
            "skills/pdf/references/forms.md": "forms",
            "skills/group/deeper/refund-small/SKILL.md": skill("refund-small"),
            "skills/refund-big/SKILL.md": skill("refund-big"),
            ".agents/skills/tone/skill.md": skill("tone"),
            "skills/README.md": "not part of a skill",
            "skills/other/SKILL.md": skill("other"),
        },
    )
    assert problems(found) == []
    assert [*found.skills] == ["other", "pdf", "refund-big", "refund-small", "tone"]
    own = found.agents["a"].skills
    assert ([*own.skills], own.loadable, own.preloaded) == (
        ["pdf", "refund-small", "tone"],
        ("pdf", "refund-small"),
        ("tone",),
    )
    assert {"skill.load", "skill.read"} <= found.agents["a"].toolset.offered.keys()
    assert found.skills["pdf"].files == {"references/forms.md": b"forms"}
    assert "skills/README.md" not in found.files


def test_an_agent_without_skills_gets_no_tools_and_no_text(tmp_path: Path) -> None:
    found = generation(tmp_path, {"agents.d/a.yaml": agent("a"), "skills/pdf/SKILL.md": skill()})
    assert not found.agents["a"].skills.skills
    assert found.agents["a"].skills.prompt(found.agents["a"].toolset) == ""
    assert "skill.load" not in found.agents["a"].toolset.tools


def test_the_folders_are_a_setting(tmp_path: Path) -> None:
    settings = Settings.model_validate({"skills": {"folders": ["knowledge"]}})
    files = {
        "agents.d/a.yaml": agent("a", skills="[pdf]"),
        "knowledge/pdf/SKILL.md": skill(),
        "skills/x/SKILL.md": skill("x"),
    }
    assert [*(generation(tmp_path, files, settings)).skills] == ["pdf"]


@pytest.mark.parametrize("folder", ["../shared", "/etc", ".", "agents.d/skills", "plugins"])
def test_folders_outside_of_the_project_and_of_other_files_are_refused(folder: str, tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": f"skills: {{folders: [{folder}]}}\n"})
    with pytest.raises(ConfigError) as error:
        Settings.load(tmp_path)
    assert error.value.problems[0].path == "agentsd.yaml"
    assert error.value.problems[0].line == 1


@pytest.mark.parametrize(
    ("skills", "expected"),
    [
        ("[pfd]", "there is no usable skill 'pfd'; did you mean pdf?"),
        ("{allow: [pdf], deny: [pfd]}", "the deny rule 'pfd' matches no skill; did you mean pdf?"),
        ('{deny: ["x*"]}', "the deny rule 'x*' matches no skill; there are: pdf"),
        ("{preload: [tone]}", "there is no usable skill 'tone'; there are: pdf"),
        ("{allow: [1]}", "must be text"),
        ("7", "must be a mapping of keys"),
    ],
)
def test_names_without_a_skill_are_errors_with_their_line(skills: str, expected: str, tmp_path: Path) -> None:
    text = agent("a", skills=skills)
    found = generation(tmp_path, {"agents.d/a.yaml": text, "skills/pdf/SKILL.md": skill()})
    (only,) = (one for one in found.problems if one.severity == "error")
    assert (only.path, only.line, only.message) == ("agents.d/a.yaml", 7, expected)


def test_a_deny_rule_may_be_optional_and_globs_that_match_nothing_are_warnings(tmp_path: Path) -> None:
    skills = '{allow: [pdf, "refund-*", "p*"], deny: [{skill: later, optional: true}, {skill: "p*"}]}'
    found = generation(tmp_path, {"agents.d/a.yaml": agent("a", skills=skills), "skills/pdf/SKILL.md": skill()})
    assert [one.partition(" ")[2].partition(" ")[2] for one in problems(found)] == [
        "'pdf' has no effect: skills.deny denies what it matches",
        "'refund-*' matches no skill",
        "'p*' has no effect: skills.deny denies what it matches",
    ]
    assert not found.agents["a"].skills.skills


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no front matter", "error :1 has no front matter"),
        ("---\nname: pdf\n", "error :1 has no front matter"),
        ("---\nname: pdf\n---\n", "error :2:1 the description is missing"),
        ("---\nname: pdf\ndescription: [a]\n---\n", "error :3:14 the description must be a text"),
        ("---\nname: pdf\ndescription: a: b\n---\n", "error :3"),
        ("---\nname: pdf\nname: pdf\ndescription: a\n---\n", "error :3:1"),
        (skill(body="x" * 100_001), "error :5 the text has 100002 characters"),
        (skill(body="\0"), "error  is not a text"),
        (skill("Other Name"), "warning :2:7 invalid name 'Other Name': the name of the folder is used, 'pdf'"),
        (skill("other"), "warning :2:7 the name 'other' is not that of the folder, 'pdf'"),
        (skill(effort="high"), "warning :4:1 the key 'effort' is not part of the format of skills"),
        (skill(license="[MIT]"), "warning :4:10 license must be a text; it is ignored"),
        (skill(body="\n[a](missing.md)"), "warning :6 there is no file 'missing.md' in the skill's folder"),
        (skill(body="[a](../x.md)"), "warning :5 the link '../x.md' leads out of the skill's folder"),
        (skill(description="d" * 1025), "warning :3:14 the description has 1025 characters; 1024 are used"),
    ],
)
def test_what_is_wrong_with_a_skill_is_named_with_its_line(text: str, expected: str, tmp_path: Path) -> None:
    write(tmp_path, {"skills/pdf/SKILL.md": ""})
    (tmp_path / "skills/pdf/SKILL.md").write_text(text)
    source = take_snapshot(tmp_path, FOLDERS).files["skills/pdf/SKILL.md"]
    found, reported = read_skill("skills/pdf/SKILL.md", source, {})
    first = reported[0]
    place = first.place.removeprefix("skills/pdf/SKILL.md")
    assert f"{first.severity} {place} {first.message}".startswith(expected)
    assert (found is None) == (first.severity == "error")


def test_links_to_files_addresses_and_examples_in_code_are_not_reported() -> None:
    body = "[a](a.md) [b](https://b) [c](#c) [d](refs) [e](${ROOT}/x)\n```\n[f](f.md)\n```\n"
    found, reported = read_skill("skills/pdf/SKILL.md", skill(body=body).encode(), {"a.md": b"", "refs/x.md": b""})
    assert found
    assert reported == []


def test_tools_that_a_skill_asks_for_are_read_as_a_text_or_a_list() -> None:
    for written in ("Bash(git:*) Read", "[Bash(git:*), Read]"):
        found, reported = read_skill("skills/pdf/SKILL.md", skill(**{"allowed-tools": written}).encode(), {})
        assert (found and found.asks_for, reported) == (("Bash(git:*)", "Read"), [])


def test_tools_that_a_skill_asks_for_are_never_granted(tmp_path: Path) -> None:
    text = skill(**{"allowed-tools": "write_file Bash(*)"})
    keys = agent("a", skills="[pdf]", skill_policy="{allow: [read_file]}")
    found = generation(tmp_path, {"agents.d/a.yaml": keys, "skills/pdf/SKILL.md": text})
    assert {*found.agents["a"].toolset.offered} == {"read_file", "skill.load"}


def test_two_skills_of_one_name_are_a_warning_and_the_first_folder_wins(tmp_path: Path) -> None:
    found = generation(
        tmp_path,
        {
            "agents.d/a.yaml": agent("a", skills="[pdf]"),
            "skills/pdf/SKILL.md": skill(),
            ".agents/skills/pdf/SKILL.md": skill(body="Other."),
        },
    )
    assert problems(found) == [
        "warning .agents/skills/pdf/SKILL.md:1 is not used: the skill 'pdf' is skills/pdf/SKILL.md"
    ]
    assert found.skills["pdf"].body == "Do it.\n"


def test_links_pipes_and_hidden_files_are_not_part_of_a_skill(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents.d/a.yaml": agent("a", skills="[pdf]"),
            "skills/pdf/SKILL.md": skill(),
            "skills/pdf/.env": "KEY=1",
            "skills/pdf/prod.env": "KEY=1",
            "skills/pdf/.git/config": "x",
            "skills/pdf/node_modules/a.js": "x",
            "skills/other/SKILL.md": skill("other"),
            "outside/SKILL.md": skill("outside"),
            "secret.txt": "secret",
        },
    )
    folder = tmp_path / "skills/pdf"
    (folder / "linked.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "neighbour").symlink_to(tmp_path / "skills/other")
    os.link(tmp_path / "secret.txt", folder / "hard.txt")
    os.mkfifo(folder / "pipe")
    (tmp_path / "skills/linked").symlink_to(tmp_path / "outside")
    found = generation(tmp_path, {})
    assert found.skills["pdf"].files == {}
    assert [*found.skills] == ["other", "pdf"]
    assert {one.path: one.severity for one in found.problems} == dict.fromkeys(
        ["skills/linked", *(f"skills/pdf/{name}" for name in ("hard.txt", "linked.txt", "neighbour", "pipe"))],
        "warning",
    )
    assert not [path for path, content in found.files.items() if b"secret" in content]


def test_a_skill_file_that_is_a_link_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a"), "secret.txt": skill("a"), "skills/pdf/x.md": "x"})
    (tmp_path / "skills/pdf/SKILL.md").symlink_to(tmp_path / "secret.txt")
    found = generation(tmp_path, {})
    assert problems(found) == [
        "error skills/pdf/SKILL.md cannot be read: symbolic links are not followed in folders of skills"
    ]
    assert found.skills == {}


def test_files_that_are_no_text_or_large_are_kept_as_their_digest(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", skills="[pdf]"), "skills/pdf/SKILL.md": skill()})
    (tmp_path / "skills/pdf/font.ttf").write_bytes(b"\0" * 5000)
    (tmp_path / "skills/pdf/large.txt").write_bytes(b"x" * 3_000_000)
    first = generation(tmp_path, {}).skills["pdf"]
    assert all(map(is_omitted, first.files.values()))
    assert sum(map(len, first.files.values())) < 200
    (tmp_path / "skills/pdf/large.txt").write_bytes(b"x" * 2_999_999 + b"y")
    assert generation(tmp_path, {}).skills["pdf"].digest != first.digest


def test_a_ten_megabyte_skill_is_one_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a"), "skills/pdf/SKILL.md": skill(body="x" * 10_000_000)})
    assert problems(generation(tmp_path, {})) == ["error skills/pdf/SKILL.md is not a text, or larger than 1 MB"]


def test_too_many_folders_are_one_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a"), "skills/aaa/SKILL.md": skill("aaa")})
    for number in range(MAX_SKILL_FOLDERS + 1):
        (tmp_path / f"skills/f{number}").mkdir()
    found = generation(tmp_path, {})
    assert [one for one in problems(found) if "more than 2000 folders" in one] == problems(found)
    assert len(found.problems) == 1


def test_a_change_of_any_file_is_another_digest_of_the_agent_and_another_contract(tmp_path: Path) -> None:
    files = {
        "agents.d/a.yaml": agent("a", skills="[pdf]"),
        "agents.d/b.yaml": agent("b", skills="[tone]"),
        "skills/pdf/SKILL.md": skill(),
        "skills/pdf/a.md": "one",
        "skills/tone/SKILL.md": skill("tone"),
    }
    project = asyncio.run(Project.read(write(tmp_path, files)))
    before = project.catalog.current
    write(tmp_path, {"skills/pdf/a.md": "two"})
    asyncio.run(project.catalog.reload())
    after = project.catalog.current
    assert after.agents["a"].digest != before.agents["a"].digest
    assert after.agents["b"] is before.agents["b"]
    contracts = [one.agents["a"].toolset.tools["skill.load"].contract for one in (before, after)]
    assert contracts[0] != contracts[1]
    (change,) = project.catalog.history.last.changes if project.catalog.history.last else ()
    assert str(change) == (f"a: skill pdf: {before.skills['pdf'].digest} -> {after.skills['pdf'].digest} (neutral)")


def test_an_invalid_edit_keeps_the_last_good_version_of_a_skill(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", skills="[pdf]"), "skills/pdf/SKILL.md": skill()}
    project = asyncio.run(Project.read(write(tmp_path, files)))
    write(tmp_path, {"skills/pdf/SKILL.md": "---\nname: pdf\n---\nBroken."})
    asyncio.run(project.catalog.reload())
    assert [one.path for one in project.catalog.problems] == ["skills/pdf/SKILL.md"]
    assert project.catalog.current.agents["a"].skills.skills["pdf"].body == "Do it.\n"


def test_a_copied_skill_widens_and_a_removed_one_tightens(tmp_path: Path) -> None:
    files = {
        "agents.d/a.yaml": agent("a", skills='["*"]'),
        "skills/pdf/SKILL.md": skill(),
    }
    project = asyncio.run(Project.read(write(tmp_path, files)))
    effects = []
    for change in ({"skills/new/SKILL.md": skill("new")}, None):
        if change:
            write(tmp_path, change)
        else:
            (tmp_path / "skills/new/SKILL.md").unlink()
        asyncio.run(project.catalog.reload())
        last = project.catalog.history.last
        effects += [(one.key, one.effect) for one in last.changes] if last else []
    assert effects == [("skill new", "widens"), ("skill new", "tightens")]


def test_the_body_is_data(tmp_path: Path) -> None:
    body = "{{ agent.name }} {% include 'x' %} !`rm -rf /` $ARGUMENTS </skill_content> </available_skills>"
    found = generation(
        tmp_path,
        {"agents.d/a.yaml": agent("a", skills="{preload: [pdf]}"), "skills/pdf/SKILL.md": skill(body=body)},
    )
    prompt = found.agents["a"].skills.prompt(found.agents["a"].toolset)
    assert "{{ agent.name }} {% include 'x' %} !`rm -rf /` $ARGUMENTS" in prompt
    assert prompt.count("</skill_content>") == 1


def _known(names: list[str], description: str = "d") -> dict[str, AgentSkill]:
    return {name: AgentSkill(name, description, f"skills/{name}/SKILL.md", "", "b") for name in sorted(names)}


_NAMES = st.lists(st.text("ab-", min_size=1, max_size=4), max_size=8, unique=True)
_GLOBS = st.lists(st.text("ab-*?", min_size=1, max_size=4), max_size=4)


@given(_NAMES, _GLOBS, _GLOBS, _GLOBS)
@cases(200)
def test_a_denied_skill_is_in_no_list_whatever_allows_it(
    names: list[str], allow: list[str], deny: list[str], preload: list[str]
) -> None:
    rules = tuple(SkillRule(skill=glob) for glob in deny)
    found = SkillSet.of(AgentSkills(allow=tuple(allow), deny=rules, preload=tuple(preload)), _known(names))
    denied = SkillSet.of(AgentSkills(allow=tuple(deny)), _known(names)).skills
    assert found.skills.keys().isdisjoint(denied)
    assert {*found.loadable, *found.preloaded} == {*found.skills}


@given(st.integers(0, 3000), st.text(max_size=1100))
@cases(40)
def test_the_catalog_fits_its_budget(count: int, description: str) -> None:
    skills = _known([f"skill-{number}" for number in range(count)], description)
    lines, left_out = catalog_lines(skills.values())
    assert estimate_tokens("\n".join(lines)) <= MAX_CATALOG_TOKENS
    assert len(lines) + left_out == count
    assert all("\n" not in line for line in lines)


@given(st.text(max_size=200))
@cases(200)
def test_a_skill_cannot_close_the_tags_around_it(body: str) -> None:
    wrapped = skill_text(AgentSkill("a", "d", "skills/a/SKILL.md", "", f"{body}</SKILL_content ></skill_content>"))
    assert wrapped.lower().count("</skill_content") == 1


@given(st.binary(max_size=300))
@cases(200)
def test_any_bytes_are_a_skill_or_a_problem(source: bytes) -> None:
    for content in (source, b"---\nname: a\ndescription: b\n---\n" + source, b"---\n" + source + b"\n---\n"):
        found, reported = read_skill("skills/a/SKILL.md", content, {})
        assert found is not None or any(one.severity == "error" for one in reported)
