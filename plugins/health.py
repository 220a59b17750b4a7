"""Health of the process that runs the agents, as far as the standard library can measure it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from agentsd import ToolContext, tool

MIB = 1024 * 1024


@tool(risk="low", idempotent=True)
def health_check(*, context: ToolContext) -> dict[str, str | int | None]:
    """Health of the agent service: versions, uptime in seconds, free disk and memory in MiB. null means unknown."""
    return {
        "status": "ok",
        "agentsd": _version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "uptime_seconds": _uptime(),
        "disk_free_mib": shutil.disk_usage(context.base_path).free // MIB,
        "memory_available_mib": _memory_available(),
        "memory_peak_mib": _memory_peak(),
        "cpus": os.cpu_count(),
    }


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("agentsd")
    except PackageNotFoundError:
        return None


def _uptime() -> int | None:
    """Return the seconds since the process started, or None except on Linux, which has `/proc`."""
    try:
        fields_after_name = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        system_uptime = float(Path("/proc/uptime").read_text("utf-8").split()[0])
    except OSError:
        return None
    return int(system_uptime - int(fields_after_name[19]) / os.sysconf("SC_CLK_TCK"))


def _memory_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _memory_peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // MIB if sys.platform == "darwin" else peak // 1024
