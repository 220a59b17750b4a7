"""Gemini's `generateContent`, also on Vertex AI."""

from __future__ import annotations

import re

from tests.support.peers.rule import Body, Peer, Refused, Sent
from tests.support.peers.schemas import refused_by_gemini

_OPTIONS = {
    *("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"),
    *("labels", "store", "serviceTier"),
}
_CONFIG = {
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "candidateCount", "thinkingConfig"),
    *("responseMimeType", "responseSchema", "responseJsonSchema", "presencePenalty", "frequencyPenalty", "logprobs"),
    *("responseLogprobs", "responseModalities", "mediaResolution", "speechConfig", "imageConfig"),
}
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


def error(refused: Refused) -> Body:
    """Return an error as in https://github.com/microsoft/vscode/issues/299295."""
    return {"error": {"code": refused.status, "message": refused.message, "status": "INVALID_ARGUMENT"}}


def _contents(sent: Sent) -> list[Body]:
    return list(sent.body.get("contents") or ())


def _of(content: Body, key: str) -> list[Body]:
    return [part[key] for part in content.get("parts") or () if key in part]


def options(sent: Sent) -> None:
    """Refuse unknown names: https://github.com/glowingjade/obsidian-smart-composer/issues/455.

    The names are those of https://ai.google.dev/api/generate-content.
    """
    given = [("", name) for name in sent.body.keys() - _OPTIONS]
    given += [("generation_config", name) for name in (sent.body.get("generationConfig") or {}).keys() - _CONFIG]
    for place, name in given:
        at = f" at '{place}'" if place else ""
        raise Refused(f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.')


def contents(sent: Sent) -> None:
    """Refuse other roles than user and model, and contents without parts: https://ai.google.dev/api/caching#Content."""
    if not _contents(sent):
        raise Refused("* GenerateContentRequest.contents: contents is not specified")
    for place, content in enumerate(_contents(sent)):
        if content.get("role") not in ("user", "model"):
            raise Refused("Please use a valid role: user, model.")
        if not content.get("parts"):
            said = f"* GenerateContentRequest.contents[{place}].parts: contents.parts must not be empty."
            raise Refused(said)


def order_of_turns(sent: Sent) -> None:
    """Refuse calls and responses in another order.

    Seen in https://github.com/google-gemini/gemini-cli/issues/26486 and
    https://github.com/langchain-ai/langchain/issues/27799.
    """
    before: Body = {}
    for content in _contents(sent):
        calls, responses = _of(content, "functionCall"), _of(content, "functionResponse")
        if calls and before.get("role") != "user":
            said = "a user turn or after a function response turn."
            raise Refused(f"Please ensure that function call turn comes immediately after {said}")
        if responses and not _of(before, "functionCall"):
            raise Refused("Please ensure that function response turn comes immediately after a function call turn.")
        before = content


def as_many_responses_as_calls(sent: Sent) -> None:
    """Refuse calls without responses: https://github.com/microsoft/vscode/issues/299295."""
    every = _contents(sent)
    for content, following in zip(every, [*every[1:], {}], strict=True):
        if len(_of(content, "functionCall")) != len(_of(following, "functionResponse")):
            said = "is equal to the number of function call parts of the function call turn."
            raise Refused(f"Please ensure that the number of function response parts {said}")


def function_names(sent: Sent) -> None:
    """Refuse names of other characters: https://ai.google.dev/api/caching#FunctionDeclaration."""
    for tool in sent.body.get("tools") or ():
        for place, declared in enumerate(tool.get("functionDeclarations") or ()):
            if not _NAME.fullmatch(declared["name"]):
                at = f"* GenerateContentRequest.tools[0].function_declarations[{place}].name"
                raise Refused(f"{at}: Invalid function name. Must start with a letter or an underscore.")


def parameters(sent: Sent) -> None:
    """Refuse schemas outside of Gemini's subset: https://ai.google.dev/api/caching#FunctionDeclaration."""
    for tool in sent.body.get("tools") or ():
        for place, declared in enumerate(tool.get("functionDeclarations") or ()):
            schema = declared.get("parametersJsonSchema")
            if schema is not None and (why := refused_by_gemini(schema)):
                at = f"tools[0].function_declarations[{place}].parameters_json_schema"
                raise Refused(f"Invalid JSON payload received at '{at}'. {why}")


def signatures(sent: Sent) -> None:
    """Refuse calls of the turn without their thought signature, for models that require it.

    See https://ai.google.dev/gemini-api/docs/thought-signatures and
    https://github.com/langgenius/dify-official-plugins/issues/2088.
    """
    if "gemini-3" not in sent.model:
        return
    every = _contents(sent)
    last = max((place for place, content in enumerate(every) if _begins_turn(content)), default=-1)
    for place, content in enumerate(every):
        calls = [part for part in content["parts"] if "functionCall" in part]
        if place > last and calls and not calls[0].get("thoughtSignature"):
            name = calls[0]["functionCall"]["name"]
            said = "Function call is missing a thought_signature in functionCall parts. This is required for tools"
            raise Refused(f"{said} to work correctly. function call `default_api:{name}` , position {place}.")


def _begins_turn(content: Body) -> bool:
    return content["role"] == "user" and not _of(content, "functionResponse")


GEMINI = Peer(
    "gemini",
    "gemini/gemini-3-pro-preview",
    (options, contents, order_of_turns, as_many_responses_as_calls, function_names, parameters, signatures),
    error,
    api="gemini",
)
