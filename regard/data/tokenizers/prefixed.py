"""Tokens that say what is wanted, before those of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.data.marks import MARKS
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError


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
