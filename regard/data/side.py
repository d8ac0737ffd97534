"""What stores and batches ask of either side of an example, whatever it is: how it is read, what numbers it becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.section import SideSettings

Array = NDArray[Any]
Item = Any  # one source or target as numbers: a list of token ids, an array of elements; of several sources, a tuple
Field = Any  # one source as it stands in a record: a text, the path of a file; of several sources, a tuple


class Side(ABC):
    """A source or a target: its settings, and how it becomes numbers."""

    Settings: ClassVar[type[SideSettings]]

    def __init__(self, settings: SideSettings) -> None:
        self.settings: Any = settings

    dtype: str = "float32"  # of an element on disk
    shape: tuple[int, ...] = ()  # of an element
    located = False  # in data it may say at which character of the other side it stands: `answer <sep> 17`

    def read(self, field: str, folder: Path) -> str:
        """A field of a record that stands in a file of this folder; one that cannot be is a ValueError."""
        return field

    def digest(self, field: Field) -> str:
        """What tells the content apart of files that a field names; empty if it names none."""
        return ""

    @property
    def sampled(self) -> float:
        """How freely its tokens are drawn anew each time; 0: never. It is then stored as text."""
        return 0.0

    @abstractmethod
    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> Sequence[Item]:
        """The numbers of each; with `sampling`, drawn from a seed."""

    def find_fault(self, field: str) -> tuple[str, str] | None:
        """What is wrong with a field before anything is learnt from the data: which kind of fault, and what to say."""
        return None

    @property
    def longest(self) -> int | None:
        """The most elements that are trained on; None: any number."""
        limit: int | None = getattr(self.settings, "max_length", None)
        return limit

    def cost(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """What items of these lengths count in the budget of a batch."""
        return lengths + 1
