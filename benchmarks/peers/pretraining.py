"""A language model or a masked language model to pretrain on plain text: Regard's, and those of Hugging Face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.base import Step, need, quiet, stepper
from benchmarks.race import Role, UnavailableError
from regard.config import parse
from regard.data.batch import IGNORED, Batch, Room
from regard.data.batches import pack
from regard.data.layouts import Layout
from regard.data.marks import BOS, EOS, MARKS, MASK, PAD
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.ragged import Ragged
from regard.tasks.task import Task
from regard.training.objectives import make_objective
from regard.training.update import Updater

MASKED = 0.15  # share of the tokens that a masked language model predicts
UNMASKED = "sdpa_unmasked"  # to transformers: torch's attention, for which it makes no masks


@dataclass(frozen=True)
class LanguageModel:
    """How large a model of plain text is, and whether it is masked, as BERT, or causal, as GPT-2."""

    name: str
    kind: Literal["bert", "gpt2"]
    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int
    longest: int = 512

    @property
    def masked(self) -> bool:
        return self.kind == "bert"

    def __str__(self) -> str:
        sizes = f"{self.layers} layers, d_model {self.d_model}, d_ff {self.d_ff}, {self.heads} heads"
        what = "masked language model, post-norm" if self.masked else "language model, pre-norm"
        return f"{what}, {sizes}, vocabulary {self.vocabulary:,}, learned positions"

    def settings(self, dropout: float) -> dict[str, Any]:
        """Regard's sections for source, target, tokens and model: the network that its peers have."""
        blocks = {
            "kind": "transformer", "layers": self.layers, "heads": self.heads, "d_ff": self.d_ff,
            "positions": "learned",
        }  # fmt: skip
        read = {"norm": "post", "activation": "gelu", "embedding_norm": True, "norm_epsilon": 1e-12,
                "stem": {"kind": "tokens", "segments": 2}}  # fmt: skip
        parts: tuple[dict[str, Any], dict[str, Any]] = ({**blocks, **read}, {"kind": "none"})
        if not self.masked:
            parts = ({"kind": "none"}, {**blocks, "norm": "pre", "activation": "gelu_tanh"})
        model = {
            "d_model": self.d_model, "dropout": dropout, "encoder": parts[0], "decoder": parts[1],
            "scale_embeddings": False, "output_bias": self.masked, "max_positions": self.longest,
        }  # fmt: skip
        return {
            "source": {"kind": "none"}, "target": {"max_length": self.longest - 2},
            "tokens": {"kind": "word", "size": self.vocabulary}, "model": model,
        }  # fmt: skip

    def flop(self, lengths: Sequence[int]) -> float:
        """Of all matrix products of a training step on texts of these lengths, three times those of the forward pass:
        of causal attention half, of the output layer what is predicted, of a masked model its transform too."""
        n, d, total = self.layers, self.d_model, sum(lengths)
        squares = sum(length**2 for length in lengths) * (1.0 if self.masked else 0.5)
        predicted = sum(predictions(length) for length in lengths) if self.masked else total
        body = n * (4 * total * d * d + 2 * total * d * self.d_ff + 2 * squares * d)
        return 3 * 2.0 * (body + predicted * (d * self.vocabulary + (d * d if self.masked else 0)))


def predictions(length: int) -> int:
    """How many tokens of a text are masked."""
    return max(1, round(MASKED * (length - 2)))


