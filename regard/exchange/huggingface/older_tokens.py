"""The tokenizer of a folder that is older than `tokenizer.json`: of a `vocab.txt` (WordPiece), a `vocab.json` with
`merges.txt` (byte-level BPE) or a SentencePiece model (T5, mBART, XLM-R). It cuts as the class of `transformers` does
that the folder names, whatever network it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import require
from regard.exchange.huggingface.given import SETTINGS, STYLES, Given, read_json
from regard.exchange.huggingface.sentencepiece_files import read_charsmap, read_pieces

LANGUAGES = [
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX",
    "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
]  # fmt: skip  # of mBART (Liu et al. 2020), in the order of its vocabulary
MORE = [
    "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN",
    "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK",
    "xh_ZA", "gl_ES", "sl_SI"
]  # fmt: skip  # which mBART-50 (Tang et al. 2020) has beside these
ADDED = "added_tokens.json"
WORD_PIECE, BYTE_LEVEL, SENTENCEPIECE = ("vocab.txt",), ("vocab.json", "merges.txt"), ("spiece.model",)
OTHER_NAME = ("sentencepiece.bpe.model",)  # of a SentencePiece model
FILES = {"bert": WORD_PIECE, "bart": BYTE_LEVEL, "gpt2": BYTE_LEVEL}  # of a style; the others have SentencePiece


def made_tokenizer(given: Given) -> Any:
    """A tokenizer of the older files of a folder."""
    found = _files(given)
    if given.style == "bert":
        made = _word_pieces(found[0], given)
    elif given.style in FILES:
        made = _byte_level(found[0], found[1], given)
    else:
        made = _from_sentencepiece(found[0].read_bytes(), given)
    _add(made, given)
    return made


def _files(given: Given) -> list[Path]:
    """The files that a tokenizer of this style is made of."""
    if given.tokenizer and given.tokenizer not in STYLES:
        raise ValueError(
            f"{SETTINGS} names a {given.tokenizer}, and there is no tokenizer.json; without one, Regard reads "
            f"{', '.join(STYLES)}"
        )
    kinds = (WORD_PIECE, BYTE_LEVEL, SENTENCEPIECE, OTHER_NAME)
    there = [kind for kind in kinds if all((given.folder / name).exists() for name in kind)]
    wanted = [FILES[given.style]] if given.style in FILES else [SENTENCEPIECE, OTHER_NAME]
    for kind in wanted:
        if kind in there:
            return [given.folder / name for name in kind]
    if there:
        raise ValueError(
            f"{' with '.join(there[0])} is there, but a {given.tokenizer or f'tokenizer of {given.kind}'} is made of "
            f"{' or '.join(' with '.join(kind) for kind in wanted)}; the right tokenizer_class in {SETTINGS} will do"
        )
    raise ValueError(
        "it should be a tokenizer.json, a vocab.txt, a vocab.json with merges.txt, a spiece.model or a "
        "sentencepiece.bpe.model, and none of these is there"
    )


def _word_pieces(file: Path, given: Given) -> Any:
    """BERT's."""
    library = require("tokenizers")
    lines = file.read_text(encoding="utf-8").split("\n")
    words = {line: i for i, line in enumerate(lines if lines[-1] else lines[:-1])}
    names = dict(given.special())
    made = library.Tokenizer(library.models.WordPiece(words, unk_token=names["unk"]["content"]))
    made.normalizer = library.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(given.settings.get("tokenize_chinese_chars", True)),
        strip_accents=given.settings.get("strip_accents"), lowercase=bool(given.settings.get("do_lower_case", True)),
    )  # fmt: skip
    made.pre_tokenizer, made.decoder = library.pre_tokenizers.BertPreTokenizer(), library.decoders.WordPiece("##")
    frame_by(made, [names["cls"]["content"]], [names["sep"]["content"]], [names["sep"]["content"]])
    return made


