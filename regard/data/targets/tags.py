"""A tag of each word."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field as Setting
from pydantic import model_validator

from regard.artifacts import distinct_texts, write_text
from regard.data.side import Item
from regard.data.target import LABELS, Answer
from regard.data.targets.label import Label, LabelSettings, check_length, read_learnt
from regard.data.tokens import clean
from regard.errors import ConfigError
from regard.registry import register
from regard.section import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.examples import Example
    from regard.data.modality import Modality
    from regard.ragged import Ragged

Scheme = Literal["bio", "bioes", "none"]
SCHEMES: dict[Scheme, str] = {"bio": "O|[BI]-.+", "bioes": "O|[BIES]-.+"}  # what its tags look like
MOST = 256  # tags of a CRF, which has a number for each two of them at each word


class TagsSettings(TargetSettings):
    """A tag for each word of the source, separated by spaces."""

    best, usual, steering = LabelSettings.best, LabelSettings.usual, LabelSettings.steering
    of_words = True

    crf: bool = Setting(
        False,
        description="a conditional random field over the words, which scores each tag together with the one before it "
        "(Lafferty et al. 2001; Lample et al. 2016); label smoothing then does not apply",
    )
    scheme: Scheme | None = Setting(
        None,
        description="crf: which tags may follow each other: bio (I-X only after B-X or I-X), bioes, or none: any "
        "(default: the scheme that all tags of the training data follow)",
    )
    constrain_training: bool = Setting(
        False, description="crf: leave sequences that the scheme forbids out of the training loss too"
    )

    @property
    def chained(self) -> bool:
        return self.crf

    @model_validator(mode="after")
    def _scheme_of_a_chain(self) -> TagsSettings:
        if not self.crf and (self.scheme is not None or self.constrain_training):
            what = "scheme" if self.scheme is not None else "constrain_training"
            raise ValueError(f"target.{what} is for tags that are scored together; set crf: true, or leave it out")
        return self


@register("tags")
class Tags(Label):
    """A tag for each word of the source: each by itself or, with `crf`, as one sequence."""

    Settings = TagsSettings
    kind, per = "tags", "word"
    ranked = 1
    positive = None
    scheme: Scheme = "none"

    def cut(self, text: str) -> list[str]:
        cleaned = clean(text)
        return cleaned.split(" ") if cleaned else []

    def learn(
        self, examples: Iterable[Example], *, seed: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        kept = dict.fromkeys(SCHEMES, True)

        def seen(examples: Iterable[Example]) -> Iterable[Example]:
            for example in examples:
                tags = self.cut(example.target)
                for scheme in SCHEMES:
                    kept[scheme] = kept[scheme] and keeps_to(scheme, tags)
                yield example

        super().learn(seen(examples), seed=seed, say=say)
        if not self.settings.crf:
            return
        if self.size > MOST:
            raise ConfigError(f"target.crf is for up to {MOST} tags, and the training data hold {self.size}; set it to "
                              "false")  # fmt: skip
        if self.settings.scheme is not None:
            self.scheme = self.settings.scheme
            if self.scheme != "none" and not kept[self.scheme]:
                say(f"some tags of the training data do not keep to target.scheme {self.scheme}")
        elif any(label.startswith("B-") for label in self.labels):
            self.scheme = next((scheme for scheme, whole in kept.items() if whole), "none")

    def save(self, folder: Path) -> None:
        content = {"kind": self.kind, "labels": self.labels, **({"scheme": self.scheme} if self.settings.crf else {})}
        write_text(folder / f"{LABELS}.json", json.dumps(content, ensure_ascii=False, indent=0))

    def load(self, folder: Path) -> None:
        def read(content: Any) -> tuple[list[str], Any]:
            scheme = content.get("scheme", "none")
            if scheme not in (*SCHEMES, "none"):
                raise ValueError(f"a scheme {scheme!r}")
            return distinct_texts(content["labels"]), scheme

        self.labels, self.scheme = read_learnt(folder, self.kind, read)

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        words = len(self.positions(source, source.encode_many([field])[0], last=False))
        tags = len(self.cut(text))
        if words and tags and words != tags:
            return f"has words and tags, but {words} and {tags}; each word needs one"
        return None

    def positions(self, source: Modality, item: Item, *, last: bool) -> list[int]:
        """The first piece of each word or, where the body sees no further than it has read, the last."""
        found: dict[int, int] = {}
        for place, word in enumerate(source.words(item)):
            if word >= 0 and (last or word not in found):
                found[word] = place
        return list(found.values())

    def allowed(self, tables: Ragged) -> Ragged:
        """Tables of a chain in which what the scheme forbids is as good as impossible."""
        import torch

        from regard.nn.crf import FORBIDDEN

        if self.scheme == "none":
            return tables
        names = [None, *self.labels]
        may = torch.tensor(
            [[may_follow(self.scheme, a, b) for b in [*self.labels, None]] for a in names], device=tables.values.device
        )  # (before, after): the first row is the start of a sentence, the last column its end
        forbidden = torch.where(may, 0.0, FORBIDDEN).to(tables.values.dtype)
        first = (tables.position == 0)[:, None, None]
        last = (tables.position == tables.lengths[tables.row] - 1)[:, None, None]
        added = torch.where(first, forbidden[:1, :-1], forbidden[1:, :-1]) + torch.where(last, forbidden[1:, -1], 0.0)
        return tables.like(tables.values + added)

    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        if not self.settings.crf:
            return super().loss(found, right, smoothing, share)
        from regard.nn.crf import crf_loss

        return crf_loss(self.allowed(found) if self.settings.constrain_training else found, right.values)

    def _tables(self, found: Tensor) -> Tensor:
        """What a chain says of one source, as it is decoded."""
        from regard.ragged import Ragged

        return self.allowed(Ragged.from_lengths(found, [len(found)])).values

    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        if self.settings.crf:
            from regard.nn.crf import FORBIDDEN, best_paths

            first, *more = best_paths(self._tables(found.float()), count)
            return [Answer(*first), *(Answer(*path) for path in more if path[1] > FORBIDDEN / 2)]
        best = found.float().log_softmax(-1).max(-1)
        return [Answer(best.indices.tolist(), math.fsum(best.values.tolist()))]

    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        """With a chain, of each tag after those before it: they add up to that of all."""
        if not self.settings.crf:
            return super().log_probs(found, target)
        from regard.nn.crf import tag_log_probs

        check_length(found, target)
        if any(tag >= self.size for tag in target):
            return [-math.inf if tag >= self.size else 0.0 for tag in target]
        return tag_log_probs(self._tables(found.float()), [int(tag) for tag in target])

    def hits(self, found: Ragged, right: Ragged) -> float | None:
        if not self.settings.crf:
            return super().hits(found, right)
        rows = found.values.float().cpu().split(found.known.tolist())
        best = [self.predictions(row, 1)[0].values for row in rows if len(row)]
        flat = [tag for tags in best for tag in tags]
        return float(sum(a == b for a, b in zip(flat, right.values.tolist(), strict=True)))


def may_follow(scheme: Scheme, before: str | None, after: str | None) -> bool:
    """Whether a tag may stand after another; None is the start of a sentence, or its end."""
    inside, kind = _opened(before)
    begins, _, name = (after or "O").partition("-")
    if scheme == "bio":
        return begins != "I" or (inside and name == kind)
    return (begins in ("I", "E") and name == kind) if inside else begins not in ("I", "E")


def _opened(tag: str | None) -> tuple[bool, str]:
    """Whether a span goes on after a tag, and of which kind; with bio it may also end there."""
    begins, _, kind = (tag or "O").partition("-")
    return begins in ("B", "I"), kind


def keeps_to(scheme: Scheme, tags: Sequence[str]) -> bool:
    """Whether all tags are of a scheme, and follow each other as it says."""
    if not all(re.fullmatch(SCHEMES[scheme], tag) for tag in tags):
        return False
    return all(may_follow(scheme, a, b) for a, b in pairwise([None, *tags, None]))
