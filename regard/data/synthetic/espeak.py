"""espeak-ng through `ctypes`, as a program of its own: utterances in, samples and word times out.

`speech.py` runs this file in a new process for each block of utterances, because espeak-ng carries state from one call
to the next (phases, flutter, noise) that neither its seed nor a new `espeak_Initialize` resets: only the same calls in
a new process give the same samples. The file imports nothing but the standard library, so that a process starts in a
few hundredths of a second.

    python espeak.py LIBRARY DATA < utterances > speech

Each line of input is a JSON list: text, voice, words a minute, pitch (0 to 99). For each, the output has a line of JSON
with the number of samples and the word events as lists of position in the text (characters from 0) and sample, and
after it the samples, 16 bits each in the machine's order. What is wrong is said on standard error, with status 1.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

SAMPLE_RATE = 22050

_SYNCHRONOUS, _UTF8, _CHARACTERS = 2, 1, 1
_RATE, _PITCH = 1, 3  # of espeak_SetParameter
_LAST, _WORD = 0, 1  # kinds of event


class _Event(ctypes.Structure):
    """`espeak_EVENT` of speak_lib.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_void_p),  # a union of pointers, a number and eight characters
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Espeak:
    """The library, loaded; `say` has it speak."""

    def __init__(self, library: str, data: str) -> None:
        self._library = ctypes.CDLL(library)
        rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), 0)
        if rate != SAMPLE_RATE:
            raise ValueError(
                f"espeak-ng does not start with {data}: it says {rate}, not {SAMPLE_RATE} samples a second"
            )
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # else it is the time, which breathy voices draw from
        self._samples, self._words = bytearray(), list[tuple[int, int]]()
        self._callback = _Callback(self._receive)  # must live as long as the library may call it
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: str, rate: int, pitch: int) -> tuple[bytes, list[tuple[int, int]]]:
        """The samples, and for each word where it stands in the text and at which sample it begins."""
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        self._library.espeak_SetParameter(_RATE, rate, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        self._samples.clear()
        self._words.clear()
        raw = text.encode() + b"\0"
        if self._library.espeak_Synth(raw, ctypes.c_size_t(len(raw)), 0, _CHARACTERS, 0, _UTF8, None, None):
            raise ValueError(f"espeak-ng cannot say {text!r}")
        return bytes(self._samples), list(self._words)

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._samples += ctypes.string_at(samples, count * ctypes.sizeof(ctypes.c_short))
        number = 0
        while events[number].kind != _LAST:
            event = events[number]
            if event.kind == _WORD:
                self._words.append((event.text_position - 1, event.sample))
            number += 1
        return 0  # go on


def main(library: str, data: str) -> None:
    espeak = Espeak(library, data)
    for line in sys.stdin:
        samples, words = espeak.say(*json.loads(line))
        header = json.dumps([len(samples) // ctypes.sizeof(ctypes.c_short), words])
        sys.stdout.buffer.write(f"{header}\n".encode() + samples)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))
