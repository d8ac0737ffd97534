"""What a user gives from Python, as lists; what cannot be used is refused with what it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from regard.data.candidates import Question
from regard.data.side import Field
from regard.errors import DataError, shown

T = TypeVar("T")


def as_texts(given: Iterable[str], name: str) -> list[str]:
    """A list of what any iterable of strings gives; what is none is refused with what it is."""
    texts = as_list(given, name, "strings", "; for one text write [text]")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name} should be strings, but number {i} is {with_type(text)}")
        check_text(text, f"{name}: number {i}")
    return texts


def as_list(given: Iterable[T], name: str, of: str, hint: str = "") -> list[T]:
    """A list of what any iterable gives, save a string."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name} should be a list of {of}, not {with_type(given)}{hint}")
    return list(given)


def as_question(given: Question | tuple[str, Sequence[str]], name: str) -> Question:
    """A question, or a pair that makes one."""
    if isinstance(given, Question):
        return given
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2 or not isinstance(given[0], str):
        raise TypeError(f"{name} should be a pair (context, candidates), not {with_type(given)}")
    return Question(given[0], tuple(as_texts(given[1], f"{name}, candidates")))


def check_counts(sources: Sequence[Field], targets: Sequence[str]) -> None:
    """Refuse sources that have not a target each."""
    if len(sources) != len(targets):
        raise DataError(f"{len(sources)} sources but {len(targets)} targets; each source needs its target")


def check_text(text: str, name: str) -> None:
    """Refuse half characters, such as bytes of another encoding become on a command line."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name} is not UTF-8 text (character {error.start + 1}: {text[error.start]!r})") from None


def with_type(value: object) -> str:
    """A value in an error, and of what type it is."""
    return f"{shown(value, 40)} ({type(value).__name__})"
