"""Agent Skills: folders with instructions, which a model loads when a task needs them, and the tools that do so.

A skill's text and files are those of a generation, in memory: the tools open no file, so no path leads out of a skill,
and a run sees the version that it started with. What a skill contains is data: it is never rendered, and permits
nothing.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from framework.tools.arguments import SchemaArguments
from framework.tools.child_processes import output_text, require_sandbox, run_sandboxed
from framework.tools.files import split_path
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ToolError
from framework.types.messages import Message, ToolDefinition
from framework.types.text import did_you_mean, shorten, visible

SKILL_LOAD, SKILL_READ, SKILL_RUN = "skill.load", "skill.read", "skill.run"
"""The tools of agents with skills. They are offered like sub-agents: by the key `skills`, not by `tools.allow`."""
MAX_SKILL_CHARS = 100_000
"""Characters of a skill's text. A longer one is an error: it would fill the context window of many models."""
_MAX_READ_CHARS, _MAX_READ_LINES = 16_000, 400
_MAX_LISTED_FILES = 50
_MAX_ARGUMENTS, _MAX_ARGUMENT_CHARS = 100, 10_000
_PREVIEW_CHARS = 4_000
_INSIDE = "/skills"
"""Where scripts find the files of skills."""
_INTERPRETERS: Mapping[str, str] = {".py": "python3", ".sh": "sh", ".bash": "bash", ".js": "node", ".mjs": "node"}
_CONTEXT = "context"
_CLOSING_TAG = re.compile(r"</\s*(skill_content|available_skills)\s*>", re.IGNORECASE)
_OMITTED = b"\0"
"""First byte of what stands for the content of a file that is not text, or is large."""


@dataclass(frozen=True, slots=True)
class AgentSkill:
    """A folder with a valid `SKILL.md`."""

    name: str
    description: str
    path: str
    """Path of its `SKILL.md`, relative to the project's root."""
    source: str
    """The text of that file."""
    body: str
    """The text below the front matter."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Its other files by path, relative to its folder. Those that are not text are `omitted_content`."""
    digest: str = ""
    """Digest of all of its files, with their paths."""
    asks_for: tuple[str, ...] = ()
    """Its `allowed-tools`: names of tools of other programs. They are shown, and permit nothing."""
    license: str = ""
    compatibility: str = ""
    is_pinned: bool = False
    """Whether it is an earlier version that a run was stored with; its files have changed since."""

    @property
    def folder(self) -> str:
        """The folder, relative to the project's root."""
        return self.path.rpartition("/")[0]


def omitted_content(content: bytes, digest: str | None = None, size: int | None = None) -> bytes:
    """Return what a generation keeps of a file that is not text, or is large: its size and its digest."""
    size = len(content) if size is None else size
    return _OMITTED + f"{size} {digest or sha256(content).hexdigest()}".encode()


def is_omitted(content: bytes) -> bool:
    """Return whether a file of a skill is kept as `omitted_content`. No text contains the byte that it starts with."""
    return content.startswith(_OMITTED)


def file_bytes(content: bytes) -> int:
    """Return the size of a file of a skill."""
    return int(content[1:].split()[0]) if is_omitted(content) else len(content)


def skill_tools(
    skills: Mapping[str, AgentSkill], loadable: tuple[str, ...], scripts: Literal["never", "ask", "allow"] = "never"
) -> list[Tool]:
    """Return the tools of an agent with these skills. Their contract changes with each file of a skill.

    `loadable` names those that are not part of its system prompt already.
    """
    revision = sha256("".join(f"{name}{skill.digest}" for name, skill in sorted(skills.items())).encode()).hexdigest()
    note = f"Revision {revision[:8]} of the skills."

    async def load(name: str, context: ToolContext) -> str:
        return skill_text(_known(skills, name), context)

    async def read(name: str, path: str, start_line: int = 1, *, context: ToolContext) -> str:
        content = _file(_known(skills, name), path, context)
        return _lines_from(content.decode("utf-8-sig", "replace"), start_line)

    name = {"type": "string", "description": "Name of the skill."}
    tools = []
    if loadable:
        about = f"Load a skill: its instructions for a task, and the names of its files. {note}"
        tools.append(_tool(SKILL_LOAD, about, {"name": {**name, "enum": list(loadable)}}, ["name"], load))
    if any(skill.files or skill.is_pinned for skill in skills.values()):
        about = f"Read a file of a skill, such as references/forms.md, from a line on. {note}"
        more = {
            "path": {"type": "string", "description": "Path of the file, relative to the skill's folder."},
            "start_line": {"type": "integer", "minimum": 1, "default": 1, "description": "The first line to read."},
        }
        tools.append(_tool(SKILL_READ, about, {"name": name, **more}, ["name", "path"], read))
        if scripts != "never":
            tools.append(_run_tool(skills, name, note))
    return tools


