"""The tokenizer of a folder that is older than `tokenizer.json`: of a `vocab.txt` (WordPiece), a `vocab.json` with
`merges.txt` (byte-level BPE) or a SentencePiece model (T5, mBART, XLM-R). It cuts as `transformers` does."""

from __future__ import annotations

import json
from typing import Any

from regard.errors import require
from regard.exchange.huggingface.given import ALIKE, Given
from regard.exchange.huggingface.sentencepiece_files import read_charsmap, read_pieces

LANGUAGES = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX",
    "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
]  # fmt: skip  # of mBART (Liu et al. 2020), in the order of its vocabulary


def made_tokenizer(given: Given) -> Any:
    """A tokenizer of the older files of a folder."""
    folder, kind = given.folder, ALIKE.get(given.kind, given.kind)
    library = require("tokenizers")
    models, before, after = library.models, library.pre_tokenizers, library.decoders
    if (folder / "vocab.txt").exists():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        words = {line: i for i, line in enumerate(lines if lines[-1] else lines[:-1])}
        names = dict(given.special())
        made = library.Tokenizer(models.WordPiece(words, unk_token=names["unk"]["content"]))
        made.normalizer = library.normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=bool(given.settings.get("tokenize_chinese_chars", True)),
            strip_accents=given.settings.get("strip_accents"),
            lowercase=bool(given.settings.get("do_lower_case", True)),
        )  # fmt: skip
        made.pre_tokenizer, made.decoder = before.BertPreTokenizer(), after.WordPiece(prefix="##")
        _frame_by(made, [names["cls"]["content"]], [names["sep"]["content"]], [names["sep"]["content"]])
        return made
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        made = library.Tokenizer(
            models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
        )
        spaced = bool(given.settings.get("add_prefix_space", False))
        made.pre_tokenizer, made.decoder = before.ByteLevel(add_prefix_space=spaced), after.ByteLevel()
        if kind == "bart":
            names = dict(given.special())
            begin, end = names["cls"]["content"], names["sep"]["content"]
            _frame_by(made, [begin], [end, end], [end])
        return made
    for name in ("spiece.model", "sentencepiece.bpe.model"):
        if (folder / name).exists():
            return _from_sentencepiece((folder / name).read_bytes(), given)
    raise ValueError(
        "it should be a tokenizer.json, a vocab.txt, a vocab.json with merges.txt, a spiece.model or a "
        "sentencepiece.bpe.model, and none of these is there"
    )


def _frame_by(made: Any, before: list[str], between: list[str], after: list[str]) -> None:
    """Put marks around texts."""
    names = dict.fromkeys([*before, *between, *after])
    if any(made.token_to_id(name) is None for name in names):
        raise ValueError(f"it lacks one of the marks {', '.join(names)}")
    made.post_processor = require("tokenizers").processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *between, "$B", *after],
        special_tokens=[(name, made.token_to_id(name)) for name in names],
    )  # fmt: skip


def _from_sentencepiece(model: bytes, given: Given) -> Any:
    """A Unigram tokenizer of a SentencePiece model, as `transformers` makes it."""
    library, pieces = require("tokenizers"), list(read_pieces(model))
    unknown, charsmap = 2, read_charsmap(model)
    if ALIKE.get(given.kind, given.kind) == "t5":
        extra = int(given.settings.get("extra_ids", 100))
        pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra))]
    else:  # fairseq's order of the first four
        pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")] + pieces[3:]
        pieces += [(name, 0.0) for name in LANGUAGES if given.kind == "mbart"] + [("<mask>", 0.0)]
        unknown = 3
    made = library.Tokenizer(library.models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    if charsmap and given.kind != "mbart":
        made.normalizer = library.normalizers.Precompiled(charsmap)
    split = library.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([library.pre_tokenizers.WhitespaceSplit(), split])
    made.decoder = library.decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    if ALIKE.get(given.kind, given.kind) == "t5":
        made.add_special_tokens([f"<extra_id_{i}>" for i in range(extra)])
        _frame_by(made, [], ["</s>"], ["</s>"])
    elif given.kind == "mbart":
        made.add_special_tokens(LANGUAGES)
    else:
        _frame_by(made, ["<s>"], ["</s>", "</s>"], ["</s>"])
    return made