@dataclass(frozen=True)
class TextLoad:
    """What is trained on what."""

    shape: LanguageModel
    device: torch.device
    precision: str
    dropout: float
    budget: int  # tokens in a batch
    count: int  # batches
    seed: int
    mean: float | None = None  # length of texts; None: all are blocks of the longest

    def texts(self) -> list[list[list[int]]]:
        """Batches of texts of like length between their marks, none of which is more than the budget."""
        draw, longest = np.random.default_rng((self.seed, 5)), self.shape.longest
        if self.mean is None:
            lengths = np.full(self.count * max(self.budget // longest, 1), longest)
        else:
            rows = int(4 * self.count * self.budget / self.mean)
            lengths = draw.lognormal(np.log(self.mean) - 0.5 * 0.8**2, 0.8, rows).astype(np.int64).clip(8, longest)
        packs = pack([lengths], [self.budget])
        some = [packs[i] for i in np.linspace(0, len(packs) - 1, self.count).astype(int)]
        return [
            [[BOS, *draw.integers(len(MARKS), self.shape.vocabulary, lengths[i] - 2).tolist(), EOS] for i in members]
            for members in some
        ]

    def masked(self, texts: Sequence[Sequence[int]]) -> list[tuple[list[int], list[int]]]:
        """Each text with some of its tokens masked, and which."""
        draw, found = np.random.default_rng((self.seed, len(texts))), []
        for text in texts:
            places = np.sort(1 + draw.choice(len(text) - 2, predictions(len(text)), replace=False)).tolist()
            hidden = list(text)
            for place in places:
                hidden[place] = MASK
            found.append((hidden, places))
        return found


@dataclass(frozen=True)
class TextPeer(ABC):
    """A program that is measured; `training` gives batches of texts, which are on the device, a step, and the model."""

    title: str
    note: str = ""
    role: Role = "peer"

    @abstractmethod
    def training(self, load: TextLoad) -> tuple[list[Any], Step, nn.Module]:
        """Batches of what is measured, a step on one of them, and the weights."""


@dataclass(frozen=True)
class RegardText(TextPeer):
    """Regard's update, as its trainer makes it."""

    title: str = "Regard"
    role: Role = "ours"

    def task(self, load: TextLoad) -> Task:
        """What is trained, with fresh weights."""
        fixed = {"learning_rate": 1e-4, "warmup": 0, "schedule": "constant", "label_smoothing": 0.0, "clip": 1.0}
        size = {"batch_tokens": load.budget, "precision": load.precision}
        training = {**fixed, **size, "device": load.device.type, "tensorboard": False}
        sides = Sides.of(parse({**load.shape.settings(load.dropout), "training": training}, "the benchmark's settings"))
        sides.use({SHARED: Symbols("word", [f"w{i}" for i in range(len(MARKS), load.shape.vocabulary)])})
        return new_task(sides, load.device)

    def training(self, load: TextLoad) -> tuple[list[Any], Step, nn.Module]:
        task = self.task(load)
        model, settings = task.model, task.config.training
        objective = make_objective(model, settings.objective, settings.label_smoothing, task.first)
        updater = Updater(model, objective, settings, load.device, self.room(load, task.layout))
        batches = [updater.prepare(self.batch(load, texts)).to(load.device) for texts in load.texts()]
        return batches, lambda batch: updater([batch], step=1, done=0.0).loss / batch.tokens, model

    def room(self, load: TextLoad, layout: Layout) -> Room:
        """What batches hold at most, as `Batches` and `BlockBatches` say it."""
        longest = load.shape.longest - 2 + layout.added  # of a text with the marks that this model reads
        tokens, rows = load.budget, load.budget
        if load.mean is None:
            rows = max(load.budget // load.shape.longest, 1)
            tokens = rows * longest
        return layout.room(Room(0, tokens, rows, longest, (0,)))

    def batch(self, load: TextLoad, texts: Sequence[Sequence[int]]) -> Batch:
        """Texts between their marks, as the trainer lays them out."""
        if not load.shape.masked:
            nothing = Ragged.of([[] for _ in texts])
            return Batch(nothing, Ragged.of([x[:-1] for x in texts]), Ragged.of([x[1:] for x in texts]))
        hidden, places = zip(*load.masked(texts), strict=True)
        answers = [[text[i] for i in where] for text, where in zip(texts, places, strict=True)]
        return Batch(Ragged.of(hidden), Ragged.of(places), Ragged.of(answers))


@dataclass(frozen=True)
class HuggingFace(TextPeer):
    """`BertForMaskedLM` or `GPT2LMHeadModel`: texts in padded rows, or in one row without padding, as its
    `DataCollatorWithFlattening` lays them; as it is, or under `torch.compile`.

    Rows of one length need no mask, and without one torch's attention takes its fastest kernel. Under `torch.compile`
    transformers makes GPT-2 one all the same, as it cannot look there whether texts are packed in rows. So it is given
    its own attention under a name for which it makes none.
    """

    flattened: bool = False
    compiled: bool = False

    def training(self, load: TextLoad) -> tuple[list[Any], Step, nn.Module]:
        hub, shape = need("transformers"), load.shape
        flash = load.device.type == "cuda" and find_spec("flash_attn") is not None
        if self.flattened and shape.masked and not flash:
            raise UnavailableError("BERT keeps texts of one row apart by flash-attn alone, which is not installed")
        drops = {"hidden_dropout_prob": load.dropout, "attention_probs_dropout_prob": 0.0} if shape.masked else {
            "resid_pdrop": load.dropout, "embd_pdrop": load.dropout, "attn_pdrop": 0.0}  # fmt: skip
        names = {"num_hidden_layers": shape.layers, "hidden_size": shape.d_model, "intermediate_size": shape.d_ff,
                 "num_attention_heads": shape.heads, "max_position_embeddings": shape.longest} if shape.masked else {
                 "n_layer": shape.layers, "n_embd": shape.d_model, "n_inner": shape.d_ff, "n_head": shape.heads,
                 "n_positions": shape.longest}  # fmt: skip
        config_of, model_of = (
            (hub.BertConfig, hub.BertForMaskedLM) if shape.masked else (hub.GPT2Config, hub.GPT2LMHeadModel)
        )
        marks = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
        how = "flash_attention_2" if flash and self.flattened else "sdpa"
        if load.mean is None and not self.flattened:
            how = UNMASKED
            plain_attention = need("transformers.integrations.sdpa_attention").sdpa_attention_forward
            hub.AttentionInterface.register(UNMASKED, plain_attention)
        with quiet():
            config = config_of(vocab_size=shape.vocabulary, **names, **drops, **marks, attn_implementation=how)
            model = model_of(config).to(load.device)

        def plain(batch: dict[str, Tensor]) -> Tensor:
            labels = batch["labels"] if shape.masked else F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
            given = {name: value for name, value in batch.items() if name != "labels"}
            more = {} if shape.masked else {"use_cache": False}
            logits = model(**given, **more).logits
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)

        several = load.mean is not None  # shapes
        loss: Callable[[dict[str, Tensor]], Tensor] = torch.compile(plain, dynamic=several) if self.compiled else plain
        batches = [self._batch(load, texts) for texts in load.texts()]
        placed = [{name: value.to(load.device) for name, value in batch.items()} for batch in batches]
        return placed, stepper(model, loss, load), model

    def _batch(self, load: TextLoad, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        given = [(list(text), list(text)) for text in texts]
        if load.shape.masked:
            given = [
                (hidden, [token if i in set(places) else IGNORED for i, token in enumerate(text)])
                for text, (hidden, places) in zip(texts, load.masked(texts), strict=True)
            ]
        if self.flattened:
            rows = [{"input_ids": ids, "labels": labels} for ids, labels in given]
            return dict(need("transformers").DataCollatorWithFlattening(return_tensors="pt")(rows))
        longest = max(map(len, texts))
        ids, labels = (
            torch.tensor([[*row, *[fill] * (longest - len(row))] for row in side])
            for side, fill in zip(zip(*given, strict=True), (PAD, IGNORED), strict=True)
        )
        if min(map(len, texts)) == longest:
            return {"input_ids": ids, "labels": labels}
        real = torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x in texts])
        return {"input_ids": ids, "labels": labels, "attention_mask": real}


_COMPILED = "forward and loss under torch.compile, of blocks for one shape, else with dynamic=True"
_PADDED = "rows of like length, padded, or blocks without a mask; SDPA"
_FLAT = "one row without padding, by DataCollatorWithFlattening; flash-attn, or else a mask of all pairs of tokens"
PRETRAINING: dict[str, TextPeer] = {
    "hf": HuggingFace("Hugging Face", _PADDED),
    "hf-compiled": HuggingFace("Hugging Face, compiled", f"{_PADDED}; {_COMPILED}",
                               compiled=True),
    "hf-flattened": HuggingFace("Hugging Face, flattened", _FLAT, flattened=True),
    "hf-flattened-compiled": HuggingFace("Hugging Face, flattened, compiled", f"{_FLAT}; {_COMPILED}", flattened=True,
                                         compiled=True),
}  # fmt: skip
