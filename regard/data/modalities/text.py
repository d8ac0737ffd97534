"""Text, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import Field as Setting

from regard.data.forms import Normalization, TextForm
from regard.data.lines import BLANKS
from regard.data.marks import NATIVE, Frame
from regard.data.modality import Modality
from regard.data.records import BETWEEN, SEPARATOR
from regard.data.side import Field, Item
from regard.data.tokens import Tokenizer
from regard.registry import register
from regard.section import SideSettings, TokenSettings

if TYPE_CHECKING:
    from regard.ragged import Ragged


T = TypeVar("T")


class TextSettings(SideSettings):
    """A text."""

    stem = "tokens"
    text = True
    joined = True

    tokens: TokenSettings | None = Setting(
        None, description="its own vocabulary (default: that of [tokens], shared by all text without its own)"
    )
    max_length: int = Setting(256, ge=1, le=10**6, description="maximum length of a training text, in tokens")
    normalize: Normalization | None = Setting(
        None,
        description="Unicode normalisation before tokenisation: nfc, nfd, nfkc, nfkd, jamo (nfc, with Hangul split "
        "into letters) or none (default: nfc)",
    )
    case: Literal["lower"] | None = Setting(None, description="lower: convert to lower case (default: unchanged)")

    @property
    def own_tokens(self) -> TokenSettings | None:
        return self.tokens


@register("text")
class Text(Modality):
    """A text: token ids, framed by the marks that the model wants.

    Several texts read as one have `<sep>` (or a tab) between them, `<s> a <sep> b </s>`, where `several` is set. A
    vocabulary of another program has marks and ways of its own, such as BERT's `[CLS] a [SEP] b [SEP]`.
    """

    Settings = TextSettings
    tokenizer: Tokenizer
    sampling = 0.0  # how freely subwords are drawn in training
    begins = False  # whether the model asks for a mark before it
    ends = True  # and for one after it
    several = False
    by_word = False  # whether something is said of each of its words, which ids have to tell apart

    @property
    def frame(self) -> Frame:
        """The marks around it; before there are tokens, those of Regard's own."""
        marks = NATIVE if self.tokenizer is None else self.tokenizer.marks
        return marks.frame(begins=self.begins, ends=self.ends)

    @property
    def form(self) -> TextForm:
        """How it is brought to what the model reads."""
        return TextForm(self.settings.normalize or "nfc", self.settings.case is not None)

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return self.tokenizer.size

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "uint32" if self.by_word and 2 * self.tokenizer.size > 2**16 else self.tokenizer.dtype

    @property
    def sampled(self) -> float:
        return self.sampling

    def find_fault(self, field: str) -> tuple[str, str] | None:
        return None if field.strip(BLANKS) else ("blank", "has an empty source")

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        encode = self.tokenizer.encode_words if self.by_word else self.tokenizer.encode_many
        if not self.several:
            return encode(fields, sampling=sampling, seed=seed)
        between = self.frame.between
        own = self.tokenizer.marks.names[between[0]] if len(between) == 1 else "\t"  # may be written so as well
        parts = [texts_in(text.replace(own, "\t")) for text in fields]
        flat = iter(encode([part for row in parts for part in row], sampling=sampling, seed=seed))
        return [self.joined([next(flat) for _ in row]) for row in parts]

    def joined(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """The token ids of several texts as one text."""
        first, *others = texts
        return [*first, *(token for text in others for token in (*self.frame.between, *text))]

    @property
    def lead(self) -> int:
        """How many marks stand before it."""
        return len(self.frame.before)

    def pack(self, items: Sequence[Item]) -> Ragged:
        from regard.ragged import Ragged

        packed = Ragged.of(items, before=self.frame.before, after=self.frame.after)
        return packed.like(packed.values % self.tokenizer.size) if self.by_word else packed

    def framed(self, length: int) -> int:
        return length + len(self.frame)

    def problem(self, item: Item, limit: int) -> str | None:
        if not len(item):
            return "is empty"
        if len(item) > limit:
            return f"has {len(item)} tokens, more than search.max_source={limit}; split it"
        return None

    def places(self, item: Item) -> int:
        return int(self.stem.vectors(self.framed(len(item))))

    def most_places(self, limit: int) -> int:
        return int(self.stem.vectors(self.framed(limit)))

    def pieces(self, item: Item) -> list[str]:
        return self._each_vector(self.tokenizer.pieces(self.frame.around(item)))

    def words(self, item: Item) -> list[int]:
        frame, separator = self.frame, self.tokenizer.marks.separator
        numbers: list[int] = [-1] * len(frame.before)
        ids, before = [*item], 0
        while ids:
            end = ids.index(separator) if self.several and separator in ids else len(ids)
            own = self.tokenizer.words(ids[:end])
            numbers += [before + word if word >= 0 else -1 for word in own] + [-1] * (end < len(ids))
            before, ids = before + max(own, default=-1) + 1, ids[end + 1 :]
        return self._each_vector([*numbers, *[-1] * len(frame.after)])

    def _each_vector(self, of_tokens: list[T]) -> list[T]:
        """What is said of each token, for each of the vectors that the stem makes of it."""
        times = self.stem.vectors(1)
        return [one for one in of_tokens for _ in range(times)]

    def room(self, item: Item, ratio: float) -> int:
        return int((len(item) + len(self.frame.after)) * ratio) + 10

    def export(self) -> dict[str, Any] | None:
        frame = self.frame
        begin = {"begin": list(frame.before)} if frame.before else {}
        return {"kind": "text", **begin, "end": list(frame.after)}

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[list[int]]:
        ids = self.tokenizer.marks.text_ids(self.vocabulary)
        lengths = draw.integers(1, min(24, longest) + 1, size=count)
        return [ids[draw.integers(len(ids), size=length)].tolist() for length in lengths]


def texts_in(field: str) -> list[str]:
    """The texts that a field holds, with a tab or `<sep>` between them; one blank at each side of that is its own."""
    return field.replace("\t", SEPARATOR).replace(BETWEEN, SEPARATOR).split(SEPARATOR)
