"""When words were spoken, read off what a speech model attended to; and transcripts with times: SubRip, WebVTT.

CTC says at which moments each token was heard, attention where the decoder looked for it. Either way a word ends where
the middle of the weights of its last token lies. It begins where the word before it ended or, after a pause, shortly
before its first token: a token is recognised when part of its word has been heard (`LEAD`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.evaluation.alignment import median_place

LEAD = 0.15  # seconds from the beginning of a word to the middle of its first token, at most
FAR = 4.0  # times the usual gap: a token so long before the next of its word was heard too soon, as CTC's first may be
PAUSE = 0.8  # seconds of silence after which a new segment begins
LONGEST_SEGMENT, WIDEST_SEGMENT = 7.0, 84  # seconds and characters that one may have
_ENDS = (".", "!", "?", "…", "。", "！", "？")


@dataclass(frozen=True)
class TimedWord:
    """A word, and from when to when it is spoken, in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """Words that are shown together."""

    text: str
    start: float
    end: float


def duration_of(trace: Mapping[str, Any]) -> float:
    """How long a recording is, in seconds."""
    return float((trace.get("canvas") or {}).get("seconds") or 0.0)


def timed_words(trace: Mapping[str, Any], text: str) -> list[TimedWord] | None:
    """When each word of a transcript was spoken; None where the model says nothing of it."""
    layer, texts = _layer(trace), text.split()
    columns = int((trace.get("canvas") or {}).get("columns") or 0)
    numbers: list[int] = trace["target_word"]
    if layer is None or not columns or max(numbers, default=-1) + 1 != len(texts):
        return None
    weights = np.asarray(layer["weights"], dtype=np.float32).mean(axis=0)  # (target, source)
    moments = np.asarray(trace["source_word"]) >= 0
    step = duration_of(trace) / columns
    heard = [median_place(row[moments]) for row in weights]  # of each token
    usual = _usual_gap([place for place in heard if place is not None])
    found, before = list[TimedWord](), 0.0
    for number, word in enumerate(texts):
        mine = zip(heard, numbers, strict=True)
        places = sorted(place for place, own in mine if own == number and place is not None)
        while len(places) > 1 and places[1] - places[0] > FAR * usual:
            del places[0]
        first, last = (places[0] * step, places[-1] * step) if places else (before, before)
        start = max(before, first - LEAD)
        before = max(last, start)
        found.append(TimedWord(word, round(start, 3), round(before, 3)))
    return found


def _usual_gap(places: Sequence[float]) -> float:
    """How far apart tokens are heard, in moments: the median, and at least one."""
    gaps = np.diff(np.sort(np.asarray(places, dtype=np.float64)))
    return max(float(np.median(gaps)), 1.0) if gaps.size else 1.0


def _layer(trace: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What says most exactly when something was heard: CTC, else the layer to align by."""
    cross = {layer["name"]: layer for layer in trace["layers"] if layer["kind"] == "cross"}
    return cross.get("ctc") or cross.get(trace.get("best") or "")


def segments(words: Sequence[TimedWord] | None, text: str, duration: float) -> list[Segment]:
    """A transcript in parts that can be shown one after the other; in one where no times are known."""
    if not words:
        return [Segment(text, 0.0, duration)] if text else []
    found: list[list[TimedWord]] = []
    for word in words:
        if not found or _begins(found[-1], word):
            found.append([])
        found[-1].append(word)
    return [Segment(" ".join(x.text for x in some), some[0].start, some[-1].end) for some in found]


def _begins(segment: Sequence[TimedWord], word: TimedWord) -> bool:
    """Whether a word is the first of a new segment."""
    last, width = segment[-1], sum(len(x.text) + 1 for x in segment) + len(word.text)
    return (
        last.text.endswith(_ENDS)
        or word.start - last.end > PAUSE
        or word.end - segment[0].start > LONGEST_SEGMENT
        or width > WIDEST_SEGMENT
    )


def subrip(parts: Sequence[Segment]) -> str:
    """As a .srt file."""
    return "".join(
        f"{i}\n{_clock(x.start, ',')} --> {_clock(x.end, ',')}\n{x.text}\n\n" for i, x in enumerate(parts, 1)
    )


def webvtt(parts: Sequence[Segment]) -> str:
    """As a .vtt file."""
    return "WEBVTT\n\n" + "".join(_cues(parts))


def _cues(parts: Sequence[Segment]) -> Iterator[str]:
    for part in parts:
        text = part.text.replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;")
        yield f"{_clock(part.start, '.')} --> {_clock(part.end, '.')}\n{text}\n\n"


def _clock(seconds: float, point: str) -> str:
    """`01:02:03,456`."""
    thousandths = round(max(seconds, 0.0) * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
