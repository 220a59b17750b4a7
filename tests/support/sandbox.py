"""Skips tests that need a sandbox where none can be started."""

from __future__ import annotations

import pytest

from framework.tools.child_processes import why_unusable
from framework.types.tool_servers import SandboxLimits

_WHY = why_unusable(SandboxLimits(program="bubblewrap"))
needs_sandbox = pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")
