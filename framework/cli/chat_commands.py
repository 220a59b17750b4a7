"""The slash commands of a chat."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from shlex import split
from shutil import get_terminal_size

import click

from framework.cli.chat_state import ChatState
from framework.cli.conversations.show import turns_of
from framework.cli.options import parse_inputs
from framework.cli.records import load_files, new_conversation, runs_of, store_as_turn
from framework.cli.show import MARKS, as_visible_json, counted, requested_waterfall, show_table
from framework.cli.terminal import as_json_text, wrapped_line, write_out
from framework.config.agents.compile import Agent
from framework.engine.runtime.request import checked_inputs
from framework.engine.tool_call.call import explain_tools
from framework.llm.message_formats import exported
from framework.store.types import Conversation
from framework.types.errors import RequestError
from framework.types.messages import Message
from framework.types.state import RunState
from framework.types.text import did_you_mean, one_line, visible

COMMANDS_HELP: Mapping[str, str] = {
    "/help": "show this list",
    "/agent [NAME]": "show the agents, or select one; auto lets the router choose again",
    "/model [NAME]": "show the model, or use another one; default uses the agents' own again",
    "/inputs [NAME=VALUE …]": "show the inputs of the agent, or set some",
    "/plan": "show the plan of the last answer, with the status of each step",
    "/tools": "show which tools the agent has, and which need approval",
    "/trace": "draw the last run as a waterfall",
    "/cost": "show what this conversation has used",
    "/undo": "take back the last message and its answer; files that tools wrote stay",
    "/new": "begin a new conversation",
    "/save [FILE]": "write the conversation to a file: Markdown, or JSON if it ends with .json",
    "/quit": "leave; also exit, quit or Ctrl-D",
}
NAMES: Sequence[str] = tuple(usage.split()[0] for usage in COMMANDS_HELP)
KEYS_HELP = "Alt+Enter or \\ and Enter: new line · Tab: complete · ↑: earlier messages · Ctrl-C: cancel the answer"
LEAVING = ("exit", "quit", "/exit")
"""Other words that end a chat."""
AUTO, DEFAULT = "auto", "default"
UNDONE_CHARS = 60


def is_command(message: str) -> bool:
    """Return whether a message is a slash command, whose first word is not a path, or leaves the chat."""
    word = message.split(maxsplit=1)[0] if message.strip() else ""
    return message.strip().lower() in LEAVING or (
        word.startswith("/") and "/" not in word[1:] and "." not in word and len(word) > 1
    )


class ChatCommands:
    """Executes slash commands. Their output goes to standard error, like all progress of a chat."""

    def __init__(self, chat: ChatState) -> None:
        self._chat = chat
        self._actions: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/agent": self._agent,
            "/model": self._model,
            "/inputs": self._inputs,
            "/plan": self._plan,
            "/tools": self._tools,
            "/trace": self._trace,
            "/cost": self._cost,
            "/undo": self._undo,
            "/new": self._new,
            "/save": self._save,
        }

    async def execute(self, command: str) -> bool:
        """Execute a command; return whether the chat continues. Raises RequestError for an invalid one."""
        name, _, argument = command.partition(" ")
        if name == "/quit" or name.lower() in LEAVING:
            return False
        if name not in self._actions:
            raise RequestError(f"there is no command {name}{did_you_mean(name, NAMES)}")
        await self._actions[name](argument.strip())
        return True

    async def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS_HELP))
        for usage, help_text in COMMANDS_HELP.items():
            click.echo(wrapped_line(f"  {usage:<{width}}  {help_text}", hanging=width + 4), err=True)
        click.secho(wrapped_line(KEYS_HELP, hanging=0), dim=True, err=True)

    async def _agent(self, name: str) -> None:
        if name:
            if name == AUTO:
                self._chat.route()
                _note("the router chooses the agent of the next message, and of later ones that a rule matches")
            else:
                self._chat.select(name)
                _note(f"{name} answers from now on")
            return
        current = await self._chat.current_agent()
        for agent in sorted(self._chat.runtime.catalog.current.agents.values(), key=lambda one: one.name):
            mark = "●" if current is not None and agent.name == current.name else " "
            click.echo(
                f"{mark} {agent.name}  {visible(one_line(agent.spec.description, get_terminal_size().columns))}",
                err=True,
            )

    async def _model(self, name: str) -> None:
        if name:
            self._chat.model = None if name == DEFAULT else name
        agent = await self._chat.current_agent()
        own = (agent.spec.model if agent else None) or self._chat.runtime.settings.model
        _note(f"model: {self._chat.model or f'{own} (the agent’s own)'}")

    async def _inputs(self, pairs: str) -> None:
        agent = await self._known_agent()
        if pairs:
            try:
                given = parse_inputs(tuple(split(pairs)))
            except (click.UsageError, ValueError) as error:  # of an open quotation mark
                raise RequestError(str(error)) from None
            self._chat.inputs |= checked_inputs(agent, given)
        if not agent.spec.inputs:
            _note(f"{agent.name} has no inputs")
        for name, spec in agent.spec.inputs.items():
            value = self._chat.inputs.get(name, spec.default)
            shown = as_visible_json(value) if value is not None else "missing" if spec.required else "not set"
            about = f"  {visible(spec.description)}" if spec.description else ""
            click.echo(f"  {name} = {shown}{click.style(about, dim=True)}", err=True)

    async def _plan(self, _: str) -> None:
        plan = self._chat.last.plan if self._chat.last else None
        if plan is None:
            _note("the last answer had no plan")
            return
        click.echo(visible(plan.goal), err=True)
        for step in plan.steps:
            click.echo(f"  {MARKS[step.status]} {step.id}  {visible(step.description)}", err=True)

    async def _tools(self, _: str) -> None:
        agent = await self._known_agent()
        words = {"allow": "allowed", "ask": "asks", "deny": "denied"}
        found = explain_tools(agent)
        rows = [(one.tool.name, words[one.verdict.kind], str(one.verdict)) for one in found if one.is_sent]
        show_table(("tool", "decision", "because"), rows)
        if deferred := agent.toolset.deferred:
            _note(f"and {counted(len(deferred), 'tool')} that the model searches for: agentsd explain {agent.name}")
        if not rows:
            _note(f"{agent.name} has no tools")

    async def _trace(self, _: str) -> None:
        if self._chat.last is None:
            _note("there is no run yet")
            return
        for line in requested_waterfall(await self._chat.runtime.store.spans(self._chat.last.run_id), sys.stderr):
            click.echo(line, err=True)

    async def _cost(self, _: str) -> None:
        runs = await runs_of(self._chat.runtime.store, await self._chat.stored())
        cost = sum(info.cost_usd or 0.0 for info in runs)
        unknown = sum(info.cost_usd is None for info in runs)
        priced = f", ${cost:.4f}" if cost or not unknown else ""
        priced += f", cost of {counted(unknown, 'run')} unknown" if unknown else ""
        if (last := self._chat.last) is not None:
            _note(f"last answer: {last.usage.total_tokens:,} tokens in {last.elapsed_ms / 1000:.1f} s")
        _note(f"this conversation: {counted(len(runs), 'run')}, {sum(info.tokens for info in runs):,} tokens{priced}")

    async def _undo(self, _: str) -> None:
        """Continue in a copy of the conversation without its last turn; the original stays stored."""
        found = await self._chat.stored()
        if found.open_run is not None:
            raise RequestError(f"the last run is not finished; decide it first: agentsd runs decide {found.open_run}")
        turns = list(turns_of(found.messages))
        if not turns:
            raise RequestError("there is no message to take back")
        self._chat.conversation = new_conversation()
        kept = [message for turn in turns[:-1] for message in turn]
        if kept:
            await self._store_copy(found, kept)
        text = one_line(visible(turns[-1][0].content), UNDONE_CHARS)
        _note(f"taken back: {text} (now conversation {self._chat.conversation}; {found.id} keeps it)")

    async def _store_copy(self, found: Conversation, messages: Sequence[Message]) -> None:
        store = self._chat.runtime.store
        state = RunState(
            agent=found.agent or "",
            conversation_id=self._chat.conversation,
            user=found.user,
            tenant=found.tenant,
            messages=[*messages],
            session=dict(found.session),
            metadata={"imported": True},
        )
        copy = await store.conversation(self._chat.conversation, found.tenant, found.user)
        await store_as_turn(store, copy, state, await load_files(store, messages))

    async def _new(self, _: str) -> None:
        self._chat.conversation, self._chat.last = new_conversation(), None
        _note(f"new conversation {self._chat.conversation}")

    async def _save(self, path: str) -> None:
        found = await self._chat.stored()
        if not found.messages:
            raise RequestError("there is nothing to save: the conversation has no answer yet")
        path = path or f"chat-{found.id}.md"
        if path.endswith(".json"):
            files = await load_files(self._chat.runtime.store, found.messages)
            write_out(as_json_text(exported(found.messages, "messages", files=files)), path)
        else:
            write_out("\n".join(_as_markdown(found.messages)), path)

    async def _known_agent(self) -> Agent:
        if (agent := await self._chat.current_agent()) is None:
            raise RequestError("the agent is not known before the first message: select one with /agent NAME")
        return agent


def _as_markdown(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the lines of a document with the texts of users and agents."""
    for message in messages:
        if message.role in ("user", "assistant") and message.content.strip():
            yield f"## {'You' if message.role == 'user' else 'Answer'}\n\n{message.content.strip()}\n"


def _note(text: str) -> None:
    click.secho(f"({visible(text)})", dim=True, err=True)
