"""The statuses of a run."""

from __future__ import annotations

from typing import Literal

Status = Literal["queued", "running", "completed", "stopped", "paused", "cancelled", "failed"]
