"""Child processes: what they inherit, the sandbox for commands of models, and hooks that are programs."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import framework
from framework.tools.declaration import Extension
from framework.tools.files import BaseFolder, is_hidden, open_folder, refuse_symlinks, split_path
from framework.tools.tool import ToolContext
from framework.types.errors import Refused, ToolError
from framework.types.messages import ToolCall, ToolResult
from framework.types.spec import CommandHook, HookPlace
from framework.types.text import read_json
from framework.types.tool_servers import SandboxLimits

INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Environment variables that a child process inherits. They contain no secrets."""
_PR_SET_DUMPABLE = 4  # in <linux/prctl.h>


def isolated_python(program: str, *arguments: str) -> list[str]:
    """Return the command that executes a Python program in a new interpreter, isolated from the environment.

    The search path of this process follows the standard library and the installed packages: a file in a folder on it,
    such as that of the script, may have been written by an agent and must not replace a module.

    Raises:
        FileNotFoundError: the interpreter of this process is not known.
    """
    if not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "sys.executable is not set")
    own = str(Path(framework.__file__).parent.parent)
    path = list(dict.fromkeys([own, *(entry or str(Path.cwd()) for entry in sys.path)]))
    start = f"import sys; sys.path += [entry for entry in {path!r} if entry not in sys.path]; {program}"
    return [sys.executable, "-I", "-c", start, *arguments]


def child_environment(*more: str) -> dict[str, str]:
    """Return the environment for a child that needs no keys: `INHERITED_VARIABLES`, and more by name."""
    return {name: os.environ[name] for name in (*INHERITED_VARIABLES, *more) if name in os.environ}


def forbid_inspection() -> None:
    """Deny other processes of this user access to the environment and memory of this one. Linux only.

    A child whose own environment contains no keys could otherwise read those of its parent from `/proc/PID/environ`, or
    attach to it as a debugger. Programs that the process executes are not affected, and processes with CAP_SYS_PTRACE,
    such as root's, keep their access. The process writes no core dump.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


# Commands see the programs of this machine (`/usr`), an empty `/tmp`, and below `/project` the folders that the
# operator lists, by the paths that file tools use. They see no other process, no other file and, by default, no
# network. Documentation of the program: https://github.com/containers/bubblewrap


SHELL = "shell"
"""The tool that executes commands in it."""
PROJECT = "/project"
"""Where commands find the folders of the project."""
MAX_OUTPUT_BYTES = 1_000_000
_MAX_ENTRIES = 20_000
"""Number of files in the listed folders up to which they are searched for those that no tool may read."""
_MAX_MASKED = 500
_NOBODY = 65534
_MB = 1024 * 1024
_POLL_SECONDS = 0.5
_PROBE_SECONDS = 10.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")
"""Files and folders outside `/usr` without which programs of common systems do not start."""
_NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)


@dataclass(frozen=True, slots=True)
class SandboxOutput:
    """What a command printed, and how it ended."""

    text: str
    """Standard output and standard error, as they came."""
    exit_code: int
    """Negative: the number of the signal that ended it."""
    stopped: str = ""
    """Why it was stopped: a limit that it reached."""


def output_text(done: SandboxOutput) -> str:
    """Return what a command printed, as a model reads it: with its exit code unless that is 0."""
    lines = [done.text.rstrip("\n")] if done.text.strip() else []
    if done.stopped:
        lines.append(f"(the command was stopped: {done.stopped})")
    elif done.exit_code:
        lines.append(f"(exit code {done.exit_code})")
    return "\n".join(lines) or "(it printed nothing)"


def why_unusable(limits: SandboxLimits) -> str | None:
    """Return why no sandbox can be started on this machine, or None. Starts one, which takes a few milliseconds."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    needed = ("bwrap", "prlimit", *(("setpriv",) if os.geteuid() == 0 else ()))
    if missing := [program for program in needed if shutil.which(program, path=_PATH) is None]:
        packages = "install bubblewrap and util-linux"
        return f"{' and '.join(missing)} not found in {_PATH}: {packages}"
    command = [*_isolation(limits), *_limits(limits), "true"]
    try:
        done = subprocess.run(command, capture_output=True, env={"PATH": _PATH}, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not start: {error}"
    if done.returncode == 0:
        return None
    reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
    return f"bwrap does not start here ({reason}); in containers, user namespaces are often turned off"


def require_sandbox(limits: SandboxLimits) -> None:
    """Raise ToolError if the operator has set up no sandbox."""
    if not limits.is_on:
        raise ToolError("there is no sandbox: the operator sets tools.sandbox in agentsd.yaml")


async def run_sandboxed(
    command: Sequence[str], limits: SandboxLimits, base: BaseFolder, more: Mapping[str, Path] | None = None
) -> SandboxOutput:
    """Execute a command in the sandbox, and stop everything that it started.

    Args:
        command: the program and its arguments.
        limits: what it may see and use.
        base: the base folder of file tools, with the files that no tool may read: commands cannot read them either.
        more: further folders that it can read, by their paths in the sandbox.

    Raises:
        ToolError: there is no sandbox, a folder is missing, or the listed folders have too many files.
    """
    require_sandbox(limits)
    folders = await asyncio.to_thread(lambda: [*_folders(limits, base, more or {})])
    start = f"{PROJECT}/{'/'.join(split_path(limits.write))}" if limits.write else "/tmp"
    whole = [*_isolation(limits), *folders, "--chdir", start, "--remount-ro", "/", *_limits(limits), *command]
    environment = {name: os.environ[name] for name in limits.env if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"LANG": "C.UTF-8", **environment, "PATH": _PATH, "HOME": "/tmp"},
        )
    except OSError as error:
        raise ToolError(f"the sandbox does not start: {error.strerror}") from None
    reading = asyncio.ensure_future(_read(process))
    watching = asyncio.ensure_future(_watch(limits, base))
    try:
        ended, _ = await asyncio.wait((reading, watching), return_when=asyncio.FIRST_COMPLETED)
        stopped = "" if reading in ended else watching.result()
        _kill(process)
        return SandboxOutput(await reading, await process.wait(), stopped)
    finally:
        watching.cancel()
        _kill(process)
        await asyncio.wait((reading, watching))  # its pipe closes now


