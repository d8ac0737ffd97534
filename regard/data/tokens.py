"""Text to numbers and back: SentencePiece subwords, characters, words, bytes.

All share six marks at the start of the vocabulary (`NATIVE`) and one way to clean a line (composed Unicode, single
spaces), so that "word" means the same everywhere: what stands between spaces. Which ids are marks, and how a text
stands among them, every tokenizer says itself (`Tokenizer.marks`): vocabularies of other programs keep theirs.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.words import Phrase, WordEdges, byte_text, piece_text
from regard.errors import ConfigError, DataError, ModelError, RegardError

MARKS = ("<pad>", "<unk>", "<s>", "</s>", "<sep>", "<mask>")  # of Regard's own vocabularies, as are their ids
PAD, UNK, BOS, EOS, SEP, MASK = range(6)
UNKNOWN = " ⁇ "  # what SentencePiece writes where a token is unknown
PUBLISHED = ("tokenizers", "pieces")  # kinds of those that other programs made; see foreign.py
LONGEST_LINE = 4192  # bytes; SentencePiece learns nothing from longer ones
DRAWN = 4096  # lines whose subwords one thread draws
THREADED = 128  # lines for which SentencePiece starts threads of its own: for fewer that takes longer than they do


@dataclass(frozen=True)
class Frame:
    """Marks around texts that are read as one: before the first, between two of them, after the last."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        """How many marks one text gets."""
        return len(self.before) + len(self.after)

    def around(self, ids: Sequence[int]) -> list[int]:
        """Token ids with the marks before and after them."""
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class Marks:
    """The ids of a vocabulary that stand for no text. None: there is no such mark; one id may serve as several."""

    names: Mapping[int, str]  # every mark, as it is shown
    end: int  # closes an output
    begin: int | None = None
    pad: int | None = None
    unknown: int | None = None
    separator: int | None = None
    mask: int | None = None
    first: tuple[int, ...] = ()  # what the input of a decoder begins with; all but one are neither scored nor shown
    counted: int = 0  # how many of them count in the length of an output
    unwritten: tuple[int, ...] = ()  # what no output holds, beside `unknown`
    opening: tuple[int, ...] = ()  # what no output begins with, be it the end
    source: Frame | None = None  # what stands around a source, whatever reads it; None: what the model asks for
    sentinels: tuple[int, ...] = ()  # what stands for spans that are missing, one after the other, as T5 has them

    @property
    def blank(self) -> str:
        """What a user writes where something is missing."""
        return MARKS[MASK] if self.mask is None else self.names[self.mask]

    @cached_property
    def framing(self) -> frozenset[int]:
        """The marks that belong around texts and not into them."""
        ids = (self.pad, self.begin, self.end, self.separator, self.mask)
        return frozenset(i for i in ids if i is not None)

    def is_text(self, token: int) -> bool:
        """Whether a token stands for text, if only for one that is unknown."""
        return token not in self.names or token == self.unknown

    def frame(self, *, begins: bool, ends: bool) -> Frame:
        """What stands around a source that has a mark before and after it, where the model asks for one."""
        if self.source is not None:
            return self.source
        before, between = ((i,) if i is not None else () for i in (self.begin, self.separator))
        return Frame(before if begins else (), between, (self.end,) if ends else ())

    def forbidden(self, *, unknown: bool) -> tuple[int, ...]:
        """What a search may not write, `unknown` only where it may."""
        more = () if unknown or self.unknown is None else (self.unknown,)
        return tuple(sorted({*self.unwritten, *more} - {self.end}))

    def text_ids(self, size: int) -> NDArray[np.int64]:
        """All ids of a vocabulary of this size that are no marks, in order."""
        return np.setdiff1d(np.arange(size), list(self.names))


NATIVE = Marks(
    dict(enumerate(MARKS)), end=EOS, begin=BOS, pad=PAD, unknown=UNK, separator=SEP, mask=MASK, first=(BOS,),
    unwritten=(PAD, BOS, SEP, MASK),
)  # fmt: skip

SENTINEL = "<extra_id_{}>"  # as T5 calls them


def native_marks(sentinels: int) -> Marks:
    """The marks of Regard's own vocabularies, with so many sentinels after them."""
    ids = range(len(MARKS), len(MARKS) + sentinels)
    more = {i: SENTINEL.format(number) for number, i in enumerate(ids)}
    return replace(NATIVE, names={**NATIVE.names, **more}, sentinels=tuple(ids)) if sentinels else NATIVE


