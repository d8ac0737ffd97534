"""Files that requests bring: written to a private folder, since sources are read from paths, and removed afterwards.

A text never becomes a path: where a model reads files, a request has to bring the file itself.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from regard.data.modality import Modality
from regard.data.side import Field
from regard.errors import RegardError
from regard.serving.limits import Limits
from regard.serving.messages import Blob, Media, Refused, Source

ZIP = b"PK\x03\x04"  # what an .npz file begins with


class Uploads:
    """Sources of requests as fields that a modality reads."""

    def __init__(self, source: Modality, limits: Limits, folder: Path) -> None:
        self.source, self.limits, self.folder = source, limits, folder
        self.numbers = count()  # no name is used twice: readers remember what they know of a path

    def field(self, given: Source) -> tuple[Field, list[Path]]:
        """What a modality reads of a source, and the files that are to be removed when it has."""
        parts, files = list(self.source.parts), list[Path]()
        check_source(given, [part.media for part in parts])
        try:
            found = [
                one if isinstance(one, str) else self._stored(one, part, files)
                for part, one in zip(parts, given if isinstance(given, list) else [given], strict=True)
            ]
        except BaseException:
            remove(files)
            raise
        return (found[0] if len(parts) == 1 else tuple(found)), files

    def _stored(self, blob: Blob, part: Modality, files: list[Path]) -> str:
        """The path of a file that is small enough to be decoded."""
        path = self.folder / f"{next(self.numbers)}{'.npz' if blob.data.startswith(ZIP) else ''}"
        files.append(path)
        path.touch(0o600)
        path.write_bytes(blob.data)
        limits, extent = self.limits, part.extent(str(path))
        for name, found, most in (
            ("pixels", extent.pixels, limits.pixels),
            ("pixels in all frames", extent.pixels_of_all, limits.clip_pixels),
            ("seconds", extent.seconds, limits.seconds),
        ):
            if found > most:
                raise Refused(413, "too_large", f"the {part.media} has {found:,.12g} {name}, more than {most:,.12g}")
        return str(path)

    def described(self, error: RegardError) -> str:
        """What is wrong with a source, without the path of its file."""
        return str(error).replace(f"{self.folder}/", "upload ")


def check_source(given: Source, media: list[Media]) -> None:
    """Refuse a source that is not what a model reads; no media at all: a text, by which the output begins."""
    wanted = media or ["text"]
    parts = given if isinstance(given, list) else [given]
    if len(parts) != len(wanted):
        raise Refused(422, "unprocessable", f"an input here is {_named(wanted)}, not a list of {len(parts)}")
    for one, kind in zip(parts, wanted, strict=True):
        if isinstance(one, str) != (kind == "text"):
            brought = "a text" if isinstance(one, str) else "a file"
            raise Refused(422, "unprocessable", f"an input here is {_named(wanted)}, not {brought}")


def _named(media: list[Media]) -> str:
    names = ["a text" if kind == "text" else f'{{"data": base64 of {kind}}}' for kind in media]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def remove(files: list[Path]) -> None:
    """Files that were read."""
    for path in files:
        path.unlink(missing_ok=True)
