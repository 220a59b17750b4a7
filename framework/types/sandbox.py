"""Limits of the sandbox in which an agent's shell commands run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from framework.types.frozen import Duration, Frozen

FolderName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]


class SandboxLimits(Frozen):
    """What commands in the sandbox see and use. A text is the program: `sandbox: bubblewrap`."""

    program: Literal["none", "bubblewrap"] = "none"
    """What isolates the commands. `none`: no command is executed. `bubblewrap`: bwrap, on Linux."""
    read: tuple[FolderName, ...] = ()
    """Folders, relative to `base_path`, that commands can read: `docs` is `/project/docs`."""
    write: FolderName | None = None
    """A folder, relative to `base_path`, that commands can also write, and in which they start. Default: none, so that
    nothing is kept."""
    network: bool = False
    """Whether commands have the network of this machine, without the limits of `tools.http`."""
    env: tuple[EnvironmentName, ...] = ()
    """Names of the environment variables that commands get, such as `LANG`."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit of a command. Everything that it started ends with it."""
    memory_mb: Annotated[int, Field(ge=16, le=1_000_000)] = 1024
    """Memory of each of its processes, in MB."""
    processes: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Number of its processes and threads."""
    disk_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Size of `/tmp`, of each file, and by how much a command may let the folder `write` grow, in MB."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept the name of the program alone."""
        return {"program": value} if isinstance(value, str) else value

    @property
    def is_on(self) -> bool:
        """Whether commands are executed."""
        return self.program != "none"

    def narrowed_by(self, other: SandboxLimits) -> SandboxLimits:
        """Return limits that permit only what both permit."""
        return SandboxLimits(
            program=self.program if self.program == other.program else "none",
            read=tuple(folder for folder in self.read if folder in other.read),
            write=self.write if self.write == other.write else None,
            network=self.network and other.network,
            env=tuple(name for name in self.env if name in other.env),
            timeout=min(self.timeout, other.timeout),
            memory_mb=min(self.memory_mb, other.memory_mb),
            processes=min(self.processes, other.processes),
            disk_mb=min(self.disk_mb, other.disk_mb),
        )
