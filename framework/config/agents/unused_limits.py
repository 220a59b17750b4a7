"""Finds limits on runs in progress that no run can reach: their agent or model does not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from framework.config.agents.models import unknown_model_message, value_at
from framework.config.overlay import SettingsSource
from framework.config.settings import Settings
from framework.config.yaml.document import KeyPath
from framework.types.problem import Problem
from framework.types.text import did_you_mean

_SETTING = ("work", "max_running")


def unused_limit_warnings(
    settings: Settings, source: SettingsSource, agents: Collection[str], models: Collection[str]
) -> Iterator[Problem]:
    """Yield a warning for each agent and each model of `work.max_running` that does not exist.

    Args:
        settings: the settings in effect.
        source: the content of the settings files.
        agents: the names of all agents.
        models: all known models except the aliases in the settings.
    """
    limits, own = settings.work.max_running, {*models, *settings.models}
    unused: dict[KeyPath, str] = {
        ("agents", name): f"no agent named {name!r}{did_you_mean(name, sorted(agents))}"
        for name in limits.agents
        if name not in agents
    }
    unused |= {("models", name): message for name in limits.models if (message := unknown_model_message(name, own))}
    if not unused:
        return
    document = source.document_or_none()
    if document is None:
        return
    for key, message in unused.items():
        path: KeyPath = (*_SETTING, *key)
        if value_at(document.data, path) is not None:
            problem = document.problem(path, f"{message}: its limit has no effect", at_key=True)
            yield problem.model_copy(update={"severity": "warning"})
