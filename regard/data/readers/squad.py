"""Questions and answers as SQuAD has them: one JSON file with `data`, a list of articles, each with `paragraphs` of a
`context` and its `qas` (`question`, `answers` with `text` and `answer_start`; none: the context does not say)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, tell
from regard.data.readers.json_stream import elements
from regard.data.readers.reader import JsonFile
from regard.data.records import BETWEEN, record_text
from regard.errors import DataError


class Layout(JsonFile):
    """Each answer is an example: what several people said of one question are several."""

    name, names_files = "squad", False

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        if len(self.form.given) != 1 or not self.form.given[0].settings.text:
            raise DataError(f"{self.path} (squad) has one source, question and context; set source: {{kind: text}}")
        number = -1
        for number, article in elements(self.path, "data"):
            place = f"{self.path}:data[{number}]"
            try:
                paragraphs = _several(article, "paragraphs", place)
            except BadLine as bad:
                tell(bad, on_bad)
                continue
            for i, paragraph in enumerate(paragraphs):
                yield from self._paragraph(paragraph, f"{place}.paragraphs[{i}]", on_bad)
        if number < 0:
            raise DataError(f"{self.path} has no 'data', as SQuAD has; what is it?")

    def _paragraph(self, paragraph: Any, place: str, on_bad: OnBad | None) -> Iterator[Example]:
        try:
            context = record_text(_record(paragraph, place), "context", place)
            questions = _several(paragraph, "qas", place)
        except BadLine as bad:
            tell(bad, on_bad)
            return
        for i, question in enumerate(questions):
            where = f"{place}.qas[{i}]"
            try:
                found = list(self._answers(question, context, where))
            except BadLine as bad:
                tell(bad, on_bad)
            else:
                yield from found

    def _answers(self, question: Any, context: str, place: str) -> Iterator[Example]:
        asked = record_text(_record(question, place), "question", place)
        source = self.form.fields([f"{asked.strip()}{BETWEEN}{context}"], self.folder, place)
        targets = []
        for answer in _several(question, "answers", place) if question.get("answers") else ():
            text, start = record_text(_record(answer, place), "text", place), answer.get("answer_start")
            located = self.form.wanted is not None and self.form.wanted.located
            targets.append(f"{text}{BETWEEN}{start}" if located and isinstance(start, int) else text)
        for target in dict.fromkeys(targets or [""]):
            yield Example(source, self.form.answer(target, self.folder, place), place)


def _record(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLine(place, "malformed", f"should be an object, as SQuAD has it, not {type(value).__name__}")
    return value


def _several(value: Any, key: str, place: str) -> list[Any]:
    found = _record(value, place).get(key)
    if not isinstance(found, list):
        raise BadLine(place, "malformed", f"has no list of '{key}', as SQuAD has")
    return found
