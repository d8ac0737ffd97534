"""Shards of encoded pictures or sounds in one `.npz`, with labels or captions beside them.

    np.savez("train.npz", data=bytes_of_all_files, offsets=starts_and_end, labels=labels)

`data` (or `jpeg`) are the files end to end as uint8, and `offsets` where each begins and the last ends. `labels` are
texts or numbers, which `classes` may name; `captions` are texts, one of each file or a row of several, of which empty
ones are left out. `names` are the files' names; without them they are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, tell
from regard.data.readers.archives import Shard, members_of
from regard.data.readers.members import BETWEEN
from regard.data.readers.reader import Reader
from regard.errors import DataError


class Layout(Reader):
    """Some shards, or a folder of them."""

    name = "npz"
    most = None

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        if len(paths) == 1 and paths[0].is_dir():
            return any(paths[0].glob("*.npz"))
        return all(path.suffix == ".npz" for path in paths)

    @property
    def files(self) -> Iterable[Path]:
        return [one for path in self.paths for one in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        for path in self.files:
            yield from self._of_shard(path, on_bad)

    def _of_shard(self, path: Path, on_bad: OnBad | None) -> Iterator[Example]:
        shard, count = Shard(path), len(members_of(path))
        targets, names = _targets(shard, self.form.written), shard.array("names")
        if len(targets) != count:
            raise DataError(f"{path} has {len(targets)} labels or captions for {count} files")
        for number in range(count):
            member = str(number if names is None else names[number])
            place = f"{path}:{member}"
            source = f"{path.absolute()}{BETWEEN}{member}"
            own = np.atleast_1d(targets[number])
            texts = [str(x) for x in own.tolist()]
            for text in [x for x in texts if x] or [""]:
                try:
                    if own.dtype.kind == "f" and not np.isfinite(own).all():
                        raise BadLine(place, "malformed", f"has the label {text}, which is no number")
                    example = self.example(source, text, place)
                except BadLine as bad:
                    tell(bad, on_bad)
                else:
                    yield example


def _targets(shard: Shard, written: bool) -> NDArray[Any]:
    """Labels or captions of all files; of both, what the target is."""
    for name in ("captions", "labels") if written else ("labels", "captions"):
        found = shard.array(name)
        if found is None:
            continue
        if found.ndim not in (1, 2) or found.dtype.kind not in "USiufb":
            raise DataError(
                f"{shard.path} has '{name}' {found.shape} of {found.dtype}; a text or number a file will do"
            )
        classes = shard.array("classes") if name == "labels" and found.dtype.kind in "iu" else None
        if classes is None:
            return found
        if classes.ndim != 1:
            raise DataError(f"{shard.path} has 'classes' {classes.shape}; a row of names will do")
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < len(classes):
            low, high = found.min(), found.max()
            raise DataError(f"{shard.path} has labels from {low} to {high}, and {len(classes)} classes, from 0 on")
        return np.asarray(classes[found])
    raise DataError(
        f"{shard.path} has neither 'labels' nor 'captions'; add them, or name a file of captions, and the shard as "
        "data.root"
    )
