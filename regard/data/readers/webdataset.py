"""Tar files as WebDataset writes them: the files of an example stand together and share a name up to its first dot
(`000001.jpg`, `000001.txt`)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, decode, tell
from regard.data.readers.archives import plain, readable, tar_members
from regard.data.readers.members import BETWEEN
from regard.data.readers.reader import Reader
from regard.data.records import record_text
from regard.errors import DataError

TEXTS = ("txt", "text", "cls", "json", "caption", "transcript")
KEYS = ("caption", "text", "label", "target")  # of .json, where target.column names none
LONGEST = 2**20  # bytes of a text
Parts = Mapping[str, bytes | None]  # an example's files by ending: the content of texts, None of others


class Layout(Reader):
    """Some tar files, or a folder of them. The source is a file of the example that is no text, the target its `.txt`,
    `.cls` or `.json`; `column` of source and target may name an ending, or a key of the `.json`."""

    name = "webdataset"
    names_files = False
    most = None

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        if len(paths) == 1 and paths[0].is_dir():
            return any(paths[0].glob("*.tar"))
        return all(path.suffix == ".tar" for path in paths)

    @property
    def files(self) -> Iterable[Path]:
        return [one for path in self.paths for one in (sorted(path.glob("*.tar")) if path.is_dir() else [path])]

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        for path in self.files:
            last = ""
            try:
                with readable(path):
                    for key, parts in _samples(path, self._texts):
                        last = key
                        try:
                            example = self._example(path, key, parts)
                        except BadLine as bad:
                            tell(bad, on_bad)
                        else:
                            yield example
            except DataError as error:
                if isinstance(error, BadLine) or not last:
                    raise
                raise DataError(f"{error} (after {last})") from None

    @property
    def _texts(self) -> set[str]:
        """Endings of members that are read as text."""
        own = [self.form.target, *(columns[0] for columns in self.form.columns if columns)]
        sides = [None, *(part.settings for part in self.form.given)]
        named = {str(name) for name, side in zip(own, sides, strict=False) if name and (side is None or side.text)}
        return {*TEXTS, *named}

    def _example(self, path: Path, key: str, parts: Parts) -> Example:
        place = f"{path}:{key}"
        texts = [self._source(path, key, parts, number) for number in range(len(self.form.given))]
        return Example(self.form.fields(texts, path.parent, place), self._target(parts, place), place)

    def _source(self, path: Path, key: str, parts: Parts, number: int) -> str:
        columns, place = self.form.columns[number], f"{path}:{key}"
        named = str(columns[0]) if columns else f"source{number + 1}" if number else None
        found = named or next((name for name, content in parts.items() if content is None), None)
        if found is None:
            raise BadLine(place, "malformed", f"has no file that could be a source; it has: {', '.join(parts)[:200]}")
        if found in parts and parts[found] is None:
            return f"{path.absolute()}{BETWEEN}{key}.{found}"
        return self._text(parts, found, place)

    def _target(self, parts: Parts, place: str) -> str:
        if self.form.target is not None:
            return self._text(parts, str(self.form.target), place)
        order = ("txt", "json", "cls") if self.form.written else ("cls", "txt", "json")
        found = next((name for name in order if name in parts), None)
        if found is None:
            raise BadLine(place, "malformed", f"has no .txt, .cls or .json; it has: {', '.join(parts)[:200]}")
        return self._text(parts, found, place)

    def _text(self, parts: Parts, name: str, place: str) -> str:
        """The text of a member with this ending, or under this key of the `.json`."""
        content = parts.get(name)
        if any(len(x) > LONGEST for x in (content, parts.get("json")) if x is not None):
            raise BadLine(place, "malformed", f"has a text of more than {LONGEST:,} bytes")
        if name != "json" and content is not None:
            return " ".join(decode(content, place).splitlines())
        raw = parts.get("json")
        if raw is None:
            raise BadLine(place, "malformed", f"has no .{name[:60]}; it has: {', '.join(parts)[:200]}")
        try:
            record = json.loads(decode(raw, place))
        except (ValueError, RecursionError) as error:
            raise BadLine(place, "malformed", f"has a .json that is none ({error})") from None
        if not isinstance(record, dict):
            raise BadLine(place, "malformed", "has a .json that should be an object")
        key = next((key for key in KEYS if key in record), KEYS[0]) if name == "json" else name
        if isinstance(record.get(key), int) and not isinstance(record[key], bool):
            return str(record[key])
        return record_text(record, key, place)


def _samples(path: Path, texts: Collection[str]) -> Iterator[tuple[str, Parts]]:
    """Each example's name and its files, of which those with such endings are texts."""
    key, parts = "", dict[str, bytes | None]()
    with path.open("rb") as file:
        for member in tar_members(path):
            folder, _, name = plain(member.name).rpartition("/")
            stem, dot, ending = name.partition(".")
            if not member.isfile() or not dot or not stem:
                continue
            here = f"{folder}/{stem}" if folder else stem
            if parts and (here != key or ending in parts):
                yield key, parts
                parts = {}
            key = here
            content: bytes | None = None
            if ending in texts:
                file.seek(member.offset_data)
                content = file.read(min(member.size, LONGEST + 1))
            parts[ending] = content
    if parts:
        yield key, parts
