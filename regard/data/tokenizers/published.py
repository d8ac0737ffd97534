"""Tokenizers of other programs, as models were published with them: their ids, their marks, their normalisation.

`FileTokens` is a `tokenizer.json` of Hugging Face's `tokenizers` (byte-level BPE, WordPiece, Unigram), `PieceTokens`
the SentencePiece models and the list of ids that Marian has. Both are saved as data, and nothing in them is run.
`regard/exchange/huggingface` says how the files of a published model become one of these.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from regard.data.marks import Marks, check_marks, marks_from_json, marks_to_json
from regard.data.tokenizers.subwords import UNKNOWN
from regard.data.tokens import Tokenizer
from regard.data.words import piece_text
from regard.errors import require

SPACE = "▁"  # how SentencePiece writes a blank
TIDIED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip  # what transformers makes of blanks that WordPiece leaves before punctuation


def tidied(text: str) -> str:
    """A text without these blanks."""
    for spaced, tidy in TIDIED:
        text = text.replace(spaced, tidy)
    return text


class Published(Tokenizer):
    """What tokenizers of other programs share: `{name}.json` holds their size, marks and further facts."""

    kind: ClassVar[str]
    FACTS: ClassVar[tuple[str, ...]] = ()  # further attributes that are saved
    apart = False  # whether a piece begins a word unless it says otherwise

    def __init__(self, size: int, marks: Marks) -> None:
        self.size, self.marks = size, marks

    @abstractmethod
    def piece(self, token: int) -> tuple[str, bool]:
        """A token as text without the blank before it, and whether it begins a word."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A piece that goes on a word starts with a dot."""
        shown, started = [], False
        for number in map(int, ids):
            i, goes_on = number % self.size, number >= self.size
            if i in self.marks.names:
                shown.append(self.marks.names[i])
                started = False
                continue
            text, begins = self.piece(i)
            shown.append(text or SPACE if (begins and not goes_on) or not started else f"·{text}")
            started = True
        return shown

    def words(self, ids: Sequence[int]) -> list[int]:
        numbers: list[int] = []
        word, waiting = -1, list[int]()  # blanks belong to the word after them, at the end to the last
        begun = True
        for place, number in enumerate(map(int, ids)):
            i = number % self.size
            if not self.marks.is_text(i):
                numbers.append(-1)
                begun = True
                continue
            text, begins = ("?", self.apart) if i == self.marks.unknown else self.piece(i)
            begun |= begins and number < self.size
            if not text:
                waiting.append(place)
            else:
                word += begun
                begun, waiting = False, []
            numbers.append(word if text else word + 1)
        for place in waiting:
            numbers[place] = word
        return numbers

    def save(self, folder: Path, name: str) -> None:
        facts = {fact: getattr(self, fact) for fact in self.FACTS}
        content = {"kind": self.kind, "size": self.size, "marks": marks_to_json(self.marks), **facts}
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")


