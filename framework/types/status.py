"""States of a run, as stored and as reported."""

from __future__ import annotations

from typing import Literal

Status = Literal["running", "completed", "stopped", "paused", "cancelled", "failed"]
