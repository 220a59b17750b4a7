"""Serves a GGUF file with llama.cpp on a free loopback port until its stdin is closed.

Run by the environment of llama.cpp: `python llama_cpp_server.py FILE CONTEXT SLOTS [TEMPLATE]`. It prints the server's
URL.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp


def serve(model: str, context: int, slots: int, template: str = "") -> None:
    """Serve `model` with `slots` parallel requests of `context` tokens each.

    `template` is the file of a chat template, as of `--chat-template-file`; empty for the model's own.
    """
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.n_ctx = context * slots
    params.n_parallel = slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.kv_unified = False
    params.warmup = False
    params.port = 0
    if template:
        params.chat_template = Path(template).read_text("utf-8")
        params.enable_reasoning = 0  # a random model would think until it is cut
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
