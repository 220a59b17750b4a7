"""Options and arguments that several commands share, each with one spelling."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from framework.config.overlay import ENVIRONMENT_VARIABLE
from framework.types.frozen import parse_duration
from framework.types.text import InputText

_C = TypeVar("_C", bound=Callable[..., Any])

MODEL_VARIABLE = "AGENTSD_MODEL"
"""Environment variable that replaces every agent's model in `run` and `chat`, as `--model` does."""


def _choose_environment(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Set `AGENTSD_ENV` until the command ends, for this process and for those that it starts."""
    if name is None:
        return
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = name

    def restore() -> None:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before

    context.find_root().call_on_close(restore)


def PROJECT_OPTION(function: _C) -> _C:  # noqa: N802 - used like the options beside it
    """Add `-C FOLDER`, and `--env NAME`, which chooses the environment of its settings."""
    environment = click.option(
        "--env",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_choose_environment,
        help="Lay agentsd.NAME.yaml over agentsd.yaml, as the variable AGENTSD_ENV does.",
    )
    folder = click.option(
        "-C", "--project", default=".", show_default=True, metavar="FOLDER", help="The project's folder."
    )
    return folder(environment(function))


MODEL_OPTION = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar=MODEL_VARIABLE,
    show_envvar=True,
    help="Use this model instead of the agents' own, e.g. openai/gpt-5.4-mini.",
)
INPUT_OPTION = click.option(
    "-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input of the agent; repeatable."
)
LIMIT_OPTION = click.option(
    "-l", "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Override a limit, e.g. max_steps=3."
)
_OWNER = "The {0} it belongs to. Needed only if several {0}s have this id."


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of a duration such as `30d`."""
        try:
            return float(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()


def tenant_option(about: str = _OWNER.format("tenant")) -> Callable[[_C], _C]:
    """Return the option `--tenant`."""
    return click.option("-t", "--tenant", metavar="TENANT", help=about)


def user_option(about: str = _OWNER.format("user")) -> Callable[[_C], _C]:
    """Return the option `--user`."""
    return click.option("-u", "--user", metavar="USER", help=about)


LOCALE_OPTION = click.option("--locale", metavar="LANGUAGE", help="Language of the prompts, e.g. zh.")


def project_path(function: _C) -> _C:
    """Add `[PATH]` and `-C FOLDER`. The command gets one `path`: PATH in FOLDER, each by default this folder."""

    @wraps(function)
    def with_path(*, path: str | None, project: str, **given: Any) -> Any:
        return function(path=project if path is None else str(Path(project, path)), **given)

    with_argument = click.argument("path", required=False)(with_path)
    return PROJECT_OPTION(with_argument)  # type: ignore[return-value]  # click keeps the function it decorates


def parse_pairs(values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` options; a value that is valid JSON is decoded."""
    found: dict[str, Any] = {}
    for name, text in _pairs(values):
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def parse_inputs(values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` options for inputs, whose types depend on the agent: `version=1.0` may be text."""
    return {name: InputText(text) for name, text in _pairs(values)}


def _pairs(values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.UsageError(f"write {value}=VALUE")
        yield name, text
