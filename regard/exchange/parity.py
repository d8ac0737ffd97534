"""Whether an export writes what its model writes: both decode some validation data, and their outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.examples import read_examples
from regard.data.side import Item
from regard.data.tokens import clean
from regard.errors import ConfigError, DataError, ModelError
from regard.evaluation.metrics import Bleu, Chrf
from regard.nn.hard import HardAttention
from regard.search.limits import Hypothesis
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Tokens
from regard.tasks.task import Task

TOLERANCE = 1e-3  # of `log p` of a token
ROUNDING = 1e-5  # of an attention weight
LONGEST = 24  # tokens of a made-up source
PLAIN = {
    "nbest": 1, "sample": False, "mbr": 0, "contrastive": 0.0, "groups": 1, "coverage": 0.0, "repetition_penalty": 1.0,
    "prefix_scored": True,
}  # fmt: skip


def check_rules(task: Task) -> None:
    """Refuse a model whose outputs keep rules that neither ONNX exports nor CTranslate2 can."""
    if len(task.first) > 1:
        raise ConfigError(
            "outputs of this model begin with several special tokens; those of ONNX and CTranslate2 exports with one"
        )
    if task.target.marks.opening or task.target.marks.banned:
        raise ConfigError(
            "outputs of this model may not begin with some tokens, or hold some sequences of tokens "
            "(begin_suppress_tokens, bad_words_ids), which ONNX and CTranslate2 exports cannot keep to"
        )


Decode = Callable[[Sequence[Item], Search, Sequence[Tokens]], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Report:
    """How an export compares with the model it was made from, on some sources."""

    folder: str
    bytes: int
    lines: int
    made_up: bool  # the sources: no validation data were found
    greedy_matches: int
    beam: int
    beam_matches: int
    difference: float  # the largest mean over an output that both write, of `log p` of a token
    chrf: float  # of the export's outputs against the model's, from beam search
    bleu: tuple[float, float] | None = None  # of the model's outputs and the export's, where there are references
    quantization: str = "float32"  # how weights are stored
    computed_in: str = "float32"  # here; not every machine computes in what is stored
    left_out: list[str] = field(default_factory=list)  # search settings of the model that the export does not know

    def __str__(self) -> str:
        computed = "" if self.computed_in == self.quantization else f" (computed in {self.computed_in} here)"
        references = f"; BLEU {self.bleu[0]:.2f} before, {self.bleu[1]:.2f} after" if self.bleu else ""
        left_out = f"; the runner does without {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.folder}: {self.quantization}{computed}, {self.bytes / 2**20:.1f} MiB; of {self.lines} "
            f"{'made-up ' if self.made_up else ''}sources {self.greedy_matches} are written the same greedily and "
            f"{self.beam_matches} with beam {self.beam} (chrF {self.chrf:.1f}); log p of a token differs by at most "
            f"{self.difference:.1e}{references}{left_out}"
        )


def compare(
    task: TextGeneration, decode: Decode, settings: Search, count: int, folder: Path, made: Path, **facts: Any
) -> Report:
    """Decode some sources with a model and with what was `made` of it, which is to be put into `folder`.

    Where weights are stored in float32, a difference beyond rounding is an error.
    """
    settings, sides = settings.model_copy(update=PLAIN), dict[int, list[tuple[Hypothesis, Hypothesis]]]()
    items, prefixes, references, made_up = samples(task, settings, max(1, count))
    for beam in dict.fromkeys((1, settings.beam)):
        search = settings.model_copy(update={"beam": beam})
        ours, theirs = task.search(items, search, prefixes=prefixes), decode(items, search, prefixes)
        sides[beam] = [(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)]
    greedy, beams = sides[1], sides[settings.beam]
    before, after = ([clean(task.target.decode(pair[k].tokens)) for pair in beams] for k in (0, 1))
    equal = [[pair for pair in pairs if pair[0].tokens == pair[1].tokens] for pairs in (greedy, beams)]
    report = Report(
        folder=str(folder), bytes=sum(path.stat().st_size for path in made.iterdir()), lines=len(items),
        made_up=made_up, greedy_matches=len(equal[0]), beam=settings.beam, beam_matches=len(equal[1]),
        difference=max((_apart(*pair) for pairs in equal for pair in pairs), default=0.0),
        chrf=Chrf()(after, before).value,
        bleu=(Bleu()(before, references).value, Bleu()(after, references).value) if references else None, **facts,
    )  # fmt: skip
    if report.quantization == "float32":
        both = (greedy, beams)
        wrong = [sum(not agree(task, item, *pair) for item, pair in zip(items, x, strict=True)) for x in both]
        if wrong[0] or wrong[1] > max(1, len(items) // 10):  # beams may part at a near tie that neither output shows
            raise ModelError(f"the export does not write what the model writes, and is thrown away: {report}")
    return report


def _apart(one: Hypothesis, other: Hypothesis) -> float:
    """How far `log p` of a token is apart, on average; an output that nothing closed has none."""
    return 0.0 if one.log_prob == other.log_prob else abs(one.log_prob - other.log_prob) / (len(one.tokens) + 1)


def agree(task: TextGeneration, item: Item, ours: Hypothesis, theirs: Hypothesis) -> bool:
    """Whether two outputs differ by rounding alone: they may part where either token was as likely, or after hard
    attention had two places to choose from that were as good."""
    if ours.tokens == theirs.tokens and _apart(ours, theirs) <= TOLERANCE:
        return True
    gaps = [1.0]

    def watch(score: nn.Module, given: Any, scores: Tensor) -> None:
        if scores.shape[-1] > 1:
            first, second = scores.softmax(-1).topk(2).values.unbind(-1)
            gaps.append(float((first - second).min()))

    hard = [module for module in task.model.modules() if isinstance(module, HardAttention)]
    hooks = [module.score.register_forward_hook(watch) for module in hard]
    mine, other = (task.score_items([item], [side.tokens])[0].tokens for side in (ours, theirs))
    for hook in hooks:
        hook.remove()
    end = task.target.marks.end
    both = enumerate(zip([*ours.tokens, end], [*theirs.tokens, end], strict=False))
    parting = next((i for i, (a, b) in both if a != b), None)
    as_likely = parting is not None and abs(mine[parting] - other[parting]) < TOLERANCE
    return as_likely or min(gaps) < ROUNDING


def samples(task: TextGeneration, settings: Search, count: int) -> tuple[list[Item], list[list[int]], list[str], bool]:
    """Some validation data: sources, prefixes and references. Without data, sources drawn from a seed, and True.

    A language model continues the first tokens of a text, and has no references.
    """
    alone, begin = not task.config.sources[0].given, min(4, settings.max_length)
    try:
        found = list(read_examples(task.config.data, "valid", task.sides.form))
        found = found[:: max(1, len(found) // count)][:count]
        read = zip(found, task.source.encode_many([x.source or x.target for x in found]), strict=True)
        fits = [(x, item) for x, item in read if not task.source.problem(item, settings.max_source)]
        pairs = [pair for pair in fits if not task.unfit(pair[1], []) and task.room([pair[1]], settings)[0] >= 1]
        if pairs:
            prefixes = [task.target.encode(x.target)[:begin] if alone else [] for x, _ in pairs]
            return [item for _, item in pairs], prefixes, [] if alone else [clean(x.target) for x, _ in pairs], False
    except (ConfigError, DataError, OSError):
        pass
    draw = np.random.default_rng(1)
    longest = min(LONGEST, settings.max_source, task.longest // 2)  # which leaves room for an output
    lengths = draw.integers(begin + 1, size=count) if alone else [0] * count
    ids = task.target.marks.text_ids(task.target.size)
    prefixes = [ids[draw.integers(len(ids), size=length)].tolist() for length in lengths]
    return list(task.source.made_up(draw, count, longest)), prefixes, [], True
