"""What a model attended to, as an `Explanation`, whatever its task."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.modality import Modality, Picture
from regard.data.side import Field, Item
from regard.data.target import Target
from regard.errors import DataError
from regard.evaluation.alignment import Link
from regard.explain.trace import Explanation, Layer, Part
from regard.tasks.results import Tokens
from regard.tasks.task import Task, attention_kind, attention_part


def explained(task: Task, field: Field, item: Item, target: Tokens, gold: Sequence[Link] = ()) -> Explanation:
    """All attention of a task's model while it reads off a target for `item`, which is what it makes of `field`."""
    if problem := task.source.problem(item, task.longest):
        raise DataError(f"the source {problem}")
    pieces = vars(task.shown(field, item, target)).copy()
    _, attended = next(iter(task.attention([item], [pieces.pop("tokens")])))
    layers = [Layer(name, attention_kind(name), matrix, attention_part(name)) for name, matrix in attended.items()]
    return Explanation(
        **pieces, layers=layers, best=task.best_layer, canvas=task.source.canvas(item),
        parts=_parts(task.source, item), gold=list(gold), drawn=_drawn(task.target, target),
    )  # fmt: skip


def _drawn(target: Target, tokens: Tokens) -> Picture | None:
    """The picture that a target is, if it is one and all of it is there."""
    if not target.pixels or len(tokens) != target.fixed_length:
        return None
    return target.pictures([target.decode(tokens)])[0]


def _parts(source: Modality, item: Item) -> list[Part]:
    """Which pieces are of which source, where there are several."""
    found, start = [], 0
    for number, (part, one) in enumerate(zip(source.parts, item, strict=True) if len(source.parts) > 1 else (), 1):
        end = start + part.places(one)
        found.append(Part(f"{number}: {part.settings.kind}", start, end, part.canvas(one)))
        start = end
    return found
