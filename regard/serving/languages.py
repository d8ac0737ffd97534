"""Languages: their names, which of them models translate between, and in which of them a text is written."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from regard.errors import require
from regard.languages import LANGUAGES
from regard.serving.messages import LanguagePair, ModelInfo, Refused

SOURCE, TARGET = LanguagePair().source, LanguagePair().target  # of a model that does not say what it translates
AUTO = "auto"
LONGEST = 4000  # characters of a text that tell its language

NAMES = {**LANGUAGES, SOURCE: "Source", TARGET: "Target"}


def name_of(code: str) -> str:
    """The name of a language in English: `German`, `Portuguese (BR)`; of one that is not known, its code."""
    base, _, region = code.partition("-")
    name = NAMES.get(base.lower(), base)
    return f"{name} ({region})" if region else name


@dataclass(frozen=True)
class Route:
    """A model that translates from one language to another."""

    model: str
    pair: LanguagePair


def routes(models: Iterable[ModelInfo]) -> list[Route]:
    """All that text can be translated by, the first model first."""
    return [
        Route(model.name, pair)
        for model in models
        if model.sources == ["text"] and model.target == "text"
        for pair in model.languages
    ]


def route(known: Sequence[Route], source: str, target: str) -> Route:
    """The first model from one language to another; what there is instead is told where there is none."""
    for one in known:
        if (one.pair.source.lower(), one.pair.target.lower()) == (source.lower(), target.lower()):
            return one
    there = ", ".join(dict.fromkeys(f"{one.pair.source} to {one.pair.target}" for one in known)) or "none"
    hint = "; regard serve --languages en:de says what a model translates" if any(_unnamed(x) for x in known) else ""
    raise Refused(
        400, "bad_request", f"{source[:20]} to {target[:20]} is not supported; pairs here: {there[:400]}{hint}"
    )


def _unnamed(one: Route) -> bool:
    return SOURCE in one.pair.source or TARGET in one.pair.target


@dataclass(frozen=True)
class Detected:
    """A language that a text may be written in, and how probable that is, from 0 to 1."""

    language: str
    confidence: float


def detect(text: str, candidates: Iterable[str]) -> list[Detected]:
    """Which of some languages a text is written in, the likeliest first. They are held against all languages that
    have a name here, so that a text in none of them is seen by its low confidence."""
    wanted = {code.partition("-")[0].lower(): code for code in reversed(list(candidates))}
    ranked = _identifier().rank(text[:LONGEST])
    found = [Detected(wanted[code], share) for code, share in ranked if code in wanted]
    return found or [Detected(code, 0.0) for code in reversed(list(wanted.values()))][:1]


class _Identifier:
    """py3langid, which is read when it is first needed, and by one thread at a time."""

    def __init__(self) -> None:
        langid: Any = require("py3langid")
        self.inner = langid.langid.LanguageIdentifier.from_model_file(langid.langid.MODEL_FILE, norm_probs=True)
        self.inner.set_languages([code for code in self.inner.labels if code in NAMES])
        self.lock = threading.Lock()

    def rank(self, text: str) -> list[tuple[str, float]]:
        with self.lock:
            return [(code, float(share)) for code, share in self.inner.rank(text)]


@cache
def _identifier() -> _Identifier:
    return _Identifier()
