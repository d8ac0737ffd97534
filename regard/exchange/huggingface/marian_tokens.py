"""Marian's tokenizer: a SentencePiece model for each side, and the ids of their pieces in `vocab.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.marks import Frame, Marks
from regard.data.tokenizers.published import PieceTokens, Published
from regard.errors import ConfigError
from regard.exchange.huggingface.given import Given, read_json
from regard.exchange.huggingface.older_tokens import ADDED, added_tokens
from regard.exchange.huggingface.prompts import barred, mark_of, roles_of


def marian_tokens(given: Given, read: int, written: int) -> dict[str, Published]:
    folder = given.folder
    for name in ("source.spm", "target.spm", "vocab.json"):
        if not (folder / name).exists():
            raise ValueError(f"{name} is not there")
    source, target = (folder / "source.spm").read_bytes(), (folder / "target.spm").read_bytes()
    if not source or not target:
        raise ValueError("source.spm or target.spm is empty")
    ids = _numbered(folder / "vocab.json", read)
    tidy = bool(given.settings.get("clean_up_tokenization_spaces", False))
    if not given.settings.get("separate_vocabs", False):
        ids, more = _with_added(given, ids, read)
        marks = _marian_marks(given, ids)
        return {"tokens": PieceTokens(source, ids, read, marks, target_model=target, tidy=tidy, added=more)}
    others = _numbered(folder / "target_vocab.json", written)
    if lacking := [name for name, i in added_tokens(given).items() if i not in (ids.get(name), others.get(name))]:
        raise ValueError(f"{ADDED} has {lacking[0]}, and there are two vocabularies")
    return {
        "source": PieceTokens(source, ids, read, _marian_marks(given, ids), tidy=tidy),
        "target": PieceTokens(target, others, written, _marian_marks(given, others), tidy=tidy),
    }


def _with_added(given: Given, ids: dict[str, int], size: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """A vocabulary with the tokens that were added to it, and those that it had not."""
    more = {name: i for name, i in added_tokens(given).items() if name not in ids}
    if odd := [name for name, i in more.items() if not 0 <= i < size]:
        raise ValueError(f"{ADDED} has {odd[0]} as {more[odd[0]]}, and the network has {size} tokens")
    return {**ids, **more}, tuple(more)


def _numbered(path: Path, size: int) -> dict[str, int]:
    """The pieces of a list and their ids, of which a network has so many."""
    ids = read_json(path)
    if not ids:
        raise ValueError(f"{path.name} is not there, or empty")
    if odd := [f"{piece!r} as {i!r}" for piece, i in ids.items() if type(i) is not int or not 0 <= i < size]:
        raise ValueError(f"{path.name} has {odd[0]}, and the network has {size} tokens")
    return ids


def _marian_marks(given: Given, ids: Mapping[str, int]) -> Marks:
    needed = [token["content"] for role, token in given.special() if role in ("eos", "unk", "pad")]
    if lacking := [name for name in needed if name not in ids]:
        raise ValueError(f"its vocabulary has no {lacking[0]}")
    names = {role: ids[token["content"]] for role, token in given.special() if role and token["content"] in ids}
    end = names["eos"]
    start = mark_of(given, "decoder_start_token_id")
    shown = {i: piece for piece, i in ids.items() if i in names.values()}
    first = (names["pad"] if start is None else int(start),)
    return Marks(
        {**dict.fromkeys(first, f"<{first[0]}>"), **shown}, end=end, pad=names.get("pad"), unknown=names["unk"],
        separator=end, first=first, **barred(given), source=Frame((), (end,), (end,)),
    )  # fmt: skip


# And back


def write_pieces(tokenizers: Mapping[str, Published], folder: Path) -> dict[str, Any]:
    """Write tokenizers of SentencePiece models as Marian's; and what their settings should say."""
    source, target = (tokenizers.get(name, tokenizers.get("tokens")) for name in ("source", "target"))
    if not isinstance(source, PieceTokens) or not isinstance(target, PieceTokens):
        raise ConfigError(
            "Hugging Face's tokenizers have no counterpart of these tokens; train with another tokens.kind"
        )
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.target_model or target.model)
    own = {name: i for name, i in source.ids.items() if name not in source.added}
    (folder / "vocab.json").write_text(json.dumps(own, ensure_ascii=False, indent=2), encoding="utf-8")
    if source.added:
        more = {name: source.ids[name] for name in source.added}
        (folder / ADDED).write_text(json.dumps(more, ensure_ascii=False, indent=2), encoding="utf-8")
    if source is not target:
        (folder / "target_vocab.json").write_text(
            json.dumps(target.ids, ensure_ascii=False, indent=2), encoding="utf-8"
        )
    names = {
        role: name for role, name in roles_of(target.marks).items() if role in ("eos_token", "pad_token", "unk_token")
    }
    return {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": source is not target,
        **names,
        "clean_up_tokenization_spaces": target.tidy,
    }
