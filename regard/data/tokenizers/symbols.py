"""Vocabularies that are lists: characters, words, or the 256 bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.data.marks import UNK, Marks, native_marks
from regard.data.tokens import Tokenizer, clean
from regard.data.words import byte_text


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


def _show(byte: int) -> str:
    return "▁" if byte == ord(" ") else chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>"