def clean(text: str, *, compose: bool = True) -> str:
    """Composed Unicode, with runs of blanks as one space and none at the ends."""
    return re.sub(r"[ \t\r\n\f\v]+", " ", unicodedata.normalize("NFC", text) if compose else text).strip(" ")


class Tokenizer(ABC):
    """Text to token ids and back."""

    size: int
    marks: Marks = NATIVE  # of Regard's own, which never come from text, save `<unk>`
    composes = True  # Unicode, where it cleans what it encodes (see `forms.py`)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a line, without marks at the ends."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; marks other than `<unk>` leave nothing."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as it should be shown."""

    @abstractmethod
    def words(self, ids: Sequence[int]) -> list[int]:
        """The number of the word that each token belongs to; -1 for marks."""

    @abstractmethod
    def save(self, folder: Path, name: str) -> None:
        """Write what `load` reads."""

    def adds(self, token: int) -> str:
        """What a token adds to the text of an output, with the blanks that stand around it; nothing where a token by
        itself does not tell."""
        return ""

    @cached_property
    def edges(self) -> WordEdges | None:
        """Which tokens go on a word; None: none does, or tokens do not tell."""
        return WordEdges.of([self.adds(token) for token in range(self.size)], self.marks.end)

    def phrases(self, texts: Sequence[str]) -> list[Phrase]:
        """Texts as they stand within another, as words of their own where tokens tell words."""
        ids = self.encode_within(texts)
        if self.edges is None:
            return [Phrase(tuple(own)) for own in ids]
        return [self.edges.phrase(clean(text), own) for text, own in zip(texts, ids, strict=True)]

    def encode_within(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts as they stand after a blank."""
        return self.encode_many(texts)

    @property
    def for_target(self) -> Tokenizer:
        """That of what is written, where the two sides of one vocabulary are cut differently."""
        return self

    @property
    def dtype(self) -> str:
        """The smallest whole numbers that hold every id."""
        return "uint16" if self.size <= 2**16 else "uint32"

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Ids of many lines; with `sampling`, subwords are drawn, the same ones for the same seed."""
        return [self.encode(text) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of a clean line that each of its tokens stands for, from one to before another; those of its
        word, where tokens do not say it more closely."""
        words = [match.span() for match in re.finditer("[^ ]+", text)]
        numbers = self.words(self.encode_words([text])[0])
        return [words[min(word, len(words) - 1)] if word >= 0 else (0, 0) for word in numbers]

    def encode_words(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Like `encode_many`, so that `words` tells each word from the next by the ids alone: where a vocabulary does
        not say of a token that it goes on a word, `size` is added to its id."""
        return self.encode_many(texts, sampling=sampling, seed=seed)


class Subwords(Tokenizer):
    """SentencePiece (Kudo and Richardson 2018): unigram or BPE, any character by way of its bytes."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self.processor.get_piece_size()
        named = (self.processor.id_to_piece(i) == SENTINEL.format(i - len(MARKS)) for i in range(len(MARKS), self.size))
        self.marks = native_marks(sum(takewhile(bool, named)))

    @staticmethod
    def train(texts: Iterable[str], kind: str, size: int, sentinels: int = 0, *, compose: bool = True) -> Subwords:
        """Learn subwords from lines, which are read once."""
        import sentencepiece

        written, failures, marks = io.BytesIO(), list[BaseException](), list(native_marks(sentinels).names.values())

        def lines() -> Iterator[bytes]:
            try:
                for text in texts:
                    yield clean(text, compose=compose).encode()
            except UnicodeEncodeError as error:
                failures.append(_not_learnt(str(error), kind, size, len(marks)))
            except BaseException as error:  # not for SentencePiece: versions of it differ in what they make of it
                failures.append(error)

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=lines(), model_writer=written, model_type=kind,
                vocab_size=size, hard_vocab_limit=False, byte_fallback=True, character_coverage=0.9999,
                normalization_rule_name="identity", input_sentence_size=2_000_000, minloglevel=2,
                pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS, control_symbols=marks[SEP:],
            )  # fmt: skip
        except RuntimeError as error:
            if not failures:
                raise _not_learnt(str(error), kind, size, len(marks)) from None
        if failures:
            raise failures[0]
        return Subwords(written.getvalue())

    def encode(self, text: str) -> list[int]:
        return list(self.processor.encode(clean(text, compose=self.composes)))

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        import sentencepiece

        cleaned = [clean(text, compose=self.composes) for text in texts]
        if not sampling and len(cleaned) < THREADED:
            return [list(self.processor.encode(text)) for text in cleaned]
        if not sampling:
            return [list(ids) for ids in self.processor.encode(cleaned)]
        # SentencePiece seeds its generator once in each thread, so only a new thread draws from a new seed; and it lets
        # other threads work meanwhile. Threads take so many lines each, whatever the machine: draws depend on that.
        sentencepiece.set_random_generator_seed(seed % 2**32)
        with ExitStack() as threads:
            draw = partial(self.processor.encode, enable_sampling=True, alpha=sampling, nbest_size=-1, num_threads=1)
            parts = [
                threads.enter_context(ThreadPoolExecutor(1)).submit(draw, cleaned[start : start + DRAWN])
                for start in range(0, len(cleaned), DRAWN)
            ]
            return [ids for part in parts for ids in part.result()]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        found, at, waiting = [], -1, 0  # a blank is put before the first word
        for i in self.encode(text):
            piece = str(self.processor.id_to_piece(i))
            if self.processor.is_byte(i):
                waiting = waiting or len(text[at].encode())
                found.append((at, at + 1))
                waiting -= 1
                at += not waiting
            else:
                found.append((at + piece.startswith("▁"), at + len(piece)))
                at += len(piece)
        return found if at == len(text) else super().offsets(text)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.processor.decode([int(i) for i in ids]))

    def adds(self, token: int) -> str:
        if token in self.marks.names:
            return UNKNOWN if token == self.marks.unknown else ""
        return piece_text(str(self.processor.id_to_piece(token)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A piece that goes on a word starts with a dot."""
        shown, started = [], False
        for i in map(int, ids):
            piece = str(self.processor.id_to_piece(i))
            own = i not in self.marks.names
            goes_on = started and own and not piece.startswith("▁")
            shown.append(f"·{piece}" if goes_on else piece.removeprefix("▁") or "▁")
            started = own
        return shown

    def words(self, ids: Sequence[int]) -> list[int]:
        numbers, word = [], -1
        for i in map(int, ids):
            text = self.marks.is_text(i)
            word += text and (word < 0 or str(self.processor.id_to_piece(i)).startswith("▁"))
            numbers.append(word if text else -1)
        return numbers

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.model").write_bytes(self.model)


def _not_learnt(said: str, kind: str, size: int, marks: int) -> RegardError:
    """What SentencePiece said when it gave up, as an error of data or settings."""
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", said):
        return ConfigError(
            f"tokens.size ({size}) is too small for {kind} on this text: 256 bytes, {marks} marks and every "
            f"character must fit; try at least {needed[1]}, or tokens.kind: char"
        )
    if "sentences_.empty()" in said or "required_chars_.empty()" in said:
        return DataError(
            f"there is nothing to learn tokens of kind {kind} from: no line of the training data holds 1 to "
            f"{LONGEST_LINE:,} bytes of text; tokens.kind: char or byte takes longer ones"
        )
    return DataError(f"SentencePiece cannot learn tokens of kind {kind} from the training data: {said}")


class Symbols(Tokenizer):
    """A list of characters (`char`) or of words (`word`), most frequent first."""

    def __init__(self, kind: str, symbols: Sequence[str], sentinels: int = 0) -> None:
        self.marks = native_marks(sentinels)
        self.kind, self.symbols = kind, [*self.marks.names.values(), *symbols]
        self.ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        self.size = len(self.symbols)
        self.joint = " " if kind == "word" else ""

    @staticmethod
    def train(texts: Iterable[str], kind: str, size: int, sentinels: int = 0, *, compose: bool = True) -> Symbols:
        """Collect symbols from lines; of words, as many as fit into `size`."""
        marks = native_marks(sentinels).names.values()
        counts: Counter[str] = Counter()
        for text in texts:
            cleaned = clean(text, compose=compose)
            counts.update(cleaned.split() if kind == "word" else cleaned)
        for mark in ("", *marks):
            counts.pop(mark, None)
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        return Symbols(kind, ranked[: max(size - len(marks), 0)] if kind == "word" else ranked, sentinels)

    def encode(self, text: str) -> list[int]:
        cleaned = clean(text, compose=self.composes)
        symbols = cleaned.split() if self.kind == "word" else cleaned
        known = (self.ids.get(symbol, UNK) for symbol in symbols)
        return [UNK if i in self.marks.names else i for i in known]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return super().offsets(text) if self.kind == "word" else [(i, i + 1) for i in range(len(text))]

    def decode(self, ids: Sequence[int]) -> str:
        return self.joint.join(self.symbols[i] for i in ids if self.marks.is_text(i))

    def adds(self, token: int) -> str:
        text = self.symbols[token] if self.marks.is_text(token) else ""
        return f" {text}" if self.kind == "word" else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.symbols[i].replace(" ", "▁") for i in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        numbers, word = [], -1 if self.kind == "word" else 0
        for i in ids:
            word += self.kind == "word" or self.symbols[i] == " "
            numbers.append(word if self.marks.is_text(i) else -1)
        return numbers

    def save(self, folder: Path, name: str) -> None:
        content = {"kind": self.kind, "symbols": self.symbols[len(self.marks.names) :], **_sentinels(self.marks)}
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")


class Bytes(Tokenizer):
    """The 256 bytes of UTF-8: nothing to learn, nothing unknown."""

    def __init__(self, sentinels: int = 0) -> None:
        self.marks = native_marks(sentinels)
        self.first = len(self.marks.names)  # the id of byte 0
        self.size = self.first + 256

    def encode(self, text: str) -> list[int]:
        return [byte + self.first for byte in clean(text, compose=self.composes).encode("utf-8")]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(i, i + 1) for i, character in enumerate(text) for _ in character.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i - self.first for i in ids if i >= self.first).decode("utf-8", errors="replace")

    def adds(self, token: int) -> str:
        return byte_text(token - self.first) if token >= self.first else ""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.marks.names[int(i)] if i < self.first else _show(int(i) - self.first) for i in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        numbers, word = [], 0
        for i in ids:
            word += i - self.first == ord(" ")
            numbers.append(word if i >= self.first else -1)
        return numbers

    def save(self, folder: Path, name: str) -> None:
        content = {"kind": "byte", **_sentinels(self.marks)}
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _sentinels(marks: Marks) -> dict[str, int]:
    """What a file says of them, if there are any."""
    return {"sentinels": len(marks.sentinels)} if marks.sentinels else {}


class Prefixed(Tokenizer):
    """Another tokenizer with a few tokens more (Johnson et al. 2017), which stand at the beginning of a text and say
    what is wanted, such as `<2de>`. They come after the others in the vocabulary, and belong to no word."""

    def __init__(self, inner: Tokenizer, prefixes: Sequence[str]) -> None:
        if taken := next((one for one in prefixes if one in MARKS), None):
            raise ConfigError(f"the prefix {taken} is a mark that every vocabulary has; take another, such as <2de>")
        self.inner, self.prefixes = inner, list(prefixes)
        self.ids = {prefix: inner.size + i for i, prefix in enumerate(self.prefixes)}
        self.size = inner.size + len(self.prefixes)
        names = {**inner.marks.names, **{i: prefix for prefix, i in self.ids.items()}}
        self.marks = replace(inner.marks, names=names, unwritten=(*inner.marks.unwritten, *self.ids.values()))

    def _cut(self, text: str) -> tuple[list[int], str]:
        """The ids of the prefixes that a text begins with, and the rest."""
        ids: list[int] = []
        while True:
            first, *rest = text.split(None, 1) or [""]
            if first not in self.ids:
                return ids, text
            ids, text = [*ids, self.ids[first]], "".join(rest)

    def encode(self, text: str) -> list[int]:
        ids, rest = self._cut(text)
        return [*ids, *self.inner.encode(rest)]

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        cut = [self._cut(text) for text in texts]
        found = self.inner.encode_many([rest for _, rest in cut], sampling=sampling, seed=seed)
        return [[*ids, *own] for (ids, _), own in zip(cut, found, strict=True)]

    def encode_words(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        cut = [self._cut(text) for text in texts]
        found = self.inner.encode_words([rest for _, rest in cut], sampling=sampling, seed=seed)
        more = len(self.prefixes)  # by which this vocabulary is larger, and so what is added to ids
        return [
            [*ids, *(i + more if i >= self.inner.size else i for i in own)]
            for (ids, _), own in zip(cut, found, strict=True)
        ]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        ids, rest = self._cut(text)
        start = len(text) - len(rest)
        return [(0, 0)] * len(ids) + [(start + a, start + b) for a, b in self.inner.offsets(rest)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode([i for i in ids if i < self.inner.size])

    def adds(self, token: int) -> str:
        return self.inner.adds(token) if token < self.inner.size else ""

    def encode_within(self, texts: Sequence[str]) -> list[list[int]]:
        return self.inner.encode_within(texts)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        own = iter(self.inner.pieces(self._inner_ids(ids)))
        return [self.prefixes[i - self.inner.size] if self._is_prefix(i) else next(own) for i in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        own = iter(self.inner.words(self._inner_ids(ids)))
        return [-1 if self._is_prefix(i) else next(own) for i in ids]

    def _is_prefix(self, token: int) -> bool:
        return self.inner.size <= token < self.size

    def _inner_ids(self, ids: Sequence[int]) -> list[int]:
        """Without prefixes, as the inner tokenizer has them; see `encode_words`."""
        return [i - len(self.prefixes) if i >= self.size else i for i in ids if not self._is_prefix(i)]

    @property
    def for_target(self) -> Tokenizer:
        inner = self.inner.for_target
        return self if inner is self.inner else Prefixed(inner, self.prefixes)

    def save(self, folder: Path, name: str) -> None:
        self.inner.save(folder, name)
        content = json.dumps(self.prefixes, ensure_ascii=False)
        (folder / f"{name}.prefixes.json").write_text(content, encoding="utf-8")


def _show(byte: int) -> str:
    return "▁" if byte == ord(" ") else chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>"


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
        return Prefixed(found, texts_of(json.loads(prefixes.read_text("utf-8")))) if prefixes.exists() else found
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
        from regard.data.foreign import load_published

        return load_published(folder, name, content)
    if content["kind"] not in ("char", "word"):
        raise ValueError(f"it is of kind {content['kind']!r}")
    return Symbols(content["kind"], texts_of(content["symbols"]), _known_sentinels(content))


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


def texts_of(content: Any) -> list[str]:
    """A list out of a file, if it holds different texts and nothing else."""
    if not isinstance(content, list) or not all(isinstance(text, str) and text for text in content):
        raise ValueError("it should hold a list of texts")
    if len(set(content)) < len(content):
        raise ValueError("it holds a text twice")
    "".join(content).encode()  # half a character is an error
    return content
