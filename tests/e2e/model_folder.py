"""A model folder that Dynamo's frontend can serve: a tokenizer of single bytes, and no weights."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = "tiny-chat"
_SPECIAL = ("<|pad|>", "<|bos|>", "<|im_end|>", "<|im_start|>", "<|unk|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_model_folder(folder: Path) -> Path:
    """Writes the files of a Hugging Face model folder; returns `folder`."""
    ids = {token: number for number, token in enumerate((*_SPECIAL, *_byte_letters()))}
    special = [
        {
            "id": ids[token],
            "content": token,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for token in _SPECIAL
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<|unk|>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": [],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "unk_token": "<|unk|>",
        "model_max_length": 8192,
        "chat_template": _CHAT_TEMPLATE,
        "added_tokens_decoder": {str(token["id"]): token for token in special},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "vocab_size": len(ids),
        "bos_token_id": ids["<|bos|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    folder.mkdir(parents=True)
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
        ("config.json", config),
        ("generation_config.json", {"eos_token_id": [ids["<|im_end|>"]]}),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


def _byte_letters() -> list[str]:
    """Returns the letters by which a byte-level tokenizer writes the 256 bytes, in the order of the bytes.

    Printable bytes are themselves, the others the code points from 256 on. Source: OpenAI's GPT-2 encoder.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