def _run_tool(skills: Mapping[str, AgentSkill], name: Mapping[str, Any], note: str) -> Tool:
    def preview(name: str, path: str, arguments: Sequence[str] = (), *, context: ToolContext) -> str:
        """Return the script, for the person who is asked."""
        _require_arguments(arguments)
        require_sandbox(context.sandbox)
        script = _file(_known(skills, name), path, context)
        return shorten(script.decode("utf-8-sig", "replace"), _PREVIEW_CHARS)

    async def run(name: str, path: str, arguments: Sequence[str] = (), *, context: ToolContext) -> str:
        _require_arguments(arguments)
        return await _executed(_known(skills, name), path, arguments, context)

    about = (
        "Execute a script of a skill in a sandbox, such as scripts/fill.py; return what it prints, and its exit code "
        f"unless it is 0. The skill's text says which scripts there are and what they take. {note}"
    )
    more = {
        "path": {"type": "string", "description": "Path of the script, relative to the skill's folder."},
        "arguments": {"type": "array", "items": {"type": "string"}, "description": "Arguments of its command line."},
    }
    return _tool(
        SKILL_RUN,
        about,
        {"name": name, **more},
        ["name", "path"],
        run,
        risk="medium",
        idempotent=False,
        preview=preview,
    )


def _require_arguments(arguments: Sequence[str]) -> None:
    if len(arguments) > _MAX_ARGUMENTS or any(len(one) > _MAX_ARGUMENT_CHARS or "\0" in one for one in arguments):
        raise ToolError(f"a script takes at most {_MAX_ARGUMENTS} texts of {_MAX_ARGUMENT_CHARS} characters")


async def _executed(skill: AgentSkill, path: str, arguments: Sequence[str], context: ToolContext) -> str:
    """Execute a script on a copy of the skill's files of this generation."""
    script, name = _file(skill, path, context), "/".join(split_path(path))
    program = [] if script.startswith(b"#!") else [_INTERPRETERS.get(Path(name).suffix, "")]
    if program == [""]:
        raise ToolError(f"{name!r} is no script: it has neither a first line with #! nor a known ending")
    # A cancelled call may still write: what is left then is in the system's folder for temporary files.
    with tempfile.TemporaryDirectory(prefix="agentsd-skill-", ignore_cleanup_errors=True) as folder:
        await asyncio.to_thread(_write_files, skill, Path(folder), context)
        inside = f"{_INSIDE}/{skill.name}"
        command = [*program, f"{inside}/{name}", *arguments]
        return output_text(await run_sandboxed(command, context.sandbox, context.files, {inside: Path(folder)}))


def _write_files(skill: AgentSkill, folder: Path, context: ToolContext) -> None:
    """Write the text files of a skill that its scripts may read, readable for the user of the sandbox."""
    folder.chmod(0o755)
    files = {path: content for path, content in skill.files.items() if not is_omitted(content)}
    for path, content in {**files, skill.path.rpartition("/")[2]: skill.source.encode()}.items():
        if _denied(skill, path, context) is None:
            file = folder / path
            for parent in [*reversed(file.relative_to(folder).parents)][1:]:
                (folder / parent).mkdir(exist_ok=True)
                (folder / parent).chmod(0o755)
            file.write_bytes(content)
            file.chmod(0o755 if content.startswith(b"#!") else 0o644)