def _byte_level(vocab: Path, merged: Path, given: Given) -> Any:
    """GPT-2's; with marks around texts RoBERTa's and BART's."""
    library = require("tokenizers")
    vocabulary = json.loads(vocab.read_text(encoding="utf-8"))
    lines = merged.read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    made = library.Tokenizer(
        library.models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    spaced = bool(given.settings.get("add_prefix_space", False))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    made.decoder = library.decoders.ByteLevel()
    if given.style == "bart":
        names = dict(given.special())
        begin, end = names["cls"]["content"], names["sep"]["content"]
        frame_by(made, [begin], [end, end], [end])
    return made


def frame_by(made: Any, before: list[str], between: list[str], after: list[str]) -> None:
    """Put marks around texts."""
    names = dict.fromkeys([*before, *between, *after])
    if lacking := [name for name in names if made.token_to_id(name) is None]:
        raise ValueError(f"it lacks {lacking[0]}, one of the marks {', '.join(names)} that stand around texts")
    made.post_processor = require("tokenizers").processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *between, "$B", *after],
        special_tokens=[(name, made.token_to_id(name)) for name in names],
    )  # fmt: skip


def _from_sentencepiece(model: bytes, given: Given) -> Any:
    """A Unigram tokenizer of a SentencePiece model, as `transformers` makes it."""
    library, pieces = require("tokenizers"), list(read_pieces(model))
    norm, before = library.normalizers, library.pre_tokenizers
    style, charsmap, unknown = given.style, read_charsmap(model), 2
    languages = {"mbart": LANGUAGES, "mbart50": [*LANGUAGES, *MORE]}.get(style, [])
    if style == "t5":
        extra = int(given.settings.get("extra_ids", 100))
        pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(extra))]
    else:  # fairseq's order of the first four
        pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")] + pieces[3:]
        pieces += [(name, 0.0) for name in (*languages, "<mask>")]
        unknown = 3
    made = library.Tokenizer(library.models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    rules = [norm.Precompiled(charsmap)] if charsmap and style != "mbart" else []
    rules += [norm.Replace(library.Regex(" {2,}"), " ")] if style == "mbart50" else []
    if rules:
        made.normalizer = norm.Sequence(rules)
    split = before.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    made.pre_tokenizer = split if style == "mbart50" else before.Sequence([before.WhitespaceSplit(), split])
    made.decoder = library.decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    if style == "t5":
        made.add_special_tokens([f"<extra_id_{i}>" for i in range(extra)])
        frame_by(made, [], ["</s>"], ["</s>"])
    elif languages:
        made.add_special_tokens([*languages, library.AddedToken("<mask>", lstrip=True, special=True)])
    else:
        frame_by(made, ["<s>"], ["</s>", "</s>"], ["</s>"])
    return made


# Tokens that were added to a vocabulary later


def added_tokens(given: Given) -> dict[str, int]:
    """The tokens that were added to a vocabulary and their numbers, lowest first: as the settings say, or a file."""
    listed = given.settings.get("added_tokens_decoder")
    if isinstance(listed, dict) and listed:
        found = {token["content"]: int(number) for number, token in listed.items()}
    else:
        found = read_json(given.folder / ADDED)
    if odd := [name for name, number in found.items() if type(number) is not int]:
        raise ValueError(f"{ADDED} has {odd[0]!r} as {found[odd[0]]!r}, which is no number")
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _add(made: Any, given: Given) -> None:
    """Put the tokens that were added behind the vocabulary."""
    library, special = require("tokenizers"), {token["content"] for _, token in given.special()}
    listed = (given.settings.get("added_tokens_decoder") or {}).values()
    options = {one["content"]: {name: one[name] for name in one if name not in ("content", "__type")} for one in listed}
    for name, number in added_tokens(given).items():
        usual = {"special": name in special, "normalized": name not in special}
        made.add_tokens([library.AddedToken(name, **options.get(name, usual))])
        if (found := made.token_to_id(name)) != number:
            raise ValueError(f"{ADDED} has {name} as {number}, and behind the vocabulary it is {found}")
