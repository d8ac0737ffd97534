"""A picture, written as the codes of a codebook that is learnt on the training pictures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from pydantic import model_validator

from regard.artifacts import replacing
from regard.data.lines import BLANKS
from regard.data.marks import NATIVE
from regard.data.modalities.image import picture_fault
from regard.data.modalities.pixels import read_picture
from regard.data.modality import Picture
from regard.data.readers.members import field_digest
from regard.data.side import Field
from regard.data.target import CODEBOOK, Scoring, Target
from regard.errors import DamagedError, DataError, ModelError, shown
from regard.evaluation.metrics import Score
from regard.registry import register
from regard.section import Share, TargetSettings

if TYPE_CHECKING:
    import torch

    from regard.data.examples import Example

FIRST = len(NATIVE.names)  # the token of code 0
MOST_BYTES = 2**28  # of pictures that a codebook is learnt on
MOST_CELLS = 2**14
WRITTEN = re.compile(r"[0-9]{1,9}(?: [0-9]{1,9})*")  # codes, as `decode` writes them


class ImageTargetSettings(TargetSettings):
    """An image, as discrete codes (van den Oord et al. 2017; Ramesh et al. 2021)."""

    written = True
    usual: ClassVar[tuple[str, ...]] = ("reconstruction",)

    size: int = Setting(64, ge=8, le=1024, description="images are resized to this many pixels a side")
    codes: int = Setting(256, ge=2, le=2**16, description="size of the codebook")
    halvings: int = Setting(
        3,
        ge=1,
        le=8,
        description="how often the codebook halves the sides: a code stands for 2 ** halvings pixels a side",
    )
    channels: int = Setting(64, ge=1, le=4096, description="channels of the codebook's convolutions")
    code_width: int = Setting(32, ge=1, le=4096, description="width of a code's vector")
    steps: int = Setting(2000, ge=1, le=10**9, description="training steps of the codebook")
    pictures: int = Setting(32, ge=1, le=10**5, description="images per step of the codebook")
    learning_rate: float = Setting(0.002, gt=0, le=10, description="initial learning rate of Adam, for the codebook")
    commitment: float = Setting(
        0.25, ge=0, le=10**6, description="weight β of the commitment loss, which keeps vectors near their code"
    )
    decay: Share = Setting(0.99, description="γ of the moving averages that form the codes")

    @model_validator(mode="after")
    def _fits(self) -> ImageTargetSettings:
        part = 2**self.halvings
        if self.size % part or self.size // part < 2:
            raise ValueError(
                f"size ({self.size}) has to be a multiple of 2 ** halvings ({part}), and at least twice that; try "
                f"size {max(2, round(self.size / part)) * part}, or fewer halvings"
            )
        if self.cells > MOST_CELLS:
            raise ValueError(
                f"a picture of {self.cells:,} codes is too long to write; raise halvings ({self.halvings})"
            )
        if other := [name for name in self.metrics or () if name not in self.usual]:
            raise ValueError(f"metrics has {other[0]!r}, which is not of pictures; there is: {', '.join(self.usual)}")
        return self

    @property
    def cells(self) -> int:
        """How many codes a picture has."""
        return int((self.size // 2**self.halvings) ** 2)


@register("image")
class ImageTarget(Target):
    """A picture of `size` x `size` pixels: the codes of a grid of cells, row by row.

    A field names a file; or it is codes, as `decode` writes them: numbers with a blank between. Every output has as
    many codes as there are cells, and `pictures` draws it.
    """

    Settings = ImageTargetSettings
    comparable = False
    codebook: Any  # a `Codebook`, of a room that stands after this one
    device: torch.device | str = "cpu"

    @property
    def size(self) -> int:
        return FIRST + int(self.settings.codes)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "uint16" if self.size <= 2**16 else "uint32"

    @property
    def fixed_length(self) -> int:  # type: ignore[override]
        return int(self.settings.cells)

    @property
    def longest(self) -> int:
        return self.fixed_length

    @property
    def pixels(self) -> int:  # type: ignore[override]
        return int(self.settings.size**2)

    # Reading

    def read(self, field: str, folder: Path) -> str:
        if not field.strip(BLANKS):
            raise ValueError("names no picture as its target")
        return str(folder / field)

    def digest(self, field: Field) -> str:
        return field_digest(field)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        if fault := super().find_fault(field):
            return fault
        what = picture_fault(field)
        return ("unreadable", f"names a target that is no picture: {what}") if what else None

    # Numbers

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        from regard.nn.codebook import PICTURES

        found: list[list[int]] = [self._codes(field) if WRITTEN.fullmatch(field) else [] for field in fields]
        named = [i for i, field in enumerate(fields) if field.strip(BLANKS) and not found[i]]
        for start in range(0, len(named), PICTURES):
            some = named[start : start + PICTURES]
            with self._working():
                rows = self.codebook.encode(self._pixels([fields[i] for i in some]))
            for i, row in zip(some, (rows + FIRST).tolist(), strict=True):
                found[i] = row
        return found

    def _codes(self, field: str) -> list[int]:
        codes = [int(code) for code in field.split(" ")]
        if max(codes) >= self.settings.codes:
            raise DataError(
                f"there is no code {max(codes)}; this codebook has those from 0 to {self.settings.codes - 1}"
            )
        return [FIRST + code for code in codes]

    def _pixels(self, fields: Sequence[str]) -> NDArray[np.uint8]:
        side = self.settings.size
        return np.stack([read_picture(field, side).reshape(side, side, 3) for field in fields])

    def decode(self, values: Sequence[int]) -> str:
        return " ".join(str(value - FIRST) for value in values if value >= FIRST)

    def check_output(self, text: str) -> None:
        if text.strip(BLANKS) and not WRITTEN.fullmatch(text):
            raise DataError("a target here is codes, such as '3 17 5', and not the path of a picture")

    def pieces(self, values: Sequence[int]) -> list[str]:
        """The row and the column of each, from 1."""
        grid = self.settings.size // 2**self.settings.halvings
        cells = [f"{row + 1},{column + 1}" for row, column in product(range(grid), repeat=2)]
        return cells[: len(values)]

    def candidate(self, value: int, before: int | None = None) -> str:
        """The code: all candidates are for one cell."""
        return self.decode([value])

    def pictures(self, texts: Sequence[str]) -> list[Picture]:
        encoded = self.encode_many(texts)
        for text, codes in zip(texts, encoded, strict=True):
            if len(codes) != self.fixed_length:
                raise DataError(f"a picture has {self.fixed_length} codes, not {len(codes)}: {shown(text, 40)}")
        if not encoded:
            return []
        with self._working():
            return list(self.codebook.decode(np.array(encoded, np.int64) - FIRST))

    # What is learnt

    def to(self, device: torch.device) -> None:
        self.device = device
        if hasattr(self, "codebook"):
            self.codebook.to(device)

    def _working(self) -> AbstractContextManager[Any]:
        """On a GPU, a thread at a time."""
        import torch

        from regard.nn.graphs import exclusive

        device = torch.device(self.device)
        return exclusive(device) if device.type == "cuda" else nullcontext()

    def _new(self) -> Any:
        from regard.nn.codebook import Codebook

        given = self.settings
        return Codebook(given.codes, given.halvings, given.channels, given.code_width, given.decay)

    def learn(
        self, examples: Iterable[Example], *, seed: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        import torch

        from regard.nn.codebook import learn_codebook

        given = self.settings
        named = list(dict.fromkeys(x.target for x in examples if x.target.strip(BLANKS)))
        most = max(MOST_BYTES // (3 * given.size**2), 1)
        if len(named) > most:
            named = [named[i] for i in np.random.default_rng(seed).choice(len(named), most, replace=False).tolist()]
        say(f"learning a codebook ({given.codes} codes, on {len(named):,} pictures)")
        pictures = []
        for field in named:
            try:
                pictures.append(self._pixels([field])[0])
            except DataError:  # reported when the examples are stored
                continue
        if not pictures:
            raise DataError("the training data hold no picture to learn a codebook from")
        with self._working():
            self.codebook = learn_codebook(
                self._new, np.stack(pictures), steps=given.steps, batch=given.pictures, rate=given.learning_rate,
                commitment=given.commitment, seed=seed, device=torch.device(self.device), say=say,
            )  # fmt: skip

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.codebook.state_dict().items()}
        with replacing(folder / f"{CODEBOOK}.safetensors") as temporary:
            save_file(tensors, temporary, {"regard": json.dumps({"kind": "codebook", "size": self.settings.size})})
            temporary.chmod(0o644)  # safetensors makes files that only their owner may read

    def load(self, folder: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = folder / f"{CODEBOOK}.safetensors"
        try:
            found = load_file(path)
        except FileNotFoundError:
            raise ModelError(f"{folder} has no {path.name}; the folder is not whole") from None
        except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
            raise DamagedError(f"{path} cannot be read ({error}); it is cut off or not a safetensors file") from None
        codebook = self._new().eval().requires_grad_(False)
        own = {name: tuple(tensor.shape) for name, tensor in codebook.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in found.items()}
        if odd := sorted({name for name, _ in own.items() ^ theirs.items()}):
            there, here = theirs.get(odd[0], "not there"), own.get(odd[0], "unknown")
            raise ModelError(f"{path} does not fit the settings of [target]: {odd[0]} is {there}, here {here}")
        codebook.load_state_dict(found)
        self.codebook = codebook.to(self.device)

    # Scores

    def scores(
        self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring | None = None
    ) -> dict[str, Score]:
        """How well the codebook draws the references again: an output is one of many right pictures, and is judged by
        what it shows (`regard evaluate --judge`)."""
        wanted = self.settings.usual if self.settings.metrics is None else self.settings.metrics
        total = 0.0
        for start in range(0, len(references) if wanted else 0, 256):
            some = references[start : start + 256]
            real, again = self._pixels(some).astype(np.float64), np.stack(self.pictures(some))
            total += float(((real - again) ** 2).mean((1, 2, 3)).sum())
        how = f"rmse|colours:0-255|size:{self.settings.size}|codes:{self.settings.codes}|cells:{self.fixed_length}"
        error = math.sqrt(total / max(len(references), 1))
        return {name: Score("reconstruction", error, how, higher_is_better=False) for name in wanted}
