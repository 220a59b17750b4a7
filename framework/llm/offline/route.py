"""How the offline stand-in chooses an agent: by the words that a message shares with what is said of the agents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from framework.llm.offline.words import clauses, words
from framework.types.messages import Message

_AGENT = re.compile(r"^- ([a-z][a-z0-9_-]*): (.*)$", re.MULTILINE)


def choice(text: str, messages: Sequence[Message]) -> str:
    """The choice as JSON; its confidence is 0 where no word is shared."""
    listed = [found for message in messages if message.role == "system" for found in _AGENT.findall(message.content)]
    said = words(text)
    shared = {name: sorted(said & (words(described) | words(name))) for name, described in listed}
    agent = max(shared, key=lambda name: len(shared[name]), default="")
    hits = shared.get(agent, [])
    alone = len(shared) == 1
    return json.dumps(
        {
            "agent": agent,
            "executor": "plan" if len(clauses(text)) > 1 else "react",
            "reason": f"it is about {', '.join(hits)}" if hits else "nothing else is known of it",
            "confidence": 1.0 if alone else round(len(hits) / (len(hits) + 1), 2),
        }
    )
