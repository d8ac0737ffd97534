"""The tokenizer of a model that Hugging Face's `transformers` wrote, as one of ours; and back.

It is a `tokenizer.json`, Marian's SentencePiece models with their `vocab.json`, or what stands in older folders
(`older_tokens.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from regard.data.marks import SENTINEL, Frame, Marks, check_marks
from regard.data.tokenizers.published import FileTokens, PieceTokens, Published
from regard.errors import ConfigError, ModelError, require
from regard.exchange.huggingface.given import Given, read_json
from regard.exchange.huggingface.older_tokens import made_tokenizer

FAST = "tokenizer.json"


def read_tokenizers(given: Given, read: int, written: int) -> dict[str, Published]:
    """The tokenizers of a folder by vocabulary: `tokens`, or `source` and `target` where each side has its own. The
    network has so many tokens to read and to write."""
    try:
        if given.kind == "marian" and not (given.folder / FAST).exists():
            made = _marian(given, read, written)
        else:
            made = {"tokens": _from_file(given, max(read, written))}
        for tokenizer in made.values():
            check_marks(tokenizer.marks, tokenizer.size)
        return made
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, RuntimeError) as error:
        raise ModelError(f"the tokenizer in {given.folder} cannot be read ({error})") from None


# A tokenizer.json


def _from_file(given: Given, size: int) -> FileTokens:
    library, folder = require("tokenizers"), given.folder
    if (folder / FAST).exists():
        content = (folder / FAST).read_text(encoding="utf-8")
        try:
            backend = library.Tokenizer.from_str(content)
        except Exception as error:
            raise ValueError(f"{FAST}: {error}") from None
    else:
        backend = made_tokenizer(given)
    _add_special(backend, given)
    known = backend.get_vocab_size(with_added_tokens=True)
    highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= size:
        raise ValueError(f"it has {known} tokens up to number {highest}, and the network reads {size}")
    tidy = bool(given.settings.get("clean_up_tokenization_spaces", False)) and "BPE" not in type(backend.model).__name__
    backend.no_padding()
    backend.no_truncation()
    return FileTokens(backend.to_str(), size, _marks(backend, given), tidy=tidy)


def _add_special(backend: Any, given: Given) -> None:
    """Let special tokens be found in texts, as their settings say."""
    library, found = require("tokenizers"), dict[str, Any]()
    known = {str(token.content): token for token in backend.get_added_tokens_decoder().values()}
    for _, token in given.special():
        content = token["content"]
        if content not in found and not (content in known and known[content].special):
            options = {name: bool(token.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
            found[content] = library.AddedToken(content, special=True, **options)
    inside = [token for content, token in found.items() if backend.token_to_id(content) is not None]
    backend.add_special_tokens(inside)


# Marks


def _marks(backend: Any, given: Given) -> Marks:
    """Which ids are marks, and how texts stand among them, as tokenizer and network say."""
    special = {i: str(token.content) for i, token in backend.get_added_tokens_decoder().items() if token.special}
    ids = {role: backend.token_to_id(token["content"]) for role, token in given.special() if role}
    vocabulary = {i: name for name, i in backend.get_vocab(with_added_tokens=True).items()}
    end = _first_of(given.option("eos_token_id"), ids.get("eos"), ids.get("sep"))
    if end is None:
        raise ValueError("neither config.json nor the tokenizer names an eos_token or a sep_token")
    begin = _first_of(ids.get("cls"), ids.get("bos"))
    pad = _first_of(ids.get("pad"), given.option("pad_token_id"))
    first, counted = decoder_start(given, backend, begin, end)
    unknown = ids.get("unk")
    named = (
        *special,
        *first,
        *(i for i in (end, begin, pad, unknown, ids.get("sep"), ids.get("mask")) if i is not None),
    )
    numbered = (backend.token_to_id(SENTINEL.format(number)) for number in range(len(vocabulary)))
    sentinels = tuple(takewhile(lambda i: i is not None, numbered))
    names = {i: vocabulary.get(i, f"<{i}>") for i in dict.fromkeys((*named, *sentinels))}
    return Marks(
        names, end=end, begin=begin, pad=pad, unknown=None if unknown == end else unknown,
        separator=_first_of(ids.get("sep"), end), mask=ids.get("mask"), first=first, counted=counted,
        **_barred(given), source=_source_frame(backend, given, end), sentinels=sentinels,
    )  # fmt: skip


def _first_of(*given: Any) -> int | None:
    """The first that is an id; of a list of ids, its first."""
    for found in given:
        found = found[0] if isinstance(found, list) and found else found
        if isinstance(found, int):
            return found
    return None


def decoder_start(given: Given, backend: Any, begin: int | None, end: int) -> tuple[tuple[int, ...], int]:
    """What the input of a decoder begins with, and how much of it counts in the length of an output."""
    start = given.option("decoder_start_token_id")
    if start is None and isinstance(given.config.get("decoder"), dict):
        start = given.config["decoder"].get("decoder_start_token_id")
    forced = given.option("forced_bos_token_id")
    if given.kind == "whisper":
        return (start, *_whisper_prompt(given)), 0
    if given.kind == "mbart" and start is None:
        target = given.settings.get("tgt_lang")
        start = None if target is None else backend.token_to_id(target)
    if start is None:
        forces = forced is not None and given.kind != "gpt2"
        return (end if forces or begin is None else begin,), 0
    return ((start,), 0) if forced is None else ((start, forced), 1)


def _whisper_prompt(given: Given) -> Iterator[int]:
    """Language, task and whether there are times: what Whisper (Radford et al. 2023) writes text after."""
    forced = given.option("forced_decoder_ids") or []
    if not isinstance(forced, list) or not all(isinstance(one, list) and len(one) == 2 for one in forced):
        raise ValueError(f"forced_decoder_ids is {forced!r}, and should be pairs of a place and an id")
    known = {int(place): token for place, token in forced if token is not None}
    languages, tasks = given.generation.get("lang_to_id") or {}, given.generation.get("task_to_id") or {}
    if languages:
        language = given.generation.get("language") or "<|en|>"
        task = given.generation.get("task") or "transcribe"
        spoken = known.get(1) or languages.get(language) or languages.get(f"<|{language}|>")
        wanted = known.get(2) or tasks.get(task)
        if spoken is None or wanted is None:
            raise ValueError(f"generation_config.json knows no language {language}, or no task {task}")
        yield int(spoken)
        yield int(wanted)
    elif known:
        yield from (known[place] for place in sorted(known) if place < 3)
    silent = given.generation.get("no_timestamps_token_id", known.get(3))
    if silent is not None:
        yield silent


def _barred(given: Given) -> dict[str, Any]:
    """What generation never writes, or not first: single tokens and sequences of them, by their names in `Marks`."""
    words = given.option("bad_words_ids") or []
    if not isinstance(words, list) or not all(map(_are_ids, words)):
        raise ValueError(f"bad_words_ids is {words!r}, and should be lists of ids")
    single = {ids[0] for ids in words if len(ids) == 1}
    return {
        "unwritten": tuple(sorted({*single, *_listed(given, "suppress_tokens")})),
        "banned": tuple(tuple(ids) for ids in words if len(ids) > 1),
        "opening": _listed(given, "begin_suppress_tokens"),
    }


def _listed(given: Given, name: str) -> tuple[int, ...]:
    """A setting of generation that is a list of tokens."""
    found = given.option(name) or []
    if not _are_ids(found):
        raise ValueError(f"{name} is {found!r}, and should be a list of ids")
    return tuple(found)


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(i, int) for i in given)


def _source_frame(backend: Any, given: Given, end: int) -> Frame:
    """What stands around texts that are read: asked of the tokenizer itself."""
    if given.kind == "mbart":
        code = backend.token_to_id(given.settings.get("src_lang") or "en_XX")
        return Frame((), (), (end, code))
    if given.kind == "gpt2":
        return Frame((), (end,), ())
    one, two = backend.encode("a"), backend.encode("a", "a")
    own = [i for i, mark in enumerate(one.special_tokens_mask) if not mark]
    sides = two.sequence_ids
    apart = [i for i, side in enumerate(sides) if side is None and 0 in sides[:i] and 1 in sides[i:]]
    return Frame(
        tuple(one.ids[: own[0]]), tuple(two.ids[i] for i in apart), tuple(one.ids[own[-1] + 1 :])
    ) if own else Frame()  # fmt: skip


# Marian


def _marian(given: Given, read: int, written: int) -> dict[str, Published]:
    folder = given.folder
    for name in ("source.spm", "target.spm", "vocab.json"):
        if not (folder / name).exists():
            raise ValueError(f"{name} is not there")
    source, target = (folder / "source.spm").read_bytes(), (folder / "target.spm").read_bytes()
    if not source or not target:
        raise ValueError("source.spm or target.spm is empty")
    ids = _numbered(folder / "vocab.json", read)
    if not given.settings.get("separate_vocabs", False):
        return {"tokens": PieceTokens(source, ids, read, _marian_marks(given, ids), target_model=target)}
    others = _numbered(folder / "target_vocab.json", written)
    return {
        "source": PieceTokens(source, ids, read, _marian_marks(given, ids)),
        "target": PieceTokens(target, others, written, _marian_marks(given, others)),
    }


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
    start = given.option("decoder_start_token_id")
    shown = {i: piece for piece, i in ids.items() if i in names.values()}
    first = (names["pad"] if start is None else int(start),)
    return Marks(
        {**dict.fromkeys(first, f"<{first[0]}>"), **shown}, end=end, pad=names.get("pad"), unknown=names["unk"],
        separator=end, first=first, **_barred(given), source=Frame((), (end,), (end,)),
    )  # fmt: skip


# And back


def write_tokenizer(tokenizers: Mapping[str, Published], folder: Path) -> dict[str, Any]:
    """Write tokenizers as `transformers` reads them; and what their settings should say."""
    if "tokens" not in tokenizers or not isinstance(tokenizers["tokens"], FileTokens):
        return _write_pieces(tokenizers, folder)
    made = tokenizers["tokens"]
    (folder / FAST).write_text(made.content, encoding="utf-8")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **_roles(made.marks),
        "clean_up_tokenization_spaces": made.tidy,
    }


def _roles(marks: Marks) -> dict[str, str]:
    """The special tokens by the names that `transformers` has for what they do."""
    ids = {
        "bos": marks.begin, "eos": marks.end, "pad": marks.pad, "unk": marks.unknown, "sep": marks.separator,
        "cls": marks.begin, "mask": marks.mask,
    }  # fmt: skip
    return {f"{role}_token": marks.names[i] for role, i in ids.items() if i is not None}


def _write_pieces(tokenizers: Mapping[str, Published], folder: Path) -> dict[str, Any]:
    source, target = (tokenizers.get(name, tokenizers.get("tokens")) for name in ("source", "target"))
    if not isinstance(source, PieceTokens) or not isinstance(target, PieceTokens):
        raise ConfigError(
            "Hugging Face's tokenizers have no counterpart of these tokens; train with another tokens.kind"
        )
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.target_model or target.model)
    (folder / "vocab.json").write_text(json.dumps(source.ids, ensure_ascii=False, indent=2), encoding="utf-8")
    if source is not target:
        (folder / "target_vocab.json").write_text(
            json.dumps(target.ids, ensure_ascii=False, indent=2), encoding="utf-8"
        )
    names = {
        role: name for role, name in _roles(target.marks).items() if role in ("eos_token", "pad_token", "unk_token")
    }
    return {"tokenizer_class": "MarianTokenizer", "separate_vocabs": source is not target, **names}
