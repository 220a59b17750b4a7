"""Reads what a local model server reports about itself: its context window, and what it can do.

| server       | request                            | fields                                                   |
|--------------|------------------------------------|----------------------------------------------------------|
| llama.cpp    | `GET /v1/models`, `GET /props`     | `default_generation_settings.n_ctx`, `modalities`        |
| vLLM, SGLang | `GET /v1/models`                   | `max_model_len`                                          |
| LM Studio    | `GET /api/v1/models`, earlier `v0` | `context_length` of the loaded instance, `capabilities`  |
| Ollama       | `POST /api/show`, `GET /api/ps`    | `context_length` while loaded, `num_ctx`, `capabilities` |

All of them constrain answers to a JSON Schema. The context that a model was trained with is not its server's: Ollama,
LM Studio and llama.cpp usually serve less, so it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from framework.llm.capabilities import Capabilities

Fetch = Callable[[str, "dict[str, Any] | None"], Awaitable[object]]
"""Returns the JSON at a URL, for GET, or for POST with a body; None if there is none."""
_LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
_MAX_WINDOW = 1_000_000_000
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


def is_local(base_url: str | None) -> bool:
    """Return whether a URL names this machine or one in a private network; names are not resolved."""
    host = (urlsplit(base_url or "").hostname or "").rstrip(".")
    try:
        return not ip_address(host).is_global
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_LOCAL_DOMAINS))


async def ask_server(fetch: Fetch, base_url: str, model: str) -> Capabilities | None:
    """Return what the server reports about a model; the rest is unknown. None if it is none of these servers.

    Args:
        fetch: sends the requests; its errors propagate.
        base_url: the server's URL, with `/v1`.
        model: the model's name on the server.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    listed = _listed(await fetch(f"{base_url.rstrip('/')}/models", None), model)
    owner = listed.get("owned_by")
    if owner == "llamacpp":
        return await _ask_llama_cpp(fetch, root, model, listed)
    if window := _tokens(listed.get("max_model_len")):
        return Capabilities(context_window=window, json_schema=True if owner in ("vllm", "sglang") else None)
    return await _ask_lm_studio(fetch, root, model) or await _ask_ollama(fetch, root, model)


async def _ask_llama_cpp(fetch: Fetch, root: str, model: str, listed: Mapping[str, Any]) -> Capabilities:
    # Without `autoload`, a server of several models would load this one to answer.
    query = urlencode({"model": model, "autoload": "false"})
    props = _object(await fetch(f"{root}/props?{query}", None))
    window = _tokens(_object(props.get("default_generation_settings")).get("n_ctx"))
    modalities = _object(props.get("modalities"))
    return Capabilities(
        json_schema=True,
        context_window=window or _tokens(_object(listed.get("meta")).get("n_ctx")),
        images=_flag(modalities.get("vision")),
        audio=_flag(modalities.get("audio")),
    )


async def _ask_lm_studio(fetch: Fetch, root: str, model: str) -> Capabilities | None:
    for entry in _objects(_object(await fetch(f"{root}/api/v1/models", None)).get("models")):
        instances = _objects(entry.get("loaded_instances"))
        loaded = [each for each in instances if each.get("id") == model]
        if entry.get("key") == model or loaded:
            config = _object((loaded or instances or [{}])[0].get("config"))
            vision = _flag(_object(entry.get("capabilities")).get("vision"))
            return Capabilities(json_schema=True, context_window=_tokens(config.get("context_length")), images=vision)
    older = _object(await fetch(f"{root}/api/v0/models/{quote(model)}", None))
    if older.get("id") != model:
        return None
    return Capabilities(json_schema=True, context_window=_tokens(older.get("loaded_context_length")))


async def _ask_ollama(fetch: Fetch, root: str, model: str) -> Capabilities | None:
    shown = _object(await fetch(f"{root}/api/show", {"model": model}))
    if "model_info" not in shown:
        return None
    set_window = _NUM_CTX.search(str(shown.get("parameters") or ""))
    window = _tokens(int(set_window[1])) if set_window else None
    for entry in _objects(_object(await fetch(f"{root}/api/ps", None)).get("models")):
        if entry.get("name") in (model, f"{model}:latest"):
            window = _tokens(entry.get("context_length")) or window
    can = _texts(shown.get("capabilities"))  # empty in older versions
    tools, images = ("tools" in can, "vision" in can) if can else (None, None)
    return Capabilities(json_schema=True, context_window=window, tools=tools, images=images)


def _listed(models: object, model: str) -> Mapping[str, Any]:
    """Return the entry of a model in `/v1/models`: llama.cpp serves its only model under every name."""
    entries = _objects(_object(models).get("data"))
    named = [entry for entry in entries if entry.get("id") == model or model in _texts(entry.get("aliases"))]
    return (named or (entries if len(entries) == 1 else []) or [{}])[0]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _tokens(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= _MAX_WINDOW else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
