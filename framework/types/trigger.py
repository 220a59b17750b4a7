"""A trigger file as typed data: what starts runs by itself, at times or by HTTP requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.spec import AgentName

Template = Annotated[str, StringConstraints(min_length=1, max_length=64 * 1024)]
Owner = Annotated[str, StringConstraints(min_length=1, max_length=200)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,100}$")]
Missed = Literal["skip", "run_once"]
Overlap = Literal["skip", "queue", "allow"]


class HmacScheme(Frozen):
    """A signature in a header: the HMAC of the body, or of `TIMESTAMP.BODY`."""

    header: HeaderName
    """Header with the signature."""
    algorithm: Literal["sha256", "sha512"] = "sha256"
    """Hash function."""
    encoding: Literal["hex", "base64"] = "hex"
    """How the header encodes the signature."""
    prefix: Annotated[str, StringConstraints(max_length=100)] = ""
    """Text before the signature in the header, such as `sha256=`."""
    timestamp: HeaderName | None = None
    """Header with the time of the request in Unix seconds, which is signed with the body. Default: the body alone is
    signed, so that a recorded request can be sent again; a repetition starts no run for seven days."""


class Verification(Frozen):
    """How requests of another sender are signed."""

    hmac: HmacScheme
    """The scheme."""


class Webhook(Frozen):
    """Starts a run for each signed request to `POST /hooks/NAME`."""

    verify: Literal["github", "stripe", "slack"] | Verification
    """How requests are signed: as `github`, `stripe` or `slack` do, or `{hmac: {header: NAME}}`."""
    secret: SecretStr
    """Secret of the signatures, as `${VARIABLE}`."""
    when: dict[str, str | int | float | bool] = {}
    """Conditions that a request must meet, as in rules of tools: names are parts of the body such as `issue.state`, or
    `header.NAME`. A condition that cannot be evaluated is not met."""
    message: Template | None = None
    """The message, if the file has none at its top level."""
    dedupe: Template | None = None
    """Template of the id of a delivery; a repetition starts no run for seven days. Default: the sender's id, or else
    the digest of the body."""
    tolerance: Duration = Field(default=300.0, validate_default=False)
    """How much the time of a signature may differ from the present time."""
    max_bytes: Annotated[int, Field(ge=1, le=4_000_000, strict=True)] = 1_000_000
    """Size limit of a request's body."""

    @field_validator("secret")
    @classmethod
    def _require_secret(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value().strip()) < MIN_SECRET_CHARS:
            raise ValueError(f"a secret needs at least {MIN_SECRET_CHARS} characters")
        return value


MIN_SECRET_CHARS = 8
"""Anyone can compute the signatures of an empty secret, and guess a short one."""


class TriggerSpec(Frozen):
    """A file in `triggers.d/`. The name of the file is the name of the trigger."""

    version: Literal[1] = 1
    """Version of the file format."""
    description: str = ""
    """What the trigger is for, as lists show it."""
    agent: AgentName
    """Agent that handles the message."""
    message: Template | None = None
    """Template of the user's message. A cron trigger has the variable `time`; a webhook has `body`, `header` and
    `digest`, whose values are inserted between `<untrusted>` tags."""
    inputs: dict[str, Any] = {}
    """Values of the variables that the agent declares."""
    user: Owner | None = None
    """Owner of the runs. Default: `trigger:NAME`."""
    tenant: Owner | None = None
    """Tenant of the runs. Default: none."""
    overlap: Overlap | None = None
    """What happens while the last run has not ended: `skip` the new one, `queue` it, or `allow` both. Default: `skip`
    for cron, `allow` for webhooks."""
    cron: Annotated[str, StringConstraints(max_length=200)] | None = None
    """When to start a run, as five fields: minute, hour, day of the month, month, day of the week."""
    timezone: Annotated[str, StringConstraints(max_length=100)] = "UTC"
    """Time zone of `cron`, such as `Europe/Berlin`."""
    missed: Missed = "skip"
    """What happens with times at which no process was alive for a minute: `skip` them, or `run_once` for all together.
    """
    webhook: Webhook | None = None
    """Start a run for each signed HTTP request."""

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        return check_version(value)

    @field_validator("user", "tenant")
    @classmethod
    def _require_printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("expected printable characters only")
        return value

    @model_validator(mode="after")
    def _one_start(self) -> TriggerSpec:
        if (self.cron is None) == (self.webhook is None):
            raise ValueError("write either `cron` or `webhook`")
        if (self.message is None) == (self.webhook is None or self.webhook.message is None):
            raise ValueError("write one `message`")
        if self.webhook and not self.model_fields_set.isdisjoint({"timezone", "missed"}):
            raise ValueError("`timezone` and `missed` require `cron`")
        return self

    @property
    def template(self) -> str:
        """The template of the message."""
        return self.message or (self.webhook and self.webhook.message) or ""

    @property
    def overlapping(self) -> Overlap:
        """The overlap policy."""
        return self.overlap or ("allow" if self.webhook else "skip")
