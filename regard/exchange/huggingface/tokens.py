"""The tokenizer of a model that Hugging Face's `transformers` wrote, as one of ours; and back.

It is a `tokenizer.json`, Marian's SentencePiece models with their `vocab.json` (`marian_tokens.py`), or what stands in
older folders (`older_tokens.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from regard.data.marks import SENTINEL, Frame, Marks, check_marks
from regard.data.tokenizers.published import FileTokens, Published
from regard.errors import ModelError, require
from regard.exchange.huggingface.given import SETTINGS, Given
from regard.exchange.huggingface.marian_tokens import marian_tokens, write_pieces
from regard.exchange.huggingface.older_tokens import frame_by, made_tokenizer
from regard.exchange.huggingface.prompts import barred, decoder_start, first_of, roles_of

FAST = "tokenizer.json"


def read_tokenizers(given: Given, read: int, written: int) -> dict[str, Published]:
    """The tokenizers of a folder by vocabulary: `tokens`, or `source` and `target` where each side has its own. The
    network has so many tokens to read and to write."""
    try:
        if given.settings.get("split_special_tokens"):
            raise ValueError(f"{SETTINGS} has split_special_tokens: true; Regard finds special tokens in texts")
        if given.kind == "marian" and not (given.folder / FAST).exists():
            made = marian_tokens(given, read, written)
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
            backend = library.Tokenizer.from_str(_obeying(content, given))
        except Exception as error:
            raise ValueError(f"{FAST}: {error}") from None
    else:
        backend = made_tokenizer(given)
    _add_special(backend, given)
    _frame_by_language(backend, given)
    known = backend.get_vocab_size(with_added_tokens=True)
    highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= size:
        raise ValueError(f"it has {known} tokens up to number {highest}, and the network reads {size}")
    tidy = bool(given.settings.get("clean_up_tokenization_spaces", False)) and "BPE" not in type(backend.model).__name__
    backend.no_padding()
    backend.no_truncation()
    return FileTokens(backend.to_str(), size, _marks(backend, given), tidy=tidy)


def _obeying(content: str, given: Given) -> str:
    """A tokenizer.json with the options of its settings that `transformers` prefers to what stands there."""
    if given.generic:
        return content
    read, say = json.loads(content), given.settings.get
    for part in _parts(read.get("normalizer")):
        if given.style == "bert" and part.get("type") == "BertNormalizer":
            part["lowercase"], part["strip_accents"] = bool(say("do_lower_case", True)), say("strip_accents")
            part["handle_chinese_chars"] = bool(say("tokenize_chinese_chars", True))
    for part in _parts(read.get("pre_tokenizer")):
        if given.style in ("bart", "gpt2") and part.get("type") == "ByteLevel":
            part["add_prefix_space"] = bool(say("add_prefix_space", False))
    return json.dumps(read, ensure_ascii=False)


def _parts(given: Any) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer.json."""
    one = given or {}
    return one.get("normalizers") or one.get("pretokenizers") or [one]


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
    end = first_of(given.option("eos_token_id"), ids.get("eos"), ids.get("sep"))
    if end is None:
        raise ValueError("neither config.json nor the tokenizer names an eos_token or a sep_token")
    begin = first_of(ids.get("cls"), ids.get("bos"))
    pad = first_of(ids.get("pad"), given.option("pad_token_id"))
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
        separator=first_of(ids.get("sep"), end), mask=ids.get("mask"), first=first, counted=counted,
        **barred(given), source=_source_frame(backend, given, end), sentinels=sentinels,
    )  # fmt: skip


def _frame_by_language(backend: Any, given: Given) -> None:
    """Put the language of a source where mBART reads it: behind the text, and before it in mBART-50."""
    if given.generic or given.style not in ("mbart", "mbart50"):
        return
    code = given.settings.get("src_lang") or "en_XX"
    if backend.token_to_id(code) is None:
        raise ValueError(f"its vocabulary has no {code}, the language of sources (src_lang in {SETTINGS})")
    if given.style == "mbart50":
        frame_by(backend, [code], [], ["</s>"])
    else:
        frame_by(backend, [], [], ["</s>", code])


def _source_frame(backend: Any, given: Given, end: int) -> Frame:
    """What stands around texts that are read: asked of the tokenizer itself."""
    one, two = backend.encode("a"), backend.encode("a", "a")
    own = [i for i, mark in enumerate(one.special_tokens_mask) if not mark]
    sides = two.sequence_ids
    apart = [i for i, side in enumerate(sides) if side is None and 0 in sides[:i] and 1 in sides[i:]]
    frame = Frame(
        tuple(one.ids[: own[0]]), tuple(two.ids[i] for i in apart), tuple(one.ids[own[-1] + 1 :])
    ) if own else Frame()  # fmt: skip
    return Frame(frame.before, frame.between or (end,), frame.after) if given.kind == "gpt2" else frame


# And back


def write_tokenizer(tokenizers: Mapping[str, Published], folder: Path) -> dict[str, Any]:
    """Write tokenizers as `transformers` reads them; and what their settings should say."""
    if "tokens" not in tokenizers or not isinstance(tokenizers["tokens"], FileTokens):
        return write_pieces(tokenizers, folder)
    made = tokenizers["tokens"]
    (folder / FAST).write_text(made.content, encoding="utf-8")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles_of(made.marks),
        "clean_up_tokenization_spaces": made.tidy,
    }