def _isolation(limits: SandboxLimits) -> Iterator[str]:
    """Yield the start of the command line: namespaces, the programs of the system, and empty folders."""
    yield from ("bwrap", "--die-with-parent", "--new-session")
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try")
    if not limits.network:
        yield "--unshare-net"
    if os.geteuid() == 0:  # the number of root's processes cannot be limited: `_limits` changes the user
        yield from ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        yield from ("--cap-add", "CAP_SETPCAP")
    else:
        yield from ("--unshare-user", "--disable-userns")
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for folder in ("/etc", PROJECT):
        yield from ("--perms", "0755", "--dir", folder)
    for file in (*_SYSTEM_FILES, *(_NETWORK_FILES if limits.network else ())):
        yield from ("--ro-bind-try", file, file)
    yield from ("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
    yield from ("--perms", "1777", "--size", str(limits.disk_mb * _MB), "--tmpfs", "/tmp")


def _limits(limits: SandboxLimits) -> Iterator[str]:
    """Yield the programs that limit the command that follows them."""
    yield "--"
    if os.geteuid() == 0:
        user = ("--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups")
        yield from ("setpriv", *user, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")
    seconds = max(1, round(limits.timeout))
    yield from ("prlimit", f"--as={limits.memory_mb * _MB}", f"--nproc={limits.processes}", f"--cpu={seconds}")
    yield from (f"--fsize={limits.disk_mb * _MB}", "--core=0", "--nofile=256", "--")


def _folders(limits: SandboxLimits, base: BaseFolder, more: Mapping[str, Path]) -> Iterator[str]:
    """Yield the options that show folders of the project; raises ToolError."""
    for inside, folder in more.items():
        yield from ("--perms", "0755", "--dir", inside.rpartition("/")[0], "--ro-bind", str(folder), inside)
    written = split_path(limits.write) if limits.write else None
    shown = {split_path(folder): "--ro-bind" for folder in limits.read}
    if written is not None:
        _make_writable(base, written)
        shown[written] = "--bind"
    for parts, option in sorted(shown.items()):  # a folder stands above those inside it
        _require_folder(base, parts)
        for length in range(1, len(parts)):
            if not any(parts[:above] in shown for above in range(1, length + 1)):
                yield from ("--perms", "0755", "--dir", f"{PROJECT}/{'/'.join(parts[:length])}")
        yield from (option, str(base.path.joinpath(*parts)), f"{PROJECT}/{'/'.join(parts)}")
    outer = [parts for parts in shown if not any(parts[:length] in shown for length in range(1, len(parts)))]
    masked = [entry for parts in outer for entry in _unreadable(base, parts, written)]
    if len(masked) > _MAX_MASKED:
        raise ToolError(f"the folders of the sandbox contain more than {_MAX_MASKED} files that no tool may read")
    for parts, is_folder in masked:
        inside = f"{PROJECT}/{'/'.join(parts)}"
        yield from ("--tmpfs", inside, "--remount-ro", inside) if is_folder else ("--ro-bind", "/dev/null", inside)


def _require_folder(base: BaseFolder, parts: Sequence[str]) -> None:
    refuse_symlinks(base.path, parts)
    with open_folder(base, parts):
        pass


def _make_writable(base: BaseFolder, parts: Sequence[str]) -> None:
    refuse_symlinks(base.path, parts)
    with open_folder(base, parts, create=True) as folder:
        if os.geteuid() == 0 and os.fstat(folder).st_uid != _NOBODY:
            os.fchown(folder, _NOBODY, _NOBODY)


def _unreadable(
    base: BaseFolder, top: Sequence[str], written: Sequence[str] | None
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the files and folders below a folder that no tool may read, and whether each is a folder.

    Hard links are among them, because their content may be outside; not those that commands made in `written`.
    """
    pending, seen = [tuple(top)], 0
    while pending:
        parts = pending.pop()
        with os.scandir(base.path.joinpath(*parts)) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES:
                    raise ToolError(f"{'/'.join(top)} has more than {_MAX_ENTRIES:,} files: list smaller folders")
                path, is_folder = (*parts, entry.name), entry.is_dir(follow_symlinks=False)
                if entry.is_symlink():
                    continue  # leads nowhere but to what the sandbox shows
                is_link = not is_folder and entry.stat(follow_symlinks=False).st_nlink > 1
                is_own = written is not None and path[: len(written)] == tuple(written)
                if is_hidden(entry.name) or not base.permits(path) or (is_link and not is_own):
                    yield path, is_folder
                elif is_folder:
                    pending.append(path)


async def _read(process: asyncio.subprocess.Process) -> str:
    """Return what a process prints, up to the limit; the rest is read and dropped."""
    assert process.stdout is not None
    kept = bytearray()
    while piece := await process.stdout.read(65536):
        kept += piece[: MAX_OUTPUT_BYTES - len(kept)]
    await process.wait()
    return kept.decode("utf-8", "replace")


async def _watch(limits: SandboxLimits, base: BaseFolder) -> str:
    """Wait until a command has reached a limit, and return which."""
    folder = base.path.joinpath(*split_path(limits.write)) if limits.write else None
    most = await asyncio.to_thread(_size, folder) + limits.disk_mb * _MB if folder else 0
    loop = asyncio.get_running_loop()
    ends = loop.time() + limits.timeout
    while (left := ends - loop.time()) > 0:
        await asyncio.sleep(min(left, _POLL_SECONDS))
        if folder and await asyncio.to_thread(_size, folder) > most:
            return f"it wrote more than {limits.disk_mb} MB"
    return f"it took longer than {limits.timeout:g} s"


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; those that disappear meanwhile do not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(Path(where, name)).st_blocks * 512
    return total


def _kill(process: asyncio.subprocess.Process) -> None:
    """End bwrap; with it end the first process of the sandbox, and with that all others."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)


FOLDER = "hooks"
_MAX_OUTPUT_BYTES = 1_000_000
_MAX_REASON_CHARS = 2000
_ASKED: Mapping[HookPlace, str] = {"before_run": "message", "after_run": "output"}
"""The name of the text that a hook is asked about, in its JSON object."""
_REPLACES: tuple[HookPlace, ...] = ("after_tool", "after_run")


def program_problem(root: Path, hook: CommandHook) -> str | None:
    """Return why the program of a hook cannot be executed; None if it can."""
    program = hook.command[0] if hook.command else ""
    parts = PurePosixPath(program).parts
    if len(parts) < 2 or parts[0] != FOLDER or ".." in parts:
        return f"the program must be a file below {FOLDER}/ of the project: {program!r}"
    try:
        status = (root / program).stat()
    except (OSError, ValueError) as error:
        return f"the program {program!r} cannot be executed: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(status.st_mode) or not os.access(root / program, os.X_OK):
        return f"the program {program!r} is not an executable file: chmod +x {program}"
    return None


def command_hook(place: HookPlace, hook: CommandHook, root: Path, where: str) -> Extension:
    """Return the hook that executes a program. `where` is the `file:line` of its entry, which refusals name."""

    async def ask(context: ToolContext, *arguments: Any) -> str | ToolResult | None:
        question = {"hook": place, **_question(place, context, arguments)}
        printed = await _execute(root, hook, where, json.dumps(question, ensure_ascii=False, default=str).encode())
        return _verdict(place, printed, where, arguments)

    return Extension("hook", hook.name, ask)


def _question(place: HookPlace, context: ToolContext, arguments: tuple[Any, ...]) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "agent": context.agent,
        "run_id": context.run_id,
        "user": context.user,
        "tenant": context.tenant,
    }
    for one in arguments:
        match one:
            case ToolCall(id=key, tool=tool, arguments=given):
                asked["call"] = {"id": key, "tool": tool, "arguments": given}
            case ToolResult(status=status, output=output, error=error):
                asked["result"] = {"status": status, "output": output, "error": error}
            case _:
                asked[_ASKED[place]] = one
    return asked


async def _execute(root: Path, hook: CommandHook, where: str, question: bytes) -> bytes:
    """Return what the program printed; raise Refused unless it ends with 0. It ends with the caller."""
    try:
        process = await asyncio.create_subprocess_exec(
            root / hook.command[0],
            *hook.command[1:],
            cwd=root,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            limit=_MAX_OUTPUT_BYTES,
        )
    except OSError as error:
        raise Refused(f"{_named(hook, where)} does not start: {error.strerror}") from None
    try:
        assert process.stdin
        assert process.stdout
        with suppress(ConnectionError):  # it may decide without reading
            process.stdin.write(question)
            await process.stdin.drain()
            process.stdin.close()
        printed = await process.stdout.read(_MAX_OUTPUT_BYTES + 1)
        while len(printed) <= _MAX_OUTPUT_BYTES and (more := await process.stdout.read(_MAX_OUTPUT_BYTES)):
            printed += more
        if len(printed) > _MAX_OUTPUT_BYTES:
            raise Refused(f"{_named(hook, where)} printed more than {_MAX_OUTPUT_BYTES:,} bytes")
        if code := await process.wait():
            raise Refused(f"{_named(hook, where)} ended with exit code {code}")
        return printed
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including processes that it has started
        await process.wait()


def _verdict(place: HookPlace, printed: bytes, where: str, arguments: tuple[Any, ...]) -> str | ToolResult | None:
    """Return the replacement that a program wants, or None; raise Refused if it denies, or says anything else."""
    try:
        found = read_json(printed.decode())
    except ValueError:
        found = None
    match found:
        case {"verdict": "allow", **rest} if not rest:
            return None
        case {"verdict": "deny", "reason": str(reason), **rest} if not rest:
            raise Refused(f"{reason[:_MAX_REASON_CHARS]} ({where})")
        case {"verdict": "transform", "output": output, **rest} if not rest and place in _REPLACES:
            if place == "after_tool":
                return arguments[-1].model_copy(update={"output": output})  # type: ignore[no-any-return]  # a ToolResult
            if isinstance(output, str):
                return output
    raise Refused(f"the hook at {where} printed no verdict: its output must be one JSON object with a known `verdict`")


def _named(hook: CommandHook, where: str) -> str:
    return f"the hook {hook.command[0]} ({where})"
