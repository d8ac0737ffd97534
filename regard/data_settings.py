"""What to learn from: the files of one corpus, or several corpora that are mixed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from regard.section import Fraction, Section

SPLITS = ("train", "valid", "test")


class CorpusFiles(NamedTuple):
    """The files of one split of one corpus, and the token that stands before each of its sources."""

    number: int  # of the corpus
    name: str
    files: str | list[str]
    prefix: str | None = None


class Corpus(Section):
    """One of several corpora that are trained on together."""

    name: str | None = Field(
        None, pattern=r"^[\w.+-]{1,60}$", description="its name in reports (default: the name of its training file)"
    )
    train: str | list[str] = Field(description="training examples, in any form that data.train takes")
    valid: str | list[str] | None = Field(None, description="validation examples")
    test: str | list[str] | None = Field(None, description="test examples, scored once when training ends")
    prefix: str | None = Field(
        None,
        pattern=r"^\S{1,60}$",
        description="a token before each of its sources, such as <2de> to translate into German (Johnson et al. "
        "2017); a single token in every kind of vocabulary. In inference, write it at the beginning of the line",
    )
    weight: float = Field(
        1.0, gt=0, le=10**6, description="sampling weight, multiplied with what follows from its size"
    )

    @property
    def called(self) -> str:
        """Its name, or that of its first training file."""
        first = self.train if isinstance(self.train, str) else self.train[0]
        return self.name or re.sub(r"[^\w.+-]", "_", Path(first).name.partition(".")[0])[:60] or "corpus"

    @model_validator(mode="after")
    def _is_named(self) -> Corpus:
        if not self.train:
            raise ValueError("train is an empty list; name a file")
        return self


class Data(Section):
    """The training, validation and test data."""

    train: str | list[str] | None = Field(
        "train.tsv",
        description="training examples: one .tsv or .jsonl file, or a list of parallel text files, one for each "
        "source and the target; without a source, one text file; each may end in .gz. For images and recordings also "
        "a folder of folders (labels), COCO captions (.json), a Flickr token file (with a list of names), a Kaldi or "
        "LibriSpeech folder, .npz shards, or WebDataset .tar files; for question answering the JSON of SQuAD",
    )
    valid: str | list[str] | None = Field("valid.tsv", description="validation examples, in the same form")
    test: str | list[str] | None = Field(None, description="test examples, scored once when training ends")
    corpora: list[Corpus] | None = Field(
        None,
        min_length=1,
        description="several corpora to train on together, in place of train, valid and test: each with its files and "
        "optionally a name, a prefix token and a weight",
    )
    temperature: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="sampling temperature: each corpus is drawn in proportion to its weight times (its "
        "size)^(1/temperature); 1 is by size, 5 is usual for many languages, 100 is nearly uniform (Arivazhagan et "
        "al. 2019; default: 1)",
    )
    watch: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="further validation data by name, such as {old: old/valid.tsv}, scored before the first update "
        "and at every validation, to see what fine-tuning forgets",
    )
    format: Literal["folders", "coco", "flickr", "kaldi", "librispeech", "npz", "webdataset", "squad"] | None = Field(
        None, description="the layout of the data, if it is not detected"
    )
    root: str | None = Field(
        None,
        description="folder of the files that the data name, if it is not that of the data; for COCO and Flickr "
        "captions also a .tar or .npz with them",
    )
    alignment: int | str | bool | None = Field(
        None,
        description="column (.tsv) or key (.jsonl) of gold word alignments, written as 0-0 1-2 3p4 (default: column 3 "
        "if source and target are columns 1 and 2, key alignment; false: none)",
    )
    bad_lines: Literal["skip", "error"] = Field(
        "skip",
        description="what to do with bad lines (blank, malformed, not UTF-8, too long, with an unreadable file): skip "
        "and report them, or stop",
    )
    bad_limit: Fraction = Field(0.25, description="largest share of lines that may be skipped; more than that stops")

    @model_validator(mode="before")
    @classmethod
    def _corpora_stand_for_files(cls, given: Any) -> Any:
        """With corpora, the files of the splits are theirs."""
        if isinstance(given, dict) and given.get("corpora") is not None:
            for split in SPLITS:
                if given.get(split) is not None:
                    raise ValueError(
                        f"{split} and corpora clash: name its files in one of the corpora, or leave it out"
                    )
            return {**given, **dict.fromkeys(SPLITS)}
        return given

    @model_validator(mode="after")
    def _splits_are_there(self) -> Data:
        for split in ("train", "valid"):
            if not self.split(split):
                where = "any of the corpora" if self.corpora else "data"
                raise ValueError(f"{split} is missing from {where}; name a file of examples")
        if self.temperature is not None and self.corpora is None:
            raise ValueError("temperature is of several corpora, and there are none; list them, or leave it out")
        called = [corpus.called for corpus in self.corpora or ()]
        if twice := next((name for name in called if called.count(name) > 1), None):
            raise ValueError(f"corpora has two that are called '{twice}'; give each a name")
        for name in self.watch:
            if name in called or not re.fullmatch(r"[\w.+-]{1,60}", name):
                why = (
                    "one of the corpora is called so" if name in called else "write it in letters, digits, . + - and _"
                )
                raise ValueError(f"watch: {name!r} stands behind the names of scores, as in bleu/{name}; {why}")
        return self

    def split(self, split: str) -> list[CorpusFiles]:
        """The files of each corpus that has some for `train`, `valid` or `test`."""
        if self.corpora is None:
            files = getattr(self, split)
            return [] if files is None else [CorpusFiles(0, "", files)]
        parts = [(i, corpus, getattr(corpus, split)) for i, corpus in enumerate(self.corpora)]
        return [CorpusFiles(i, one.called, files, one.prefix) for i, one, files in parts if files is not None]

    @property
    def prefixes(self) -> list[str]:
        """Every prefix token, once."""
        return list(dict.fromkeys(corpus.prefix for corpus in self.corpora or () if corpus.prefix is not None))

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """How often each corpus is drawn from, given how many examples each has: `p ∝ weight · size^(1/T)`."""
        weights = [corpus.weight for corpus in self.corpora] if self.corpora else [1.0] * len(sizes)
        power = 1.0 / (self.temperature or 1.0)
        most = max([*sizes, 1])  # so that no power of a size is too large for a number
        drawn = [weight * (size / most) ** power for weight, size in zip(weights, sizes, strict=True)]
        return [one / sum(drawn) for one in drawn]
