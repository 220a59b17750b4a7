"""Strict peers: what the providers of models refuse, with their statuses and words.

A server of `tests/support/wire.py` answers from its script only what its peer accepts. `rule` says what a peer is; each
rule names its source. A rule that refuses a request of this project is right until its source says otherwise.
"""

from tests.support.peers.anthropic import ANTHROPIC
from tests.support.peers.chat import CHAT, OPENAI_CHAT
from tests.support.peers.gateways import DEEPSEEK, GEMINI_CHAT, GROQ, OPENROUTER
from tests.support.peers.gemini import GEMINI
from tests.support.peers.mistral import MISTRAL
from tests.support.peers.responses import RESPONSES
from tests.support.peers.rule import Peer
from tests.support.peers.templates import LLAMA_CPP, MISTRAL_ON_VLLM, VLLM

PEERS = (
    *(OPENAI_CHAT, RESPONSES, ANTHROPIC, GEMINI, MISTRAL, DEEPSEEK, GROQ, GEMINI_CHAT, OPENROUTER),
    *(VLLM, LLAMA_CPP, MISTRAL_ON_VLLM),
)


def peer_of(path: str) -> Peer:
    """Return what the API at a path requires, whoever serves it."""
    if path.endswith("/chat/completions"):
        return CHAT
    if path.endswith("/responses"):
        return RESPONSES
    return GEMINI if path.lower().endswith("generatecontent") else ANTHROPIC


__all__ = ["PEERS", "Peer", "peer_of"]
