"""A tokenizer of the kind that a vocabulary asks for: learnt from lines, or read from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.artifacts import distinct_texts
from regard.data.marks import MARKS
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.published import PUBLISHED, load_published
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, ModelError


def train_tokenizer(
    texts: Iterable[str], kind: str, size: int, sentinels: int = 0, *, compose: bool = True
) -> Tokenizer:
    """A tokenizer of the given kind, learnt from lines that are read once; whose Unicode is composed, if it is not to
    stay as it is."""
    match kind:
        case "unigram" | "bpe":
            return Subwords.train(texts, kind, size, sentinels, compose=compose)
        case "char" | "word":
            return Symbols.train(texts, kind, size, sentinels, compose=compose)
        case "imported":
            raise ConfigError(
                "tokens.kind imported is a vocabulary that came with a model of another program; start.model, "
                "start.encoder or start.decoder names the model to take it from, and other kinds are learnt"
            )
        case _:
            return Bytes(sentinels)


def load_tokenizer(folder: Path, name: str) -> Tokenizer:
    """What `save` wrote."""
    model, listed = folder / f"{name}.model", folder / f"{name}.json"
    try:
        found = _load_plain(folder, name)
        prefixes = folder / f"{name}.prefixes.json"
        return Prefixed(found, distinct_texts(json.loads(prefixes.read_text("utf-8")))) if prefixes.exists() else found
    except FileNotFoundError:
        what = f"has no tokenizer ({model.name} or {listed.name}); the folder is not whole"
        raise ModelError(f"{folder} {what}") from None
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:  # RecursionError is a RuntimeError
        what = f"cannot be read ({error}); the folder is damaged"
        raise ModelError(f"the tokenizer '{name}' in {folder} {what}") from None


def _load_plain(folder: Path, name: str) -> Tokenizer:
    """A tokenizer without prefixes."""
    model = folder / f"{name}.model"
    if model.exists():
        return _load_subwords(model.read_bytes())
    content: Any = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    if content["kind"] == "byte":
        return Bytes(_known_sentinels(content))
    if content["kind"] in PUBLISHED:
        return load_published(folder, name, content)
    if content["kind"] not in ("char", "word"):
        raise ValueError(f"it is of kind {content['kind']!r}")
    return Symbols(content["kind"], distinct_texts(content["symbols"]), _known_sentinels(content))


def _known_sentinels(content: dict[str, Any]) -> int:
    count = content.get("sentinels", 0)
    if not isinstance(count, int) or not 0 <= count <= 10**6:
        raise ValueError(f"it has {count!r} sentinels")
    return count


def _load_subwords(model: bytes) -> Subwords:
    if not model:
        raise ValueError("the file is empty")
    tokenizer = Subwords(model)
    found = tokenizer.processor.id_to_piece(list(range(min(len(MARKS), tokenizer.size))))
    if tuple(found) != MARKS:
        raise ValueError(f"it begins with {', '.join(found)}, not with {', '.join(MARKS)}")
    return tokenizer
