"""Captions as COCO has them: one JSON file with `images` (`id`, `file_name`) and `annotations` (`image_id`,
`caption`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, tell
from regard.data.readers.json_stream import elements
from regard.data.readers.reader import JsonFile, find_pictures
from regard.errors import DataError


class Layout(JsonFile):
    """Each annotation is an example: five captions of a picture are five."""

    name = "coco"

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        pictures: dict[Any, str] = {}
        for _, record in elements(self.path, "images"):
            if isinstance(record, dict) and isinstance(record.get("id"), int | str):
                pictures[record["id"]] = str(record.get("file_name", ""))
        if not pictures:
            raise DataError(f"{self.path} has no 'images' with 'id' and 'file_name', as COCO's captions have")
        split = self.path.name.partition(".")[0].rpartition("_")[2]  # captions_train2014.json
        place_of = find_pictures(self.path, self.form, pictures.values(), (split, "images"))
        number = -1
        for number, record in elements(self.path, "annotations"):
            place = f"{self.path}:annotations[{number}]"
            try:
                example = self._example(record, pictures, place_of, place)
            except BadLine as bad:
                tell(bad, on_bad)
            else:
                yield example
        if number < 0:
            raise DataError(f"{self.path} has no 'annotations', as COCO's captions have")

    def _example(self, record: Any, pictures: dict[Any, str], place_of: Callable[[str], str], place: str) -> Example:
        if not isinstance(record, dict) or not isinstance(record.get("caption"), str):
            raise BadLine(place, "malformed", "has no 'caption'; is it a file of captions?")
        number = record.get("image_id")
        name = pictures.get(number) if isinstance(number, int | str) else None
        if not name:
            raise BadLine(place, "malformed", f"names picture {str(number)[:60]}, which is not among 'images'")
        try:
            record["caption"].encode()
        except UnicodeEncodeError:
            raise BadLine(place, "malformed", "has a 'caption' with half a character") from None
        return self.example(place_of(name), " ".join(record["caption"].splitlines()), place)
