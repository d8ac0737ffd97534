"""The form of text that a model reads and writes: how Unicode is composed, Hangul in jamo, lower case; and how outputs
are brought back from it.

A tokenizer in a form (`Formed`) prepares what it encodes and restores what it decodes, so that training, search,
scoring and exports all go through it, and outputs are held against references as they stand in the data.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokens import Tokenizer, clean
from regard.errors import ModelError

Normalization = Literal["nfc", "nfd", "nfkc", "nfkd", "jamo", "none"]
SYLLABLE = re.compile("[\uac00-\ud7a3]+")  # of Hangul
WORD = re.compile(r"\w+")
ENDS = re.compile(r"[.!?…][^\w\s]*\s[^\w\s]*$")  # what stands before the first word of another sentence


@dataclass(frozen=True)
class Casing:
    """A truecaser (Lita et al. 2003, in its simplest form): each word in its most frequent form, as counted away from
    the beginnings of sentences, and a capital at those if most of them have one."""

    words: Mapping[str, str] = field(default_factory=dict)  # in lower case, to its form where that is another
    first: bool = False  # a line begins with a capital
    inner: bool = False  # and so does each further sentence in it

    @staticmethod
    def learn(texts: Iterable[str]) -> Casing:
        """Count the forms of words; one that only ever begins sentences stays in lower case."""
        forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
        begun: list[Counter[bool]] = [Counter(), Counter()]  # whether a line, and a sentence in it, has a capital
        for text in map(clean, texts):
            for match in WORD.finditer(text):
                word = match[0]
                if not (begins := _begins(text, match.start())):
                    forms[word.lower()][word] += 1
                elif word[0].lower() != word[0].upper():
                    begun[begins == "inner"][word[0] != word[0].lower()] += 1
        best = {lower: min(found, key=lambda form: (-found[form], form)) for lower, found in forms.items()}
        first, inner = (counts[True] > counts[False] for counts in begun)
        return Casing({lower: form for lower, form in sorted(best.items()) if form != lower}, first, inner)

    def restore(self, text: str) -> str:
        """A text in lower case with its capitals."""

        def one(match: re.Match[str]) -> str:
            word = self.words.get(match[0], match[0])
            begins = _begins(text, match.start())
            return word[0].upper() + word[1:] if getattr(self, begins or "", False) else word

        return WORD.sub(one, text)

    def save(self, folder: Path, name: str) -> None:
        content = {"words": dict(self.words), "first": self.first, "inner": self.inner}
        (folder / f"{name}.case.json").write_text(json.dumps(content, ensure_ascii=False, indent=0), encoding="utf-8")

    @staticmethod
    def load(folder: Path, name: str) -> Casing:
        """What `save` wrote."""
        path = folder / f"{name}.case.json"
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            words = content["words"]
            if not isinstance(words, dict) or not all(isinstance(form, str) and form for form in words.values()):
                raise ValueError("it should hold a form for each word")
            return Casing(words, bool(content["first"]), bool(content["inner"]))
        except FileNotFoundError:
            raise ModelError(f"{folder} has no {path.name}; the folder is not whole") from None
        except (RecursionError, ValueError, LookupError, TypeError, OSError) as error:
            raise ModelError(f"{path} cannot be read ({error}); the folder is damaged") from None


def _begins(text: str, start: int) -> Literal["first", "inner"] | None:
    """What a word at this place begins: the line, a further sentence in it, or nothing."""
    if not WORD.search(text, 0, start):
        return "first"
    return "inner" if ENDS.search(text, max(0, start - 8), start) else None


@dataclass(frozen=True)
class TextForm:
    """What is done to a text before it becomes tokens, and undone in outputs."""

    normalize: Normalization = "nfc"
    lower: bool = False
    casing: Casing | None = None

    @property
    def plain(self) -> bool:
        """Whether it is what every tokenizer does by itself."""
        return self.normalize == "nfc" and not self.lower

    def prepare(self, text: str) -> str:
        """A text as a model reads and writes it, with single blanks."""
        return clean(self._composed(text.lower() if self.lower else text), compose=False)

    def restore(self, text: str) -> str:
        """An output as a user reads it: composed, and with its capitals."""
        if self.normalize in ("nfd", "nfkd", "jamo"):
            text = unicodedata.normalize("NFC", text)
        return text if self.casing is None else self.casing.restore(text)

    def _composed(self, text: str) -> str:
        if self.normalize == "none":
            return text
        if self.normalize != "jamo":
            return unicodedata.normalize(cast(Any, self.normalize.upper()), text)
        composed = unicodedata.normalize("NFC", text)
        return SYLLABLE.sub(lambda found: unicodedata.normalize("NFD", found[0]), composed)

    def to_json(self) -> dict[str, Any]:
        """What a runner reads, without the casing, which is a file of its own."""
        return {"normalize": self.normalize, "lower": self.lower, "recased": self.casing is not None}

    @staticmethod
    def from_json(content: Mapping[str, Any] | None, folder: Path, name: str) -> TextForm:
        """What `to_json` gave, with the casing that lies in `folder`."""
        if content is None:
            return TextForm()
        casing = Casing.load(folder, name) if content["recased"] else None
        return TextForm(content["normalize"], content["lower"], casing)


class Formed(Tokenizer):
    """Another tokenizer, of text in a form of its own."""

    def __init__(self, inner: Tokenizer, form: TextForm) -> None:
        self.inner, self.form = inner, form
        self.size, self.marks = inner.size, inner.marks
        self._reader = copy(inner)
        self._reader.composes = False  # the form says what is composed

    def encode(self, text: str) -> list[int]:
        return self._reader.encode(self.form.prepare(text))

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return self._reader.encode_many([self.form.prepare(text) for text in texts], sampling=sampling, seed=seed)

    def encode_words(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return self._reader.encode_words([self.form.prepare(text) for text in texts], sampling=sampling, seed=seed)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        prepared = self.form.prepare(text)  # which may have more characters, or fewer
        return self._reader.offsets(prepared) if len(prepared) == len(text) else super().offsets(text)

    @property
    def for_target(self) -> Tokenizer:
        inner = self.inner.for_target
        return self if inner is self.inner else Formed(inner, self.form)

    def adds(self, token: int) -> str:
        return self.inner.adds(token)

    def encode_within(self, texts: Sequence[str]) -> list[list[int]]:
        return self._reader.encode_within([self.form.prepare(text) for text in texts])

    def decode(self, ids: Sequence[int]) -> str:
        return self.form.restore(self.inner.decode(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return self.inner.pieces(ids)

    def words(self, ids: Sequence[int]) -> list[int]:
        return self.inner.words(ids)

    def save(self, folder: Path, name: str) -> None:
        self.inner.save(folder, name)


def formed(tokenizer: Tokenizer, form: TextForm) -> Tokenizer:
    """A tokenizer of text in this form, whatever form it was of; prefixes stay as they are."""
    if isinstance(tokenizer, Prefixed):
        return Prefixed(formed(tokenizer.inner, form), tokenizer.prefixes)
    inner = tokenizer.inner if isinstance(tokenizer, Formed) else tokenizer
    return inner if form.plain else Formed(inner, form)
