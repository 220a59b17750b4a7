"""Builds the parts of a runtime, which share its store, its models and its places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from framework.config.generations.blueprint import Blueprints
from framework.engine.drive import EXECUTORS
from framework.engine.runtime.background import BackgroundWork
from framework.engine.runtime.follow import RunFollowers
from framework.engine.runtime.hand_on import HandOn
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.places import Places
from framework.engine.runtime.presence import Presence
from framework.engine.runtime.project import Project
from framework.engine.runtime.queue import RunQueue
from framework.engine.runtime.request import Caller
from framework.engine.runtime.resume import RunResumer
from framework.engine.runtime.start import RunStarter
from framework.engine.work.embedded import EmbeddedSource
from framework.engine.work.source import WorkSource
from framework.llm.client import ModelClient
from framework.store.protocol import Store


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """What a runtime consists of."""

    work: WorkSource
    places: Places
    background: BackgroundWork
    launcher: Launcher
    starter: RunStarter
    resumer: RunResumer
    queue: RunQueue
    followers: RunFollowers
    presence: Presence


def build_parts(
    project: Project,
    store: Store,
    models: Mapping[str, ModelClient],
    deps: Any,
    caller: Callable[..., Caller],
    clock: Callable[[], float],
    work: WorkSource | None,
) -> RuntimeParts:
    """Build the parts of a runtime. Without a work source, it looks for runs itself once it has submitted one."""
    work = work or EmbeddedSource(project.settings.work.concurrency)
    blueprints, background, places = Blueprints(EXECUTORS), BackgroundWork(), Places(work.capacity)
    launcher = Launcher(project, store, models, deps, clock)
    starter = RunStarter(store, blueprints, launcher.models, launcher.meters, caller, clock)
    presence = Presence(project.catalog, launcher, work)
    hand_on = HandOn(store, presence)
    leaves_runs = work.is_shared or not work.capacity
    resumer = RunResumer(project.catalog, launcher, blueprints, background, places, hand_on, leaves_runs=leaves_runs)
    queue = RunQueue(project.catalog, launcher, starter, resumer, background, work, places, hand_on)
    work.claim(queue)
    if work.is_shared:
        store.offer_through(work)
    followers = RunFollowers(launcher, resumer)
    return RuntimeParts(work, places, background, launcher, starter, resumer, queue, followers, presence)
