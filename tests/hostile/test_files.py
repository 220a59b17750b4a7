"""Hostile paths and files in whole runs: nothing outside the base is read, and no configuration is written."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from framework.testing import calls
from plugins.log_transform import log_transform
from tests.support.hostile_runs import CONTINUED, refused, victim
from tests.support.projects import write

SECRET = "the secret outside"
FULL = "{risk_level: critical, confirm: {from: never}, max_corrections: 5, max_tool_calls: 100}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Create a project with links and paths that point outside, and their targets."""
    write(tmp_path, {"outside/secret.txt": SECRET, "base/notes.txt": "notes\n", "base/.env": f"KEY={SECRET}\n"})
    base = tmp_path / "base"
    (base / "link.txt").symlink_to(tmp_path / "outside/secret.txt")
    (base / "linked").symlink_to(tmp_path / "outside")
    (base / "hard.txt").hardlink_to(tmp_path / "outside/secret.txt")
    (base / "proc").symlink_to("/proc/self")
    os.mkfifo(base / "pipe")
    return base


OUT = [
    "../outside/secret.txt", "docs/../../outside/secret.txt", "/etc/passwd", "~/secret.txt", "~root", "C:\\secret.txt",
    "\\\\host\\share", "..\\outside\\secret.txt", "%2e%2e/outside/secret.txt", "..%2foutside/secret.txt",
    "file:///etc/passwd",
    "..\u2215outside\u2215secret.txt", "\uff0e\uff0e/outside/secret.txt", "....//outside/secret.txt",
]  # fmt: skip
NAMES = ["notes.txt\0", "notes.txt\0.png", "no\ntes.txt", "\u202etxt.seton", "notes\u200b.txt", "\x1b[2J", "x" * 5000]
LINKS = ["link.txt", "linked/secret.txt", "linked", "proc/self/environ", "proc/environ"]
SPECIAL = ["hard.txt", "pipe", "/proc/self/environ", "/dev/zero", "/dev/stdin", ".env", ".git/config"]


@pytest.mark.parametrize(
    "path",
    [
        *(pytest.param(path, marks=pytest.mark.hostile(11)) for path in OUT),
        *(pytest.param(path, marks=pytest.mark.hostile(12)) for path in NAMES),
        *(pytest.param(path, marks=pytest.mark.hostile(13)) for path in LINKS),
        *(pytest.param(path, marks=pytest.mark.hostile(14)) for path in SPECIAL),
    ],
    ids=lambda path: ascii(path)[:40],
)
def test_asi02_file_tools_access_only_plain_files_below_the_base(base: Path, path: str) -> None:
    requested = [
        ("read_file", {"path": path}),
        ("list_dir", {"path": path}),
        ("log_transform", {"path": path}),
        ("json_transform", {"expression": "@", "path": path}),
        ("search_files", {"query": "secret", "root_dir": path}),
        ("edit_file", {"path": path, "old": "secret", "new": "pwned"}),
    ]
    results = refused(base, *requested, tools=[log_transform], runtime_policy=FULL)
    assert not any(SECRET in text for text in results)
    assert (base.parent / "outside/secret.txt").read_text() == SECRET


RUNS = [
    "agents.d/evil.yaml", "Agents.D/evil.yaml", "agents.d/victim.yaml", "prompts/system.j2", "plugins/evil.py",
    "plugins/_h.py", "agentsd.yaml", ".git/hooks/pre-commit", ".git/config", "conftest.py", "sub/conftest.py",
    "sitecustomize.py", "x.pth", ".env", "prod.env", ".bashrc", "hooks/post-merge", "plugin\u017f/evil.py",
    "docs/../plugins/evil.py", "./plugins//evil.py",
]  # fmt: skip


@pytest.mark.hostile(16)
@pytest.mark.parametrize("path", RUNS)
def test_asi10_an_agent_cannot_write_files_that_define_behavior(base: Path, path: str) -> None:
    before = sorted(str(one) for one in base.rglob("*"))
    modes = ("create", "overwrite", "append")
    requested = [("write_file", {"path": path, "content": "evil", "mode": mode}) for mode in modes]
    refused(base, *requested, runtime_policy=FULL)
    after = sorted(str(one) for one in base.rglob("*") if "agents.d" not in one.parts)
    assert after == before
    assert "evil" not in (base / "agents.d/victim.yaml").read_text()


@pytest.mark.hostile(15)
def test_llm10_huge_files_and_folders_and_slow_patterns_get_partial_answers(base: Path) -> None:
    with (base / "sparse.bin").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (base / "line.txt").write_text("a" * 3_000_000)
    (base / "many").mkdir()
    for number in range(1000):
        (base / "many" / f"{number}.txt").touch()
    seen = victim(
        base,
        calls(
            ("read_file", {"path": "sparse.bin"}),
            ("read_file", {"path": "line.txt"}),
            ("list_dir", {"path": "many"}),
            ("search_files", {"query": "**/" * 50 + "*"}),
            ("search_files", {"query": "^(a+)+$"}),
            ("log_transform", {"path": "line.txt", "operation": "grep", "pattern": "^(a+)+$"}),
        ),
        CONTINUED,
        tools=[log_transform],
    )
    assert seen.result.output == CONTINUED
    assert all(len(text) < 5000 for text in seen.tool_results)
    sparse_, line, many, glob, search, grep = (call.result for call in seen.result.tool_calls)
    assert "binary" in sparse_
    assert "only the first MB" in line
    assert "800 more entries" in many
    assert not any("aaaa" in text for text in (glob, search, grep)), "the search term is text, never a pattern"


@pytest.mark.hostile(18)
def test_asi05_no_tool_unpacks_an_archive(base: Path) -> None:
    with zipfile.ZipFile(base / "slip.zip", "w") as archive:
        archive.writestr("../outside/pwned.txt", "pwned")
    requested = [(tool, {"path": "slip.zip"}) for tool in ("read_file", "log_transform")]
    results = refused(base, *requested, ("list_dir", {"path": "slip.zip"}), tools=[log_transform])
    assert "binary" in results[0]
    assert not (base.parent / "outside/pwned.txt").exists()
