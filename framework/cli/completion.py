"""`agentsd completion`: prints the script with which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from framework.cli.command_index import COMPLETION_VARIABLE

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script of a shell; add `eval "$(agentsd completion bash)"` to ~/.bashrc.

    For zsh, add the same with `zsh` to ~/.zshrc; for fish, write the script to
    ~/.config/fish/completions/agentsd.fish. It completes commands, options, agents, tools, models, runs and
    conversations: those of the project in this folder, or of -C. Tools and models are those of the last check or run.
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(command, {}, "agentsd", COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())  # `source()` would start a bash to check its version
    return 0
