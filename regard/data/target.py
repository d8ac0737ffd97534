"""A kind of target, as one class that owns its numbers, its loss, its decoding and its scores. See `targets/`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from regard.data.lines import BLANKS
from regard.data.marks import NATIVE, Marks
from regard.data.side import Field, Item, Side
from regard.data.tokens import Tokenizer
from regard.data.words import Phrase, WordEdges
from regard.errors import ConfigError
from regard.evaluation.bootstrap import interval, is_resampled, statistics
from regard.evaluation.metrics import Bleu, Metric, References, Score
from regard.registry import METRICS, TARGETS, Family

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from regard.data.examples import Example, Form
    from regard.data.modality import Modality, Picture
    from regard.evaluation.labels import ClassScore
    from regard.ragged import Ragged

LABELS = "labels"  # the file that holds what a target learnt, if it is not a tokenizer
CODEBOOK = "codebook"  # the same of pictures


@dataclass(frozen=True)
class Scoring:
    """How outputs are scored: sacrebleu's BLEU tokenizer, further references (each a list as long as the outputs, with
    None where an output has no more), whether to resample the test set for 95 % confidence intervals, and the best
    answers to each input, best first, where more than the best counts (`HeadTarget.ranked`)."""

    tokenize: str | None = None
    references: Sequence[References] = ()
    confidence: bool = False
    ranked: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        if self.tokenize is not None:
            Bleu(self.tokenize).make()  # an error, if there is none of that name, before anything is decoded


class Answer(NamedTuple):
    """One answer of a head: its numbers, and `log p` of it (0 where there is none)."""

    values: list[Any]
    log_prob: float


class Target(Side):
    """A kind of target. One that is `written` comes a token at a time out of a search; any other is a `HeadTarget`."""

    family: ClassVar[Family] = TARGETS
    tokenizer: Tokenizer | None = None
    fixed_length: int | None = None  # of all outputs that are written, where they are of one length
    paired = False  # its numbers depend on the source (`numbers`)
    pixels = 0  # of the picture that each output is; 0: outputs are no pictures
    comparable = True  # a source has one right output, or few; False: many, which no reference stands for

    @property
    @abstractmethod
    def size(self) -> int:
        """How many outputs the model's last layer has."""

    @property
    def marks(self) -> Marks:
        """What an output begins and ends with, where it is written."""
        return NATIVE if self.tokenizer is None else self.tokenizer.marks

    @property
    def block(self) -> int | None:
        """Tokens of a block, where all targets are one stream that is cut into blocks; a blank one is then one too."""
        return None

    # Numbers

    def find_fault(self, field: str) -> tuple[str, str] | None:
        return ("blank", "has an empty target") if self.is_missing(field) else None

    def is_missing(self, field: str) -> bool:
        """Whether a record says nothing of what is wanted, so that it cannot be used."""
        return not field.strip(BLANKS)

    def encode(self, text: str) -> list[Any]:
        """The numbers of one target."""
        return list(self.encode_many([text])[0])

    @abstractmethod
    def decode(self, values: Sequence[Any]) -> str:
        """The text of numbers."""

    @property
    def edges(self) -> WordEdges | None:
        """Which numbers go on a word, where it is written in numbers that do."""
        return None

    def phrases(self, texts: Sequence[str]) -> list[Phrase]:
        """What outputs are to hold, as numbers."""
        return [Phrase(tuple(values)) for values in self.encode_many(texts)]

    def counted(self, text: str) -> Sequence[Any]:
        """What an output or a reference is counted in, for accuracy and for speed."""
        return self.encode(text)

    def pieces(self, values: Sequence[Any]) -> list[str]:
        """Each number as it should be shown."""
        return [self.decode([value]) for value in values]

    def check_output(self, text: str) -> None:
        """Refuse a text that could not be an output, where another would be read otherwise, such as the path of a file;
        whoever sends it must not read files with it."""

    def candidate(self, value: Any, before: Any = None) -> str:
        """A number as it should be shown among others that might stand in one place, after the number there."""
        return self.pieces([value] if before is None else [before, value])[-1]

    def words(self, values: Sequence[Any]) -> list[int]:
        """The number of the word that each belongs to; -1 for marks."""
        return list(range(len(values)))

    def pictures(self, texts: Sequence[str]) -> list[Picture]:
        """The pictures of outputs, where outputs are pictures."""
        raise ConfigError(f"target.kind '{self.settings.kind}' is no picture; target.kind image is")

    def numbers(self, source: Modality, field: Field, item: Item, text: str) -> list[tuple[Item, Item]] | None:
        """Both sides of an example as they are trained on, where they depend on each other: an item, and the numbers
        of its target; several, where a source is cut. None: they are what each side makes of its own."""
        return None

    def rows(self, item: Item) -> list[Item]:
        """The sequences that a model reads of one item."""
        return [item]

    def judged(self, form: Form) -> Form:
        """How examples stand in files to validate and to evaluate on, where it is not as in training data."""
        return form

    # What is learnt from the data

    def learn(
        self, examples: Iterable[Example], *, seed: int = 0, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Take from the training data what there is to know, save tokens; draws come from `seed`, and `say` hears of
        what takes a while."""

    def to(self, device: torch.device) -> None:
        """Where its network runs from now on, if it has one."""

    def save(self, folder: Path) -> None:
        """Write what `load` reads."""

    def load(self, folder: Path) -> None:
        """Read what was learnt."""

    def unseen(self, texts: Iterable[str]) -> list[str]:
        """What these targets hold that training never saw, and that can therefore not be predicted."""
        return []

    def describe_unseen(self, texts: Iterable[str], name: str) -> tuple[str, bool] | None:
        """What to say of `unseen` in the targets of some data, which are called `name`, and whether it is all that they
        hold; None if there is none."""
        return None

    def mismatch(self, source: Modality, field: Any, text: str) -> str | None:
        """Why a source and a target do not go together, or None."""
        return None

    # Scores

    def scores(
        self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring | None = None
    ) -> dict[str, Score]:
        """The metrics that the settings name, or the usual ones."""
        wanted: list[str] | None = self.settings.metrics
        scoring = scoring or Scoring()
        usual = self.usual_scores(outputs, references, scoring)
        if wanted is None:
            return usual
        there = [name for name in wanted if name in usual or name in METRICS.kinds]
        return {name: usual[name] if name in usual else measure(name, outputs, references, scoring) for name in there}

    def usual_scores(self, outputs: Sequence[str], references: Sequence[str], scoring: Scoring) -> dict[str, Score]:
        """All metrics that are usual for this kind of target."""
        return {}


class HeadTarget(Target):
    """A kind of target that a head over the source predicts at once: from a vector for the whole, or for each word."""

    explained = True  # its answers have probabilities, and others may be forced
    ranked = 1  # how many answers its scores look at
    wrapped = False  # an item holds more than a model reads of it (`rows`)
    contrasts = False  # the loss of a row is taken over the rows of its batch
    several_references = False  # examples of one source are one input with several references, when evaluated

    def counted(self, text: str) -> Sequence[Any]:
        return [text]

    def positions(self, source: Modality, item: Item, *, last: bool) -> list[int]:
        """Which vectors of the body it is predicted from; [0] stands for the whole."""
        return [0]

    @abstractmethod
    def pack(self, targets: Sequence[Item]) -> Ragged:
        """Right answers, laid end to end; those that do not count are `IGNORED`."""

    @abstractmethod
    def loss(self, found: Ragged, right: Ragged, smoothing: float, share: Tensor | None = None) -> Tensor:
        """The loss of what a head says, `(total, size)`, summed; each counts by its `share`, `(total,)`, if given."""

    def judged_loss(self, found: Ragged, right: Ragged) -> Tensor:
        """The loss of a validation."""
        return self.loss(found, right, 0.0)

    @abstractmethod
    def predictions(self, found: Tensor, count: int) -> list[Answer]:
        """The best answers for one source, best first, of `(positions, size)` outputs of the head."""

    @abstractmethod
    def log_probs(self, found: Tensor, target: Item) -> list[float]:
        """`log p` of each right answer."""

    def log_probs_of(self, found: Sequence[Tensor], targets: Sequence[Item]) -> list[float]:
        """`log p` of each right answer, where a source is cut into several parts."""
        return self.log_probs(found[0], targets[0])

    def hits(self, found: Ragged, right: Ragged) -> float | None:
        """How many are right; None where that means nothing."""
        return None

    # In use

    def parts(self, source: Modality, field: Field, item: Item) -> list[Item]:
        """The items that an input is read as: itself, or where it is too long, windows of it. One of which nothing can
        be predicted is a DataError."""
        return [item]

    def answers(self, parts: Sequence[Item], found: Sequence[Tensor], count: int) -> list[Answer]:
        """The best answers to one input, best first, of what the head says of each of its parts."""
        return self.predictions(found[0], count)

    def text(self, source: Modality, field: Field, values: Sequence[Any]) -> str:
        """The text of an answer to an input."""
        return self.decode(values)

    def reference(self, source: Modality, field: Field, text: str) -> str:
        """A target as it stands in the data, as what answers are held against."""
        return text

    def class_scores(self, outputs: Sequence[str], references: Sequence[str]) -> tuple[ClassScore, ...]:
        """How well each label is predicted, where there are labels."""
        return ()


def measure(name: str, outputs: Sequence[str], references: Sequence[str], scoring: Scoring | None = None) -> Score:
    """The score of a registered metric."""
    scoring = scoring or Scoring()
    metric: Metric = Bleu(scoring.tokenize) if name == "bleu" else METRICS.get(name)()
    score = metric(outputs, references, *scoring.references)
    if scoring.confidence and is_resampled(name):
        rows = statistics(name, outputs, [references, *scoring.references], tokenize=scoring.tokenize)
        return replace(score, interval=interval(name, rows))
    return score
