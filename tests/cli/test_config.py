"""`agentsd config diff`, and `agentsd check` on common mistakes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import agentsd
from tests.support.projects import agent, write


def test_diff_shows_each_change_with_its_direction(tmp_path: Path) -> None:
    write(tmp_path / "old", {"agents.d/one.yaml": agent("one", model="offline")})
    new = agent("one", model="offline", runtime_policy="{max_steps: 3, max_total_tokens: null}")
    write(tmp_path / "new", {"agents.d/one.yaml": new, "agents.d/two.yaml": agent("two", model="offline")})
    done = agentsd("config", "diff", "old", "new", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "one: limits.steps: 10 -> 3 (tightens)",
        "one: limits.tokens: 50000 -> none (widens)",
        "two: added (widens)",
    ]
    as_json = json.loads(agentsd("config", "diff", "old", "new", "--json", cwd=tmp_path).stdout)
    assert [change["effect"] for change in as_json] == ["tightens", "widens", "widens"]
    assert agentsd("config", "diff", "old", "old", cwd=tmp_path).returncode == 0


MISTAKES = {
    "key": ("executr: plan", "unknown key 'executr'", "did you mean 'executor'?"),
    "nested": ("runtime_policy: {max_step: 3}", "unknown key 'max_step'", "did you mean 'max_steps'?"),
    "twice": ("description: again", "duplicate key 'description': first defined on line 3", ""),
    "risk": (
        "runtime_policy: {risk_level: hihg}",
        "must be 'low', 'medium', 'high' or 'critical'",
        "did you mean 'high'?",
    ),
    "duration": ("runtime_policy: {timeout: soon}", "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d", ""),
    "number": ("runtime_policy: {max_steps: many}", "must be a whole number", ""),
    "zero": ("runtime_policy: {max_steps: 0}", "greater than 0", ""),
    "allow": ("skill_policy: {deny: [echo]}", "the key 'allow' is missing", 'allow: ["*"]'),
    "tool": ("skill_policy: {allow: [read_fil]}", "there is no tool 'read_fil'; did you mean read_file", ""),
    "list": ("skill_policy: {allow: echo}", "must be a list", ""),
    "rule": ("skill_policy: {deny: [{tol: echo}], allow: []}", "unknown key 'tol'", "did you mean 'tool'?"),
    "executor": ("executor: paln", "there is no executor 'paln'; did you mean plan?", ""),
    "model": ("model: opnai/gpt-5", "unknown model 'opnai/gpt-5'; did you mean openai", ""),
    "sub": ("sub_agents: [nobody]", "there is no usable agent 'nobody'", ""),
    "pattern": ('routing: {patterns: ["("]}', "not a linear-time regular expression", ""),
    "anchor": ("metadata: &x 1", "anchors and aliases are not supported", ""),
    "tab": ("routing:\n\tpriority: 1", "this line starts with a tab", "use spaces"),
    "bracket": ("examples: [", "this `[` is not closed", "add `]`"),
    "yes": ("routing: {priority: yes}", "must be a whole number", ""),
    "template": ("instructions: {template: nowhere.j2}", "there is no template 'nowhere.j2'", ""),
}


def test_check_on_twenty_typical_mistakes_prints_twenty_actionable_findings(tmp_path: Path) -> None:
    for number, (name, (line, _, _)) in enumerate(MISTAKES.items()):
        keys = [f"version: 1\nname: {name}\ndescription: d\n"]
        if not line.startswith("instructions"):
            keys.append("instructions: i\n")
        write(tmp_path, {f"agents.d/{number:02}-{name}.yaml": "".join(keys) + line + "\n"})
    done = agentsd("check", cwd=tmp_path)
    assert done.returncode == 78
    for number, (name, (_, message, hint)) in enumerate(MISTAKES.items()):
        file = f"agents.d/{number:02}-{name}.yaml"
        own = [part for part in done.stderr.split("agents.d/") if part.startswith(file.removeprefix("agents.d/"))]
        assert any(message in part and hint in part for part in own), f"{file}: {own}"
    assert "Traceback" not in done.stderr


@pytest.mark.conformance(38)
@pytest.mark.conformance(39)
def test_check_survives_hostile_files_and_names_each(tmp_path: Path) -> None:
    hostile = {
        "bomb.yaml": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "deep.yaml": b"[" * 100_000,
        "keys.yaml": b"? " * 20_000,
        "nul.yaml": b"version: 1\nname: \x00\n",
        "latin.yaml": "version: 1\nname: caf\xe9\n".encode("latin-1"),
        "utf16.yaml": "version: 1\n".encode("utf-16"),
        "docs.yaml": b"version: 1\n---\nversion: 1\n",
        "list.yaml": b"- version: 1\n",
        "huge.yaml": b"#" * (20 << 20),
        "digits.yaml": b"version: " + b"9" * 5000 + b"\n",
        "merge.yaml": b"version: 1\n<<: {name: a}\n",
        "octal.yaml": b"version: 1\nname: a\ndescription: d\ninstructions: i\nrouting: {priority: no}\n",
    }
    folder = tmp_path / "agents.d"
    folder.mkdir()
    for name, data in hostile.items():
        (folder / name).write_bytes(data)
    done = agentsd("check", cwd=tmp_path)
    assert done.returncode == 78
    for name in hostile:
        assert f"agents.d/{name}" in done.stderr


@pytest.mark.conformance(40)
def test_no_error_shows_a_secret_from_the_environment(tmp_path: Path) -> None:
    settings = "models: {a: {model: '${SECRET_NAME}', api_key: '${SECRET_KEY}', base_urls: '${SECRET_KEY}'}}\n"
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "agentsd.yaml": settings})
    unset = agentsd("check", cwd=tmp_path)
    assert unset.returncode == 78
    assert "SECRET_KEY is not set" in unset.stderr
    done = agentsd("check", cwd=tmp_path, SECRET_NAME="openai/x", SECRET_KEY="hunter2-very-secret")
    assert done.returncode == 78
    assert "base_urls" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


SERVED = {
    "agents.d/one.yaml": agent("one", model="fast", budgets="[team]", skill_policy="{allow: [read_fil]}"),
    "plugins/x.py": "def f(:\n",
}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("modle: x\nmodels: {fast: {model: offline}}\nbudgets: {team: {max_total_tokens: 9, per: day}}\n", [":1:1: "]),
        (
            "models: {fast: {modle: offline}}\nbudgets: {team: {max_total_tokens: many, per: day}}\n",
            [":1:17: ", ":1:9"],
        ),
        (
            "models:\n  fast: {model: offline}\nbudgets:\n  team: {max_total_tokens: 9, per: day}\nlog: a: b\n",
            [":5:7: "],
        ),
        ("models: {fast: {model: '${NO_MODEL}'}}\nbudgets: {team: {per: day}}\n", [":1:24: the variable NO_MODEL"]),
    ],
    ids=["key", "values", "yaml", "variable"],
)
def test_check_reports_the_other_files_beside_invalid_settings(tmp_path: Path, settings: str, found: list[str]) -> None:
    done = agentsd("check", cwd=write(tmp_path, {**SERVED, "agentsd.yaml": settings}))

    assert done.returncode == 78
    for text in ("agentsd.yaml" + found[0], "there is no tool 'read_fil'", "plugins/x.py:1:7"):
        assert done.stderr.count(text) == 1
    assert "unknown model" not in done.stderr
    assert "there is no budget" not in done.stderr


def test_an_unset_api_key_stops_serve_only(tmp_path: Path) -> None:
    cases = "cases:\n  - {name: it answers, message: hi, model: [{say: hi}], expect: {output: hi}}\n"
    files = {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/one.test.yaml": cases}
    write(tmp_path, {**files, "agentsd.yaml": 'server: {api_keys: ["${NO_SERVER_KEY}"], port: 0}\n'})

    for arguments in (["check"], ["run", "hi"], ["test"], ["chat"], ["explain", "one"], ["runs", "list"]):
        assert agentsd(*arguments, cwd=tmp_path).returncode == 0, arguments
    assert "the variable NO_SERVER_KEY is not set" in agentsd("check", cwd=tmp_path).stderr
    done = agentsd("serve", cwd=tmp_path)
    assert (done.returncode, "agentsd.yaml:1:21: the variable NO_SERVER_KEY is not set" in done.stderr) == (78, True)


@pytest.mark.parametrize(
    "line",
    ['model: "${MY_MODEL}"', 'skill_policy: {allow: ["${TOOL}"]}', 'runtime_policy: {max_steps: "${STEPS}"}'],
)
def test_a_variable_in_an_agent_file_is_explained(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"agents.d/one.yaml": f"version: 1\nname: one\ndescription: d\ninstructions: i\n{line}\n"})
    done = agentsd("check", cwd=tmp_path)
    assert "variables are replaced in agentsd.yaml and plugins/*.yaml only" in done.stderr


@pytest.mark.parametrize("value", ["1.0", "2024", "01234", "true", "null", "[1]", '"quoted"'])
def test_an_input_of_type_string_is_the_text_that_was_typed(tmp_path: Path, value: str) -> None:
    inputs = "{version: {type: string, required: true}, count: {type: integer}}"
    keys = {"model": "offline", "inputs": inputs, "instructions": "{template: one.j2}"}
    write(tmp_path, {"agents.d/one.yaml": agent("one", **keys), "prompts/one.j2": "<{{ version }}|{{ count }}>"})

    done = agentsd("explain", "one", "-i", f"version={value}", "-i", "count=3", cwd=tmp_path)

    assert f"<{value.strip(chr(34))}|3>" in done.stdout
    done = agentsd("run", "hi", "-i", f"version={value}", "-i", "count=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert agentsd("run", "hi", "-i", "version=1", "-i", "count=x", cwd=tmp_path).returncode == 2


def test_each_mistake_is_reported_once(tmp_path: Path) -> None:
    files = {
        "agentsd.yaml": """\
            models: {local: {model: openai/qwen, base_url: "http://127.0.0.1:1/v1", api_key: none}}
            budgets: {team: {max_cost_usd: 5, per: day}, month: {max_cost_usd: 50, per: month}}
            """,
        "prompts/one.j2": "hi {{ nme }}\n",
        "agents.d/one.yaml": agent("one", model="offline", instructions="{template: one.j2}"),
        "agents.d/two.yaml": agent("two", model="local", runtime_policy="{max_cost_usd: 1.0}", budgets="[team, month]"),
        "agents.d/three.yaml": agent("three", model="local", budgets="[team, month]"),
    }
    done = agentsd("check", cwd=write(tmp_path, files))

    assert done.stdout.endswith("3 errors, 0 warnings\n")
    assert done.stderr.count("'nme' is undefined") == 1
    assert done.stderr.count("cannot be enforced: the price of local is unknown") == 2
    assert "cannot render template one.j2" in agentsd("check", "agents.d/one.yaml", cwd=tmp_path).stderr


@pytest.mark.parametrize("folder", [".", "inner"])
def test_a_project_is_compared_with_a_revision_of_git(tmp_path: Path, folder: str) -> None:
    def git(*words: str) -> None:
        names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *words], check=True, capture_output=True)

    root = tmp_path / folder
    write(root, {"agents.d/one.yaml": agent("one", model="offline", runtime_policy="{max_steps: 3}")})
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    assert agentsd("config", "diff", "HEAD", cwd=root).returncode == 0
    write(root, {"agents.d/one.yaml": agent("one", model="offline", runtime_policy="{max_steps: 9}")})
    done = agentsd("config", "diff", "HEAD", cwd=root)
    assert (done.returncode, "limits.steps" in done.stdout) == (1, True), done.stderr
    git("commit", "-qam", "second")
    assert "limits.steps" in agentsd("config", "diff", "HEAD~1", "HEAD", "-C", str(root), cwd=tmp_path).stdout
    unknown = agentsd("config", "diff", "--", "--output=x", cwd=root)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no such file or folder, nor a revision of git: --output=x" in unknown.stderr