class FileTokens(Published):
    """A `tokenizer.json`: normalisation, splitting and merging as it says."""

    kind = "tokenizers"
    FACTS = ("tidy",)

    def __init__(self, content: str, size: int, marks: Marks, *, tidy: bool = False) -> None:
        super().__init__(size, marks)
        library = require("tokenizers")
        self.content, self.tidy = content, tidy
        try:
            self.backend = library.Tokenizer.from_str(content)
        except BaseException as error:  # what Rust panics with is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ValueError(f"tokenizer.json cannot be read ({error})") from None
        self.backend.no_padding()
        self.backend.no_truncation()
        read = json.loads(content)
        model, decoder = read["model"], json.dumps(read.get("decoder"))
        self.prefix: str | None = None  # of pieces that go on a word
        if model.get("type") == "WordPiece" or '"WordPiece"' in decoder:
            self.prefix = model.get("continuing_subword_prefix", "##")
            self.apart = True
        self.bytes = '"ByteLevel"' in decoder
        self.joined = read.get("decoder") is not None  # without blanks between any two

    def encode(self, text: str) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return [list(found.ids) for found in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def encode_words(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        if not self.apart:
            return self.encode_many(texts)
        found = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            [
                i + self.size * (self.piece(i)[1] and start > 0 and not text[start - 1].isspace())
                for i, (start, _) in zip(one.ids, one.offsets, strict=True)
            ]
            for text, one in zip(texts, found, strict=True)
        ]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        found = self.backend.encode(text, add_special_tokens=False).offsets
        return [(end - len(text[start:end].lstrip()), end) for start, end in found]

    def decode(self, ids: Sequence[int]) -> str:
        text = str(self.backend.decode([int(i) for i in ids], skip_special_tokens=True))
        return tidied(text) if self.tidy else text

    def encode_within(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encode_many([f" {text.strip()}" for text in texts] if self.bytes else texts)

    def adds(self, token: int) -> str:
        text = self.backend.id_to_token(token)
        if text is None or token in self.marks.names:
            return ""
        if self.bytes and all(character in BYTE_OF for character in text):
            return bytes(BYTE_OF[character] for character in text).decode("utf-8", errors="replace")
        if self.prefix is not None:
            return text.removeprefix(self.prefix) if text.startswith(self.prefix) else f" {text}"
        return piece_text(text) if self.joined else f" {text}"

    def piece(self, token: int) -> tuple[str, bool]:
        text = self.backend.id_to_token(token)
        if text is None:  # a row of the network that no token stands for
            return f"<{token}>", True
        if self.prefix is not None:
            return text.removeprefix(self.prefix), not text.startswith(self.prefix)
        if not self.bytes:
            return text.removeprefix(SPACE), text.startswith(SPACE)
        try:
            raw = bytes(BYTE_OF[character] for character in text)
        except KeyError:  # an added token, which is text as it is
            return text, True
        begins = raw[:1].isspace()
        try:
            return raw.decode().strip(), begins
        except UnicodeDecodeError:  # a part of a character
            return "".join(f"<0x{byte:02X}>" for byte in raw.strip()), begins

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.tokenizer.json").write_text(self.content, encoding="utf-8")
        super().save(folder, name)


class PieceTokens(Published):
    """SentencePiece, of which each piece has the id that a list gives it (Marian, Junczys-Dowmunt et al. 2018).

    One list may serve two languages, each with a model of its own: `target_model` is then that of what is written.
    Names that were `added` to the list are found in texts before the model cuts them.
    """

    kind = "pieces"
    FACTS = ("ids", "tidy", "added")

    def __init__(
        self, model: bytes, ids: Mapping[str, int], size: int, marks: Marks, *, target_model: bytes | None = None,
        tidy: bool = False, added: Sequence[str] = (),
    ) -> None:  # fmt: skip
        import sentencepiece

        super().__init__(size, marks)
        if marks.unknown is None:
            raise ValueError("it has no mark for what is unknown")
        self.model, self.ids, self.target_model = model, dict(ids), target_model
        self.tidy, self.added = tidy, list(added)
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.decoder = self.processor  # which makes text of pieces
        self.names = {i: piece for piece, i in self.ids.items()}
        special = sorted(self._special, key=len, reverse=True)
        self._marks = re.compile("(" + "|".join(map(re.escape, special)) + ")")

    @property
    def for_target(self) -> Tokenizer:
        if self.target_model is None:
            return self
        other = PieceTokens(self.target_model, self.ids, self.size, self.marks, tidy=self.tidy, added=self.added)
        other.decoder = self.decoder
        return other

    def encode(self, text: str) -> list[int]:
        found: list[str] = []
        for part in self._marks.split(text):
            if part in self._special:
                found.append(part)
            elif part:
                code = re.match(r">>.*?<<", part, re.DOTALL)  # which language to write
                found += [code[0]] if code else []
                found += self.processor.encode(part[code.end() :] if code else part, out_type=str)
        unknown = self.marks.unknown
        assert unknown is not None, "this was seen to when it was made"
        return [self.ids.get(piece, unknown) for piece in found]

    @property
    def _special(self) -> set[str]:
        return {*self.marks.names.values(), *self.added}

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self.names[int(i)] for i in ids if int(i) in self.names and int(i) not in self.marks.names]
        text = str(self.decoder.decode_pieces(pieces)).replace(SPACE, " ").strip()
        return tidied(text) if self.tidy else text

    def adds(self, token: int) -> str:
        if token == self.marks.unknown:
            return UNKNOWN
        return "" if token in self.marks.names else piece_text(self.names.get(token, ""))

    def piece(self, token: int) -> tuple[str, bool]:
        text = self.names.get(token, f"{SPACE}<{token}>")
        return text.removeprefix(SPACE), text.startswith(SPACE)

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.spm").write_bytes(self.model)
        if self.target_model is not None:
            (folder / f"{name}.target.spm").write_bytes(self.target_model)
        super().save(folder, name)


PUBLISHED = (FileTokens.kind, PieceTokens.kind)


def load_published(folder: Path, name: str, content: dict[str, Any]) -> Published:
    """What `save` wrote; `content` is that of its .json file."""
    size, marks = content["size"], marks_from_json(content["marks"])
    if not isinstance(size, int) or not 0 < size <= 10**7:
        raise ValueError(f"its size is {size!r}")
    check_marks(marks, size)
    if content["kind"] == FileTokens.kind:
        text = (folder / f"{name}.tokenizer.json").read_text(encoding="utf-8")
        return FileTokens(text, size, marks, tidy=bool(content["tidy"]))
    ids, other = content["ids"], folder / f"{name}.target.spm"
    if not isinstance(ids, dict) or not all(isinstance(i, int) and 0 <= i < size for i in ids.values()):
        raise ValueError(f"its ids should be below {size}")
    target, added = other.read_bytes() if other.exists() else None, content.get("added", [])
    if not isinstance(added, list) or not all(isinstance(one, str) and one in ids for one in added):
        raise ValueError("what was added to its vocabulary should be there")
    more: dict[str, Any] = {"target_model": target, "tidy": bool(content.get("tidy")), "added": added}
    return PieceTokens((folder / f"{name}.spm").read_bytes(), ids, size, marks, **more)


def _byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in byte-level BPE (Radford et al. 2019): itself where it can be printed and
    is no blank, else the next one from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_letters()
