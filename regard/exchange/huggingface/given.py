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
# What a tokenizer that says nothing of its special tokens has, by its style.
FAIRSEQ = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
USUAL: dict[str, dict[str, str]] = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bart": FAIRSEQ, "xlm-roberta": FAIRSEQ, "mbart": FAIRSEQ, "mbart50": FAIRSEQ,
    "t5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "gpt2": {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"},
    "marian": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
}  # fmt: skip
# The style of a tokenizer by its class (without "Fast"), and where none is named, by the `model_type` of its network.
STYLES = {
    "BertTokenizer": "bert", "DistilBertTokenizer": "bert", "RobertaTokenizer": "bart", "BartTokenizer": "bart",
    "XLMRobertaTokenizer": "xlm-roberta", "MBartTokenizer": "mbart", "MBart50Tokenizer": "mbart50",
    "T5Tokenizer": "t5", "MT5Tokenizer": "t5", "GPT2Tokenizer": "gpt2", "WhisperTokenizer": "gpt2",
    "MarianTokenizer": "marian",
}  # fmt: skip
OF_KINDS = {
    "bert": "bert", "distilbert": "bert", "roberta": "bart", "bart": "bart", "xlm-roberta": "xlm-roberta",
    "mbart": "mbart", "t5": "t5", "mt5": "t5", "gpt2": "gpt2", "whisper": "gpt2", "vision-encoder-decoder": "gpt2",
    "marian": "marian",
}  # fmt: skip
GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")  # which say nothing of how they cut
# What config.json says even where there are settings of generation: the rest of it is of no account then.
ALWAYS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_decoder_ids"}


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

    @property
    def tokenizer(self) -> str:
        """The class of the tokenizer, without "Fast"; empty where nothing names one, or one that says nothing."""
        named = self.settings.get("tokenizer_class") or self.config.get("tokenizer_class") or ""
        name = str(named).removesuffix("Fast")
        return "" if name in GENERIC else name

    @property
    def generic(self) -> bool:
        """Whether the tokenizer is what its tokenizer.json says, whatever other settings there are."""
        return self.tokenizer not in STYLES and bool(self.tokenizer or self.settings.get("tokenizer_class"))

    @property
    def style(self) -> str:
        """How the tokenizer cuts: that of its class, or what is usual for the network."""
        return STYLES.get(self.tokenizer) or OF_KINDS.get(self.kind, "")

    def special(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The role and the text of each special token, with how it is found in a text."""
        usual = USUAL.get(self.style, {})
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
        """A setting of generation_config.json, or of config.json, where older models, without such a file, have it."""
        found = self.generation.get(name)
        return self.config.get(name) if found is None and (not self.generation or name in ALWAYS) else found


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
