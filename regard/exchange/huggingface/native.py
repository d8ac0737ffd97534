"""Tokenizers that Regard learnt, as a `tokenizer.json`: the same tokens for the same text.

Words, characters, bytes and Unigram subwords can be written so. What is written is tried on some texts, and refused
where it cuts one otherwise. It differs for texts that hold the name of a mark, or SentencePiece's own sign for a blank.
"""

from __future__ import annotations

from typing import Any

from regard.data.marks import Frame, Marks
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.published import BYTE_OF, FileTokens, Published
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, require
from regard.exchange.huggingface.sentencepiece_files import read_kind

BLANKS = r"[ \t\r\n\f\v]+"  # which `clean` makes one space of
# What Python splits words at beside these.
SPLITS = r"[\t\n\x0B\x0C\r\x1C-\x1F \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+"
NEVER = -1000.0  # the score of a mark, so that no text is cut into it
TRIED = (
    "", " ", "a", "Hello, world!", "  two  spaces\tand a tab\n", "naïve e\u0301tude", "日本語 ไทย", "😀👩\u200d👧",
    "x" * 50,
    "12,345.67", "\u3000wide\u00a0fixed", "שלום مرحبا", "a\x00b", "ÅÅ ﬁ ½",
)  # fmt: skip


def tokenizer_of(tokenizer: Tokenizer, frame: Frame) -> Published:
    """A tokenizer as one that `transformers` reads, with what stands around a text; what has no exact counterpart there
    is refused. One that came from there has its own frame."""
    if isinstance(tokenizer, Published):
        return tokenizer
    backend = _backend(tokenizer)
    backend.post_processor = _framing(frame, tokenizer.marks)
    made = FileTokens(backend.to_str(), tokenizer.size, tokenizer.marks)
    for text in TRIED:
        if made.encode(text) != tokenizer.encode(text):
            raise ConfigError(
                f"a tokenizer.json would cut {text!r} otherwise than these tokens do, so it is not written"
            )
    return made


def _backend(tokenizer: Tokenizer) -> Any:
    library, marks = require("tokenizers"), tokenizer.marks
    assert marks.unknown is not None, "it has a mark for what it does not know"
    unknown = marks.names[marks.unknown]
    models, before, after, norm = library.models, library.pre_tokenizers, library.decoders, library.normalizers
    cleaned = [norm.NFC(), norm.Replace(library.Regex(BLANKS), " "), norm.Replace(library.Regex(r"^ | $"), "")]
    match tokenizer:
        case Symbols(kind="word"):
            made = library.Tokenizer(models.WordLevel(tokenizer.ids, unk_token=unknown))
            made.pre_tokenizer = before.Split(library.Regex(SPLITS), "removed")
        case Symbols():
            made = library.Tokenizer(models.WordLevel(tokenizer.ids, unk_token=unknown))
            made.pre_tokenizer = before.Split(library.Regex(r"[\s\S]"), "isolated")
            made.decoder = after.Fuse()
        case Bytes():
            letters = {letter: byte + tokenizer.first for letter, byte in BYTE_OF.items()}
            names = {name: i for i, name in marks.names.items()}
            made = library.Tokenizer(models.BPE({**names, **letters}, []))
            made.pre_tokenizer = before.ByteLevel(add_prefix_space=False, use_regex=False)
            made.decoder = after.ByteLevel()
        case Subwords() if _is_unigram(tokenizer):
            processor = tokenizer.processor
            pieces = [(str(processor.id_to_piece(i)), float(processor.get_score(i))) for i in range(tokenizer.size)]
            pieces = [(piece, NEVER if i in marks.names else score) for i, (piece, score) in enumerate(pieces)]
            made = library.Tokenizer(models.Unigram(pieces, unk_id=marks.unknown, byte_fallback=True))
            made.pre_tokenizer = before.Metaspace(replacement="▁", prepend_scheme="always", split=True)
            made.decoder = after.Sequence(
                [after.ByteFallback(), after.Metaspace(replacement="▁", prepend_scheme="always")]
            )
        case Prefixed():
            raise ConfigError(
                f"these tokens have prefixes ({tokenizer.prefixes[0]}), which a tokenizer.json would not keep together "
                "as they do; ONNX and CTranslate2 exports take them"
            )
        case _:
            raise ConfigError(
                "tokens.kind bpe has no exact counterpart in a tokenizer.json; unigram, word, char and byte have"
            )
    made.normalizer = norm.Sequence(cleaned)
    made.add_special_tokens(list(marks.names.values()))
    return made


def _framing(frame: Frame, marks: Marks) -> Any:
    """Marks around texts; a second text, and what stands after it, is a segment of its own."""
    before, between, after = ([marks.names[i] for i in ids] for ids in (frame.before, frame.between, frame.after))
    return require("tokenizers").processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *between, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[(marks.names[i], i) for i in dict.fromkeys((*frame.before, *frame.between, *frame.after))],
    )  # fmt: skip


def _is_unigram(tokenizer: Subwords) -> bool:
    return read_kind(tokenizer.model) == 1
