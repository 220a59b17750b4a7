"""The health plugin reports the state of the process."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from framework.tools.plugins import PluginLoader
from framework.tools.tool import Tool, ToolContext
from tests.support.paths import ROOT

SOURCE = ROOT / "plugins" / "health.py"


def loaded() -> Tool:
    (tool,) = PluginLoader().load("plugins/health.py", SOURCE.read_bytes()).tools
    return tool


def test_health_check_reports_versions_uptime_disk_and_memory(tmp_path: Path) -> None:
    tool = loaded()
    report = tool(context=ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path))

    assert (tool.name, tool.risk, tool.idempotent) == ("health.health_check", "low", True)
    assert (report["status"], report["python"]) == ("ok", platform.python_version())
    assert report["disk_free_mib"] > 0
    assert report["memory_peak_mib"] > 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports these without a package")
def test_linux_reports_uptime_and_free_memory(tmp_path: Path) -> None:
    report = loaded()(context=ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path))
    assert 0 <= report["uptime_seconds"] < 7 * 24 * 3600, "since the start of this process, not of the machine"
    assert report["memory_available_mib"] > 0
