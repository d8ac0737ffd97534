"""The settings in the folder of a published model (network, generation, tokenizer), and its special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ModelError

SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
ROLES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
# What a tokenizer that says nothing of its special tokens has, by the `model_type` of its network.
USUAL: dict[str, dict[str, str]] = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bart": {
        "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>",
    },
    "t5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "gpt2": {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"},
    "marian": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
}  # fmt: skip
ALIKE = {
    "distilbert": "bert", "roberta": "bart", "xlm-roberta": "bart", "mbart": "bart", "mt5": "t5", "whisper": "gpt2",
}  # fmt: skip  # which of these others have


@dataclass(frozen=True)
class Given:
    """The content of `config.json`, `generation_config.json`, and of the tokenizer's settings."""

    folder: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    settings: Mapping[str, Any]

    @staticmethod
    def read(folder: Path, config: Mapping[str, Any]) -> Given:
        generation, settings = (read_json(folder / name) for name in ("generation_config.json", SETTINGS))
        return Given(folder, config, generation, {**read_json(folder / SPECIAL), **settings})

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type"))

    def special(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The role and the text of each special token, with how it is found in a text."""
        usual = USUAL.get(ALIKE.get(self.kind, self.kind), {})
        for role in ROLES:
            found = self.settings.get(f"{role}_token", usual.get(role))
            if isinstance(found, str):
                yield role, {"content": found}
            elif isinstance(found, dict) and isinstance(found.get("content"), str):
                yield role, found
        for name in ("additional_special_tokens", "extra_special_tokens"):
            more = self.settings.get(name) or []
            for found in more.values() if isinstance(more, dict) else more:
                yield "", {"content": found} if isinstance(found, str) else dict(found)

    def option(self, name: str) -> Any:
        """A setting of generation_config.json, or of config.json, where older models have it."""
        found = self.generation.get(name)
        return self.config.get(name) if found is None else found


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a file, by name; none, if there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} should hold settings by name, not {type(found).__name__}")
    return found
