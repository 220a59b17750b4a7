"""`agentsd check --fix` rewrites older keys of agent files, and changes neither their meaning nor their comments."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given

from framework.config.yaml.parse import parse_agent
from framework.config.yaml.text_edits import rewrite_agent
from framework.types.spec import AgentSpec
from tests.support.agent_wishes import WISHES, Wish
from tests.support.cases import cases, each
from tests.support.commands import agentsd
from tests.support.projects import write

HEAD = "description: d\ninstructions: i\n"
BEFORE = """\
version: 1
name: notes
description: Writes release notes from commits.
model: writer
instructions: {template: notes/system.j2, vars: {product: agentsd}}
inputs:
  version: {type: string, required: true}
  language: {type: string, default: English}
skill_policy:
  allow: ["repo.*", "mcp.time.*"]   # what it reads
  ask: [write_file]
runtime_policy: {max_steps: 12, risk_level: high, max_cost_usd: 0.5}   # a note
budgets: [team]
sub_agents: [editor]
"""
AFTER = """\
description: Writes release notes from commits.
model: writer
instructions: {file: notes/system.j2, vars: {product: agentsd}}
inputs:
  version: string!
  language: English
tools:
  allow: ["repo.*", "mcp.time.*"]   # what it reads
  ask: [write_file]
max_risk: high
limits: {steps: 12, cost_usd: 0.5, budgets: team}   # a note
agents: [editor]
"""


def rewritten(text: str, path: str = "agents.d/notes.yaml") -> str:
    return rewrite_agent(path, text.encode()).decode()


def meaning(text: str) -> AgentSpec:
    """Return what a file means, apart from the tools that may have any risk."""
    spec = parse_agent("agents.d/clerk.yaml", text.encode())[0]
    policy = spec.skill_policy.model_copy(update={"any_risk": (), "any_risk_if_asked": ()})
    return spec.model_copy(update={"skill_policy": policy})


def test_a_file_is_rewritten() -> None:
    assert rewritten(BEFORE) == AFTER
    assert rewritten(AFTER) == AFTER, "there is nothing left to rewrite"
    assert rewritten(BEFORE.replace("\n", "\r\n")) == AFTER.replace("\n", "\r\n")


@each(
    ("before", "after"),
    [
        ("name: other\n", "name: other\n"),
        ("version: 1  # of the format\n", "version: 1  # of the format\n"),
        ("skill_policy: {allow: [a]}   # why\n", "tools: [a]   # why\n"),
        ("skill_policy:\n  allow: [a]   # why\n", "tools: [a]   # why\n"),
        ("skill_policy:\n  # why\n  allow: [a]\n", "tools:\n  # why\n  allow: [a]\n"),
        ("skill_policy:\n  allow:\n    - a   # why\n", "tools:\n  allow:\n    - a   # why\n"),
        ("runtime_policy: {risk_level: low}\n", "max_risk: low\n"),
        (
            "runtime_policy: {confirm: {from: low}, cost: unknown_ok}\n",
            "approve_from: low\nlimits: {prices: unknown_ok}\n",
        ),
        (
            "runtime_policy:\n  # all\n  max_steps: 3   # few\n  # low\n  risk_level: low\n  strict_arguments: true\n",
            "# low\nmax_risk: low\nstrict_arguments: true\nlimits:\n  # all\n  steps: 3   # few\n",
        ),
        (
            "runtime_policy:\n  confirm:\n    from: low\n    expires: 5m\n# end\n",
            "approve_from: {risk: low, expires: 5m}\n# end\n",
        ),
        ("runtime_policy:   # all\n  risk_level: low\n", "runtime_policy:   # all\n  risk_level: low\n"),
        (
            "runtime_policy: {max_steps: 3,   # few\n  timeout: 5m}\n",
            "runtime_policy: {max_steps: 3,   # few\n  timeout: 5m}\n",
        ),
        ("runtime_policy:\n  max_steps: 3\nbudgets: [a, b]\n", "limits:\n  steps: 3\n  budgets: [a, b]\n"),
        ("budgets: [a]\n", "limits: {budgets: a}\n"),
        ("plan: {approval: {from: low}, max_replans: 1}   # x\n", "plan: {approve: low, max_replans: 1}   # x\n"),
        ("plan:\n  approval: never\n", "plan:\n  approve: never\n"),
        ("executor: plan\nmcp_policy: {}\n", "mode: plan\nmcp: {}\n"),
        ("inputs: {a: {type: text}}\n", "inputs: {a: {type: text}}\n"),
        (
            "inputs: {a: {default: string}, b: {type: integer}}\n",
            "inputs: {a: {default: string}, b: {type: integer}}\n",
        ),
        ("inputs: {a: {type: integer, default: 3}, b: {type: array}}\n", "inputs: {a: 3, b: array}\n"),
        ("routing: [refund]\n", "routing: [refund]\n"),
        ("guidance: {template: a.j2}\n", "guidance: {file: a.j2}\n"),
        ("max_stepz: 1\nexecutor: plan\n", "max_stepz: 1\nexecutor: plan\n"),
    ],
)
def test_what_cannot_be_rewritten_without_loss_stays(before: str, after: str) -> None:
    assert rewritten(HEAD + before) == HEAD + after


@given(WISHES)
@cases(40)
def test_a_rewritten_file_means_the_same(wish: Wish) -> None:
    before = wish.text(wish.old())
    after = rewrite_agent("agents.d/clerk.yaml", before.encode()).decode()
    assert meaning(after) == meaning(before)
    assert not {"skill_policy", "runtime_policy", "sub_agents", "executor"} & {*after.split(":")} or "any_risk" in after


def test_check_fix_keeps_the_denials_of_older_files(tmp_path: Path) -> None:
    older = HEAD + "skill_policy: {allow: [calculator, write_file]}\nexecutor: react\n"
    write(tmp_path, {"agents.d/a.yaml": older, "agents.d/b.yaml": HEAD + "skill_policy: {allow: [calculator]}\n"})
    done = agentsd("check", "--fix", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "agents.d/a.yaml").read_text() == older.replace("executor", "mode")
    assert "agents.d/a.yaml: skill_policy stays: `tools` would allow write_file whatever the risk" in done.stdout
    assert (tmp_path / "agents.d/b.yaml").read_text() == HEAD + "tools: [calculator]\n"
    assert "+tools: [calculator]" in done.stdout.splitlines()
