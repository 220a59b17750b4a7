"""The executors that come with the runtime, by the names that agent files use."""

from __future__ import annotations

from collections.abc import Mapping

from framework.engine.plan.executor import plan
from framework.engine.react import react
from framework.engine.routing.by_model import auto
from framework.engine.run import Executor
from framework.engine.runtime.project import EXECUTORS as NAMES

EXECUTORS: Mapping[str, Executor] = dict(zip(NAMES, (react, plan, auto), strict=True))
