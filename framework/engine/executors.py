"""The executors that come with the runtime, by the names that agent files use."""

from __future__ import annotations

from collections.abc import Mapping

from framework.engine.choosing import auto
from framework.engine.plan import plan
from framework.engine.project import EXECUTORS as NAMES
from framework.engine.react import react
from framework.engine.run import Executor

EXECUTORS: Mapping[str, Executor] = dict(zip(NAMES, (react, plan, auto), strict=True))
