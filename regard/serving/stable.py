"""Text that is sent while it is written: only what later tokens will not change."""

from __future__ import annotations

import unicodedata

BROKEN = "\ufffd"  # what stands for bytes that are no whole character yet


class StableText:
    """What of a growing text is settled. The last word is held back, since further pieces may join it and capitals or
    composed letters depend on all of it; of writing that has no blanks, the last character is."""

    def __init__(self) -> None:
        self.sent = ""

    def settled(self, text: str) -> str:
        """What is new and will stay, of the text so far."""
        end = _settled(text)
        return self._new(text[:end]) if end > len(self.sent) else ""

    def rest(self, text: str) -> str:
        """What is new of the whole text."""
        return self._new(text)

    def _new(self, text: str) -> str:
        if not text.startswith(self.sent):  # what was sent cannot be taken back
            return ""
        new, self.sent = text[len(self.sent) :], text
        return new


def _settled(text: str) -> int:
    """Up to where a text will stay as it is."""
    end = len(text.rstrip(BROKEN))
    for place in range(end - 1, 0, -1):
        if text[place].isspace():
            return len(text[:place].rstrip())
        if _apart(text[place - 1]) and not unicodedata.category(text[place]).startswith("M"):
            return place
    return 0


# Of Thai and Lao, of Burmese, of Khmer.
UNSPACED = (("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"))


def _apart(character: str) -> bool:
    """Whether a character belongs to writing that has no blanks between words, such as Chinese, Japanese or Thai."""
    if unicodedata.east_asian_width(character) in "WF":
        return not "\uac00" <= character <= "\ud7a3"  # Korean has blanks
    return any(first <= character <= last for first, last in UNSPACED)
