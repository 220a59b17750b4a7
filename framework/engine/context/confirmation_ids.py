"""The ids of questions to a human: bound to content by digests, so that an answer counts for that content alone."""

from __future__ import annotations

from collections.abc import Sequence

from framework.engine.context.run_context import RunContext
from framework.types.digest import content_digest, earlier_digest


def question_id(run: RunContext, start: str, texts: Sequence[str], *, mark: str = "~", end: str = "") -> str:
    """The id of a question.

    Args:
        run: the run that asks it.
        start: what the id begins with.
        texts: what the answer is bound to; their digests follow `start`. An answer under the same id with digests of
            64 bits, as older stores have them, counts as well: the content is the same.
        mark: put before each digest.
        end: what the id ends with.
    """
    earlier, now = (
        f"{start}{''.join(mark + digest(text) for text in texts)}{end}" for digest in (earlier_digest, content_digest)
    )
    return earlier if earlier in run.services.root.decisions else now
