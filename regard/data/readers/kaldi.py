"""A data folder of Kaldi (Povey et al. 2011): `wav.scp` and `text`, and `segments` where recordings hold several
utterances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, each_line, numbered, read_lines
from regard.data.readers.reader import Reader


class Layout(Reader):
    """Lines of `text` are examples. Recordings are files, absolute or relative to `data.root` or else to the folder.

    `wav.scp` may also hold commands whose output is the sound, with a `|` at the end. They are refused: data of
    others run no code.
    """

    name = "kaldi"

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        return len(paths) == 1 and (paths[0] / "wav.scp").is_file()

    @property
    def files(self) -> Iterable[Path]:
        names = (self.path / name for name in ("wav.scp", "text", "segments"))
        return [path for path in names if path.is_file()]

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        recordings = dict(_cells(line) for _, line in read_lines(self.path / "wav.scp"))
        segments = self.path / "segments"
        spans = dict(_cells(line) for _, line in read_lines(segments)) if segments.is_file() else None
        text = self.path / "text"

        def parse(line: str, place: str) -> Example:
            name, words = _cells(line)
            if not name:
                raise BadLine(place, "blank", "is blank; leave the line out")
            source = self._recording(name, recordings, place) if spans is None else ""
            if spans is not None:
                source = self._segment(name, spans, recordings, place)
            return self.example(source, words, place)

        yield from each_line(text, numbered(text), parse, on_bad)

    def _recording(self, name: str, recordings: dict[str, str], place: str) -> str:
        if name not in recordings:
            raise BadLine(place, "malformed", f"is of '{name[:60]}', which wav.scp does not name")
        source = recordings[name]
        if source.endswith("|"):
            what = f"needs the command '{source[:60]}' of wav.scp, and commands in data are not run"
            raise BadLine(place, "malformed", f"{what}; write its output to a file and name that")
        return str((self.form.root or self.path).absolute() / source) if source else ""

    def _segment(self, name: str, spans: dict[str, str], recordings: dict[str, str], place: str) -> str:
        cells = spans.get(name, "").split()
        try:
            recording, start, end = cells
            first, last = float(start), float(end)
        except ValueError:
            first, last, recording = 0.0, -1.0, ""
        if not 0 <= first < last < 10**9:
            what = f"is of '{name[:60]}', of which segments should say recording, start and end in seconds"
            raise BadLine(place, "malformed", f"{what}, not '{' '.join(cells)[:60]}'")
        return f"{self._recording(recording, recordings, place)}#t={first:.6f},{last:.6f}"


def _cells(line: str) -> tuple[str, str]:
    """The first word of a line, and the rest."""
    name, *rest = line.split(maxsplit=1) or [""]
    return name, rest[0].strip() if rest else ""
