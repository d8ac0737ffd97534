"""Models and tokenizers as other programs publish them, tiny and made on the spot, to be imported."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

TEXTS = [
    f"{who} {verb} the {size} {thing} , {number} times ."
    for who in ("the dog", "Alice", "über-cats", "naïve birds")
    for verb in ("sees", "doesn't see", "hears")
    for size in ("big", "small", "tiny")
    for thing in ("house", "tree", "日本語", "ไทย")
    for number in (2, 31)
]


def odd_strings(count: int, seed: int = 1) -> list[str]:
    """Texts that tokenizers stumble over."""
    draw = random.Random(seed)
    parts = [
        "the dog", "Alice", " ", "  ", "\t", "\n", "\r\n", "\x00", "\x07", "\x1b[0m", "\u200b", "\u200d", "\ufeff",
        "\u00ad", "\u3000", "😀", "👩‍👩‍👧‍👦", "🇩🇪", "e\u0301", "ﬁ", "Å", "日本語", "中文字", "한국어", "ไทยภาษา",
        "שלום", "مرحبا", "\u202eabc\u202c", "</s>", "<s>", "<pad>", "<unk>", "[SEP]", "[CLS]", "[MASK]", "<mask>",
        "<|endoftext|>", "<extra_id_0>", ">>de<<", ">>x", "don't", "U.S.A.", "12,345.67", "...", "?!", "'s", " 's",
        "x" * 300, "aß" * 40, "ÀÉÎ", "İ", "Ǆ", "𝔘𝔫𝔦", "\U0010ffff",
        "▁", "Ġ", "##ing", "a_b", "http://x.y/z?q=1", "\\n", "½", "①", "\u0300", "\ud7a3", "_",
    ]  # fmt: skip
    made = ["", " ", *parts]
    while len(made) < count:
        made.append("".join(draw.choice(parts) + draw.choice(["", " ", ""]) for _ in range(draw.randint(1, 6))))
    return made[:count]


def byte_level(folder: Path, kind: str, *, old: bool = False) -> Path:
    """GPT-2's, RoBERTa's or BART's."""
    import tokenizers
    import transformers

    special = ["<|endoftext|>"] if kind == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=330, special_tokens=special, show_progress=False)
    if old:
        folder.mkdir(parents=True, exist_ok=True)
        trained.save_model(str(folder))
        return folder
    made = json.loads(trained.to_str())["model"]
    merges = [tuple(x) if isinstance(x, list) else tuple(x.split(" ")) for x in made["merges"]]
    names = {"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "bart": "BartTokenizer"}
    getattr(transformers, names[kind])(vocab=made["vocab"], merges=merges).save_pretrained(folder)
    return folder


def word_piece(folder: Path, *, lower: bool = True, old: bool = False) -> Path:
    """BERT's."""
    import tokenizers
    import transformers

    trained = tokenizers.BertWordPieceTokenizer(lowercase=lower)
    trained.train_from_iterator(TEXTS, vocab_size=200, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    if old:
        trained.save_model(str(folder))
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        return folder
    transformers.BertTokenizer(vocab=trained.get_vocab(), do_lower_case=lower).save_pretrained(folder)
    return folder


def sentencepiece_model(seed: int = 0, *, size: int = 150, t5: bool = False, rule: str = "nmt_nfkc") -> bytes:
    """A SentencePiece model of some texts."""
    import sentencepiece

    written = BytesIO()
    ids: dict[str, Any] = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if t5 else ids
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[seed:]), model_writer=written, vocab_size=size, hard_vocab_limit=False,
        normalization_rule_name=rule, minloglevel=2, **ids,
    )  # fmt: skip
    return written.getvalue()


def unigram(folder: Path, kind: str = "t5", *, old: bool = False) -> Path:
    """T5's or mBART's."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / {"t5": "spiece.model"}.get(kind, "sentencepiece.bpe.model")
    file.write_bytes(sentencepiece_model(t5=kind == "t5"))
    if kind == "t5":
        (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10}))
    if not old:
        names = {"t5": "T5Tokenizer", "mbart": "MBartTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
        names["mbart50"] = "MBart50Tokenizer"
        getattr(transformers, names[kind]).from_pretrained(folder).save_pretrained(folder)
        file.unlink()
    return folder


def marian(folder: Path, *, separate: bool = False) -> Path:
    """Marian's."""
    folder.mkdir(parents=True, exist_ok=True)
    models = sentencepiece_model(0), sentencepiece_model(60)
    vocabularies = [{piece: None for piece in pieces_of(model) if not piece.startswith("<")} for model in models]
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)

    def numbered(*several: dict[str, None]) -> dict[str, int]:
        names = dict.fromkeys(["</s>", "<unk>", ">>de<<", *(piece for each in several for piece in each), "<pad>"])
        return {name: i for i, name in enumerate(names)}

    own = [numbered(each) for each in vocabularies] if separate else [numbered(*vocabularies)]
    for name, ids in zip(("vocab.json", "target_vocab.json"), own, strict=False):
        (folder / name).write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": separate, "source_lang": "en"}))
    return folder


def pieces_of(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def quietly(make: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """What a function of theirs gives, without what it says."""
    with warnings.catch_warnings(action="ignore"):
        return make(*given, **more)