def _tool(
    name: str, description: str, properties: Mapping[str, Any], required: list[str], function: Any, **options: Any
) -> Tool:
    arguments = SchemaArguments(
        {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    )
    definition = ToolDefinition(name=name, description=description, parameters=arguments.flat)
    options = {"risk": "low", "idempotent": True, **options}
    return Tool(definition, function, arguments, _CONTEXT, source="skills", **options)


def _known(skills: Mapping[str, AgentSkill], name: str) -> AgentSkill:
    if name not in skills:  # the policy has denied it already
        raise ToolError(f"there is no skill {name!r}{did_you_mean(name, sorted(skills))}")
    return skills[name]


def skill_text(skill: AgentSkill, context: ToolContext | None = None) -> str:
    """Return a skill as a model gets it: its text between two tags, which it cannot close, and a list of its files."""
    lines = [f'<skill_content name="{skill.name}">', without_tags(skill.body).strip()]
    files = [path for path in skill.files if context is None or _denied(skill, path, context) is None]
    if files:
        lines += ["", f"Files of this skill, which {SKILL_READ} returns:"]
        lines += [f"- {visible(path)} ({_size(skill.files[path])})" for path in files[:_MAX_LISTED_FILES]]
        more = len(files) - _MAX_LISTED_FILES
        lines += [f"- and {more} more"] if more > 0 else []
    return "\n".join((*lines, "</skill_content>"))


def without_tags(text: str) -> str:
    """Return a text of a skill without the tags that end such a text in prompts."""
    return _CLOSING_TAG.sub("", text)


def _file(skill: AgentSkill, path: str, context: ToolContext) -> bytes:
    """Return a text file of a skill; raise ToolError if the model may not have it."""
    parts = split_path(path)
    if parts[:1] == ("/",):
        raise ToolError("the path is outside the skill's folder: write it as in the list of the skill's files")
    if skill.is_pinned:
        raise ToolError(f"the files of the skill {skill.name} have changed since this run started: start a new run")
    name = "/".join(parts)
    if pattern := _denied(skill, name, context):
        raise ToolError(f"{name!r} is denied by tools.files.deny: {pattern}")
    if name == skill.path.rpartition("/")[2]:
        raise ToolError(f"{name} is the skill's text: load it with {SKILL_LOAD}")
    content = skill.files.get(name)
    if content is None:
        names = [known for known in skill.files if _denied(skill, known, context) is None]
        raise ToolError(f"the skill {skill.name} has no file {name!r}{did_you_mean(name, names)}")
    if is_omitted(content):
        raise ToolError(f"{name!r} is not a text that can be read here ({_size(content)})")
    return content


def _denied(skill: AgentSkill, path: str, context: ToolContext) -> str | None:
    """Return the pattern of `tools.files.deny` that denies a file of a skill, or None."""
    return context.files.denying_pattern((*skill.folder.split("/"), *path.split("/")))


def _lines_from(text: str, start_line: int) -> str:
    """Return lines of a text, and how to read on if there are more."""
    lines = text.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        return "(the file is empty)"
    if not 1 <= start_line <= len(lines):
        raise ToolError(f"the file has {len(lines)} lines: start_line must be from 1 to {len(lines)}")
    chosen: list[str] = []
    room = _MAX_READ_CHARS
    for line in lines[start_line - 1 : start_line - 1 + _MAX_READ_LINES]:
        if chosen and len(line) + 1 > room:
            break
        chosen.append(line if len(line) <= _MAX_READ_CHARS else f"{line[:_MAX_READ_CHARS]}… (the line is longer)")
        room -= len(line) + 1
    following = start_line + len(chosen)
    if following <= len(lines):
        chosen.append(f"({len(lines) - following + 1} more lines: continue with start_line={following})")
    return "\n".join(chosen)


def _size(content: bytes) -> str:
    size = file_bytes(content)
    return f"{size} bytes" if size < 1024 else f"{size / 1024:.1f} KB"


def skill_calls(messages: Sequence[Message]) -> dict[str, str]:
    """Return the name of each skill that these messages load, by the id of the call."""
    calls = (call for message in messages for call in message.tool_calls if call.tool == SKILL_LOAD)
    loaded = {message.tool_call_id for message in messages if message.role == "tool" and message.status == "success"}
    return {call.id: str(call.arguments.get("name")) for call in calls if call.id in loaded}
