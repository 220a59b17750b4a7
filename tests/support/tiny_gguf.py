"""Writes a small language model for llama.cpp: a table of which byte follows which, and three attention heads.

Run by the environment of llama.cpp: `python tiny_gguf.py FILE`. The model writes words of random letters, and ends its
text after a period, or never if the prompt contains `<endless>`. If a prompt offers tools and contains no result yet,
the model begins a call; the server's grammar keeps the call in form, as it does for large models. Nothing is
downloaded, and the file (0.5 MB) is the same on every machine.

Each embedding is a constant in dimension 0 and one-hot at the token's own dimension, so that the rows of the output
matrix are the logits of the next token.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TEMPLATE = (Path(__file__).parent / "qwen_template.jinja").read_text("utf-8")
USER_TOKENS = ("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tool_response>", "</tool_response>", "<endless>")
CONTROL_TOKENS = ("<unk>", "<|im_start|>", "<|im_end|>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""A space, in vocabularies of this kind."""
TOKENS = (*CONTROL_TOKENS, *USER_TOKENS, SPACE, *(f"<0x{byte:02X}>" for byte in range(256)))
IDS = {token: number for number, token in enumerate(TOKENS)} | {
    chr(byte): TOKENS.index(f"<0x{byte:02X}>") for byte in range(128)
}
END = "<|im_end|>"

WIDTH, HEAD, CONTEXT = 288, 32, 131_072
FIRST_ONE_HOT = 1
SIGHTS: Mapping[str, int] = {"<tools>": 285, "<tool_response>": 286, "<endless>": 287}
"""Tokens that the attention heads look for, with the dimension that reports whether the prompt contains it."""
HEADS = len(SIGHTS)
FLAG = 0.3
GAIN = (WIDTH / 2) ** 0.5
"""Value of a 1 after normalization: two dimensions of an embedding are 1."""
UNLIKELY = -12.0
"""Logit of everything else. Letters get random ones, except where NEXT excludes them."""
NEXT: Mapping[str, Mapping[str, float]] = {
    "{": {'"': 4, "}": 5},
    "[": {"]": 3, '"': 4, "{": 3, "1": 2},
    ":": {'"': 4, "{": 2, "[": 1, "t": 2, "f": 2, "n": 1, **dict.fromkeys("123456789", 2.0)},
    ",": {'"': 4, "{": 2, "1": 1},
    "}": {END: 8, "}": 4, ",": 3, "]": 3, "\n": 5},
    "]": {END: 8, "}": 4, ",": 2, "]": 3},
    ".": {END: 9, "\n": 7, '"': 5},
    '"': {":": -3, ",": -4, "}": -3, "]": -3},
    "\n": {"</tool_call>": -2, "}": -3, "<tool_call>": -20},
    "<tool_call>": {"\n": 20, '"': 5},
    "</tool_call>": {END: 8},
}


def logits() -> Any:
    """Return the logit of each next token (column) after each token (row)."""
    chance = np.random.default_rng(4711)
    table = np.full((len(TOKENS), len(TOKENS)), UNLIKELY)
    letters = [IDS[letter] for letter in string.ascii_lowercase]
    table[:, letters] = chance.normal(0, 1, (len(TOKENS), len(letters)))
    table[letters, IDS[SPACE]] = 1.5
    table[letters, IDS["."]] = 1.5
    table[IDS['"'], [IDS["a"], IDS["f"]]] = 2  # the first letters of `action` and `final`
    for digit in string.digits:
        table[IDS[digit], [IDS[char] for char in ",}]" + string.digits]] = (2, 3, 3, *[0] * 10)
        table[IDS[digit], letters] = UNLIKELY
    table[np.ix_([IDS[token] for token in (*"{[:,}].", "<tool_call>", "</tool_call>")], letters)] = UNLIKELY
    table[:, IDS["<tool_call>"]] = -40
    for token, following in NEXT.items():
        for char, logit in following.items():
            table[IDS[token], IDS[char]] = logit
    return table


def weights() -> dict[str, Any]:
    """Return the tensors: one layer, each of whose heads looks for one token."""
    embeddings = np.zeros((len(TOKENS), WIDTH))
    embeddings[:, 0] = 1
    embeddings[np.arange(len(TOKENS)), FIRST_ONE_HOT + np.arange(len(TOKENS))] = 1
    output = np.zeros((len(TOKENS), WIDTH))
    output[:, FIRST_ONE_HOT : FIRST_ONE_HOT + len(TOKENS)] = logits().T / GAIN
    output[IDS["<tool_call>"], SIGHTS["<tools>"]] = 35 / FLAG / GAIN
    output[IDS["<tool_call>"], SIGHTS["<tool_response>"]] = -12.5 / FLAG / GAIN
    output[IDS[END], SIGHTS["<endless>"]] = -60 / FLAG / GAIN
    query, key, value = (np.zeros((HEADS * HEAD, WIDTH)) for _ in range(3))
    merged = np.zeros((WIDTH, HEADS * HEAD))
    for head, (token, flag) in enumerate(SIGHTS.items()):
        still = head * HEAD + HEAD - 2  # the dimensions that rotary positions rotate least
        query[still, 0] = key[still, FIRST_ONE_HOT + IDS[token]] = 1.1
        value[head * HEAD, FIRST_ONE_HOT + IDS[token]] = 1 / GAIN
        merged[flag, head * HEAD] = FLAG
    nothing = np.zeros((HEAD, WIDTH))
    half = {
        "token_embd": embeddings,
        "output": output,
        "blk.0.attn_q": query,
        "blk.0.attn_k": key,
        "blk.0.attn_v": value,
        "blk.0.attn_output": merged,
        "blk.0.ffn_gate": nothing,
        "blk.0.ffn_up": nothing,
        "blk.0.ffn_down": nothing.T,
    }
    norms = dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), np.ones(WIDTH, np.float32))
    return {name: np.ascontiguousarray(tensor.astype(np.float16)) for name, tensor in half.items()} | norms


def write_model(path: Path) -> None:
    """Write the model to `path`."""
    kinds = gguf.TokenType
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(1e9)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    one_of_each = [kinds.UNKNOWN, *[kinds.CONTROL] * 2, *[kinds.USER_DEFINED] * len(USER_TOKENS), kinds.NORMAL]
    writer.add_token_types([*one_of_each, *[kinds.BYTE] * 256])
    writer.add_bos_token_id(IDS["<|im_start|>"])
    writer.add_eos_token_id(IDS[END])
    writer.add_unk_token_id(IDS["<unk>"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in weights().items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
