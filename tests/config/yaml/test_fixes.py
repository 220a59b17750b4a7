"""`agentsd check --fix` corrects unambiguous typos and changes no other byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.yaml.document import apply_fixes
from framework.config.yaml.parse import ParseError, parse, parse_agent
from framework.types.case import CaseFile
from framework.types.problem import Fix, Problem
from framework.types.tool_servers import Sources
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.projects import write

GOOD = """\
# a comment, ünïcödé: kept
version: 1
name:   a            # spaces too
"description": Does a.   \t
instructions: |
  executr: this is text, yes
executor: react
'protocol': native
skill_policy: {deny: [{tool: "x.*", reason: 'no é'}], allow: ["*"]}
runtime_policy:
  risk_level: "high"
  max_steps: 3
  strict_arguments: true
  confirm: {from: medium, on_expiry: reject}
routing: {keywords: [a, b], priority: 5}
"""
WORDS = (
    *("executor", "protocol", "skill_policy", "deny", "reason", "runtime_policy", "risk_level", "high", "max_steps"),
    *("strict_arguments", "confirm", "medium", "reject", "on_expiry", "routing", "keywords", "priority", "native"),
)
"""Keys and fixed values that are in the text above once, or first where they count."""


def problems(source: bytes) -> tuple[Problem, ...]:
    try:
        parse_agent("a.yaml", source)
    except ParseError as error:
        return error.problems
    return ()


def mend(text: str) -> str:
    source = text.encode()
    return apply_fixes("a.yaml", source, problems(source)).decode()


def rest(lines: str) -> str:
    return "version: 1\nname: a\ndescription: d\ninstructions: i\n" + lines


@st.composite
def slips(draw: st.DrawFn) -> tuple[str, str]:
    """Generate the text with a typo in one of its words, and the misspelt word."""
    word = draw(st.sampled_from(WORDS))
    at = draw(st.integers(0, len(word) - 1))
    letter = draw(st.sampled_from("abcxyz_"))
    wrong = draw(
        st.sampled_from(
            [
                word[:at] + word[at + 1 :],
                word[:at] + letter + word[at:],
                word[:at] + letter + word[at + 1 :],
                word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
            ]
        )
    )
    return GOOD.replace(word, wrong, 1), wrong


@cases(100)
@given(slips(), st.sampled_from(["\n", "\r\n", "\r", "\x85", "\u2028"]), st.sampled_from(["", "\ufeff"]))
def test_a_typo_is_fixed_and_every_other_byte_is_unchanged(slip: tuple[str, str], end: str, mark: str) -> None:
    text, wrong = slip
    before = mark + text.replace("\n", end)
    found = problems(before.encode())
    after = apply_fixes("a.yaml", before.encode(), found).decode()
    if any(problem.fix for problem in found):
        original = mark + GOOD.replace("\n", end)
        (problem,) = found
        assert problem.fix is not None
        assert problem.fix.written.strip("\"'") == wrong
        assert after == original.replace(f'"{problem.fix.instead}"', problem.fix.instead).replace(
            f"'{problem.fix.instead}'", problem.fix.instead
        ), "only the quotes of the word itself may go"
        assert problems(after.encode()) == ()
    else:
        assert after == before


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        ("executr: plan\n", "executor: plan\n"),
        ('"modle": offline\n', "model: offline\n"),
        ("runtime_policy: {max_step: 3, risk_level: hihg}\n", "runtime_policy: {max_steps: 3, risk_level: high}\n"),
        ("runtime_policy: {strict_arguments: yes}\n", "runtime_policy: {strict_arguments: true}\n"),
        ("runtime_policy: {strict_arguments: 'Off'}\n", "runtime_policy: {strict_arguments: false}\n"),
        ("inputs: {order: {typ: string}}\n", "inputs: {order: {type: string}}\n"),
        ("examples: [{user: a, asistant: b}]\n", "examples: [{user: a, assistant: b}]\n"),
    ],
)
def test_unambiguous_typos_are_fixed(lines: str, meant: str) -> None:
    assert mend(rest(lines)) == rest(meant)


@pytest.mark.parametrize(
    "lines",
    [
        "routing: {zzz: 1}\n",  # nothing similar
        "runtime_policy: {max_step: 3, max_steps: 4}\n",  # the key exists already
        "runtime_policy: {confirm: {fr: low}}\n",  # too short for an unambiguous fix
        "runtime_policy: {strict_arguments: maybe}\n",
        "runtime_policy: {risk_level: yes}\n",
        '"m\\x6fdle": x\n',  # the source spelling differs from the parsed value
        "modle: [\n",  # not even YAML
        "executor: plna\n",  # executors are a project's own
    ],
)
def test_ambiguous_typos_are_not_fixed(lines: str) -> None:
    assert mend(rest(lines)) == rest(lines)


def test_fixes_do_not_create_duplicate_keys() -> None:
    assert mend(rest("modle: a\nmodl: b\n")).count("\nmodel:") == 1


def test_the_other_files_are_fixed_as_well() -> None:
    for source, meant, model in (
        (b"version: 1\nmcp_server: {}\n", b"version: 1\nmcp_servers: {}\n", Sources),
        (b"cases: [{nme: a, message: b}]\n", b"cases: [{name: a, message: b}]\n", CaseFile),
    ):
        with pytest.raises(ParseError) as caught:
            parse("a.yaml", source, model)
        assert apply_fixes("a.yaml", source, caught.value.problems) == meant


def test_changed_bytes_are_not_fixed() -> None:
    problem = Problem(path="a", line=1, column=1, message="m", fix=Fix(written="modle", instead="model"))
    for source in (b"", b"x", b"\nmodle: x\n", "modle: é".encode("latin-1"), b"xmodle: x"):
        assert apply_fixes("a", source, [problem]) == source
    for place in ((None, None), (0, 1), (9, 1), (1, 99)):
        other = problem.model_copy(update=dict(zip(("line", "column"), place, strict=True)))
        assert apply_fixes("a", b"modle: x\n", [other]) == b"modle: x\n"


# --- the command


def test_check_fix_writes_its_changes_and_reports_remaining_errors(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents.d/one.yaml": rest("executr: plan\nrouting: {zzz: 1}\n"),
            "agents.d/two.yaml": rest("modle: offline\n").replace("name: a", "name: b"),
            "agentsd.yaml": "modle: offline\n",
        },
    )
    (tmp_path / "agents.d/latin.yaml").write_bytes("executr: \xe9\n".encode("latin-1"))
    (tmp_path / "agents.d/two.yaml").chmod(0o640)
    (tmp_path / "link.yaml").symlink_to("agents.d/two.yaml")
    done = agentsd("check", "--fix", cwd=tmp_path)
    assert done.returncode == 78
    assert (tmp_path / "agentsd.yaml").read_text() == "model: offline\n"
    assert (tmp_path / "agents.d/one.yaml").read_text() == rest("executor: plan\nrouting: {zzz: 1}\n")
    assert "\nmodel: offline\n" in (tmp_path / "agents.d/two.yaml").read_text()
    assert (tmp_path / "agents.d/two.yaml").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "agents.d/latin.yaml").read_bytes() == b"executr: \xe9\n"
    for line in ("-modle: offline", "+model: offline", "-executr: plan", "+executor: plan", "--- agents.d/one.yaml"):
        assert any(shown.startswith(line) for shown in done.stdout.splitlines()), line
    assert "unknown key 'zzz'" in done.stderr
    assert "executr" not in done.stderr
    left = {path.name for path in tmp_path.rglob("*") if path.is_file() and ".agentsd" not in path.parts}
    assert left == {"one.yaml", "two.yaml", "latin.yaml", "agentsd.yaml", "link.yaml"}
    again = agentsd("check", "--fix", cwd=tmp_path)
    assert not any(line.startswith(("+", "-")) for line in again.stdout.splitlines()), "a second run fixes nothing"


def test_check_without_fix_only_suggests_the_fix(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": rest("executr: plan\n")})
    done = agentsd("check", "--json", cwd=tmp_path)
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["fix"] == {"written": "executr", "instead": "executor"}
    assert "executr" in (tmp_path / "agents.d/one.yaml").read_text()


def test_only_the_named_file_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, {f"agents.d/{name}.yaml": rest("executr: plan\n") for name in ("one", "two")})
    done = agentsd("check", "--fix", "--json", "agents.d/one.yaml", cwd=tmp_path)
    assert json.loads(done.stdout)["fixed"] == ["agents.d/one.yaml"]
    assert "mode: plan" in (tmp_path / "agents.d/one.yaml").read_text()
    assert "executr" in (tmp_path / "agents.d/two.yaml").read_text()


def test_a_single_file_project_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": rest("executr: plan\n")})
    done = agentsd("check", "--fix", "one.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "one.yaml").read_text() == rest("mode: plan\n").removeprefix("version: 1\n")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("agents.d/one.yaml", rest("").replace("version: 1", "version: 2")),
        ("agents.d/one.test.yaml", "version: 2\ncases: []\n"),
        ("plugins/one.yaml", "version: 2\n"),
        ("agentsd.yaml", "version: 2\n"),
    ],
)
def test_an_unknown_version_names_the_known_one(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, {path: text})
    done = agentsd("check", "--fix", cwd=tmp_path)
    assert done.returncode == 78
    assert "unsupported version 2 of this file format; supported: 1" in done.stderr
    assert (tmp_path / path).read_text() == text
