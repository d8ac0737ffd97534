"""A task is data, a model, a loss, a search and scores. Here: text to text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config import Config, Search
from regard.data.batches import make_batch, pack
from regard.data.corpora import Example
from regard.data.tokens import BOS, EOS, MASK, PAD, SEP, UNK, Tokenizer, clean
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import Kind, alignment_error_rate, links, merge_words
from regard.evaluation.metrics import Score, bleu_score, chrf_score, exact_match, text_scores
from regard.models.model import EncoderDecoder
from regard.nn.attention import capture
from regard.search.beam import beam_search
from regard.search.limits import Hypothesis, Limits
from regard.search.rerank import coverage_penalty
from regard.search.sample import sample

Tokens = Sequence[int]
Attention = dict[str, NDArray[np.float32]]  # by module, (heads, queries, keys)
Problem = Callable[[int, str], None]  # which input, and what is wrong with it
Warn = Callable[[str], None]
Advance = Callable[[int], None]  # how many more inputs are done


@dataclass(frozen=True)
class Output:
    """One output for a source."""

    text: str
    score: float  # what it was ranked by
    log_prob: float
    tokens: list[int]


@dataclass(frozen=True)
class PairScore:
    """How probable a target is given its source: `log p` in all, and of each token."""

    log_prob: float
    tokens: list[float]


@dataclass(frozen=True)
class Evaluation:
    """Scores, what they are scores of, and what it was held against."""

    scores: dict[str, Score]
    outputs: list[str]
    examples: list[Example]


@dataclass
class TextToText:
    """Two tokenizers and a model, with everything that can be done to text with them."""

    config: Config
    source: Tokenizer
    target: Tokenizer
    model: EncoderDecoder
    device: torch.device

    @property
    def longest(self) -> int:
        """The most positions the model has room for; see `build`."""
        return longest_sequence(self.config)

    # Decoding

    def outputs(
        self, texts: Sequence[str], search: Search, problem: Problem, advance: Advance = lambda count: None
    ) -> list[list[Output]]:
        """The best outputs of each text, best first; none for a text that cannot be used, which `problem` hears of."""
        ids = self.source.encode_many(texts)
        usable = []
        limit = min(search.max_source, self.longest - 1)
        for i, tokens in enumerate(ids):
            if not tokens:
                problem(i, "is empty")
            elif len(tokens) > limit:
                problem(i, f"has {len(tokens)} tokens, more than search.max_source={limit}; split it")
            else:
                usable.append(i)
        results: list[list[Output]] = [[] for _ in texts]
        width = search.nbest if search.sample else search.beam
        for draw, group in enumerate(self._groups([ids[i] for i in usable], search.batch_tokens // width)):
            members = [usable[k] for k in group]
            for i, hypotheses in zip(members, self.search([ids[i] for i in members], search, draw), strict=True):
                results[i] = [Output(self.target.decode(h.tokens), h.score, h.log_prob, h.tokens) for h in hypotheses]
            advance(len(members))
        return results

    def search(self, sources: Sequence[Tokens], settings: Search, draw: int = 0) -> list[list[Hypothesis]]:
        """Search or sample for a batch of token sequences; another `draw` samples anew under the same seed."""
        with self._inference():
            batch = make_batch(sources, [[] for _ in sources]).to(self.device)
            room = (batch.source.lengths * settings.max_ratio).long() + 10
            limits = Limits(
                longest=room.clamp(max=min(settings.max_length, self.longest - 1)),
                bos=BOS,
                eos=EOS,
                forbidden=(PAD, BOS, SEP, MASK) if settings.unknown else (PAD, UNK, BOS, SEP, MASK),
                shortest=settings.min_length,
                no_repeat=settings.no_repeat,
            )
            state = self.model.start(batch.source)
            if settings.sample:
                generator = torch.Generator(self.device).manual_seed(settings.seed * 1_000_003 + draw)
                return sample(
                    self.model.step, state, limits=limits, generator=generator, count=settings.nbest,
                    temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
                )  # fmt: skip
            found = beam_search(
                self.model.step, state, limits=limits, width=settings.beam,
                nbest=settings.beam if settings.coverage else settings.nbest,
                penalty=settings.length_penalty, alpha=settings.alpha, exact=settings.exact,
            )  # fmt: skip
        return self._rerank(sources, found, settings) if settings.coverage else found

    def _rerank(
        self, sources: Sequence[Tokens], found: list[list[Hypothesis]], settings: Search
    ) -> list[list[Hypothesis]]:
        """Add the coverage penalty to the score of each hypothesis, and sort anew."""
        layer = self.best_layer
        if layer is None:
            raise ConfigError("search.coverage needs a model with attention over its source; set it to 0")
        reranked = []
        for tokens, hypotheses in zip(sources, found, strict=True):
            attended = self.attention([tokens] * len(hypotheses), [h.tokens for h in hypotheses])
            scored = [
                replace(h, score=h.score + coverage_penalty(torch.from_numpy(a[layer].mean(0)), settings.coverage))
                for h, a in zip(hypotheses, attended, strict=True)
            ]
            reranked.append(sorted(scored, key=lambda h: -h.score)[: settings.nbest])
        return reranked

    # Scoring and attention, teacher forced

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """`log p(target given source)` of each pair, the end of the target included."""
        pairs = self.source.encode_many(sources), self.target.encode_many(targets)
        return self.score_tokens(*pairs)

    def score_tokens(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[PairScore]:
        """The same, of token sequences."""
        results: list[PairScore | None] = [None] * len(sources)
        for group in self._groups(sources, self.config.training.batch_tokens, targets):
            batch = make_batch([sources[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self._inference():
                log_probs = self.model(batch.source, batch.inputs).values.float().log_softmax(-1)
            chosen = log_probs.gather(1, batch.outputs.values[:, None]).squeeze(1).tolist()
            bounds = batch.outputs.offsets.tolist()
            for row, i in enumerate(group):
                tokens = chosen[bounds[row] : bounds[row + 1]]
                results[i] = PairScore(math.fsum(tokens), tokens)
        return [result for result in results if result is not None]

    def attention(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[Attention]:
        """What each pair attends to in every attention of the model, cut to its own length."""
        results: list[Attention] = [{} for _ in sources]
        for group in self._groups(sources, self.config.training.batch_tokens, targets):
            batch = make_batch([sources[i] for i in group], [targets[i] for i in group]).to(self.device)
            with self._inference(), capture(self.model) as trace:
                self.model(batch.source, batch.inputs)
            lengths = {"source": batch.source.lengths.tolist(), "target": batch.inputs.lengths.tolist()}
            for name in trace.found:
                queries, keys = SIDES[attention_kind(name)]
                for row, i in enumerate(group):
                    matrix = trace.weights(name, row)[:, : lengths[queries][row], : lengths[keys][row]]
                    results[i][name] = matrix.numpy()
        return results

    @property
    def best_layer(self) -> str | None:
        """The attention over the source to show first and to align by; None if there is none.

        Of many layers the last but one, whose heads agree best with alignments (Garg et al. 2019); of three or fewer
        the last, since the first ones mostly look around.
        """
        modules = (name for name, _ in self.model.named_modules())
        names = [name for name in modules if name == "decoder.attention" or name.endswith("cross_attention")]
        if not names:
            return None
        return names[-1] if len(names) <= 3 else names[-2]

    def align(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[tuple[int, int]]]:
        """The links between words that the attention makes, (source word, target word)."""
        layer = self.best_layer
        if layer is None:
            raise ConfigError("this model has no attention over its source, so it aligns nothing")
        found = []
        for x, y, attended in zip(sources, targets, self.attention(sources, targets), strict=True):
            weights = attended[layer].mean(0)
            found.append(links(merge_words(weights, [*self.target.words(y), -1], [*self.source.words(x), -1])))
        return found

    # Scores

    def evaluate(
        self, examples: Sequence[Example], search: Search, warn: Warn, advance: Advance = lambda count: None
    ) -> Evaluation:
        """All scores of the examples. One that cannot be used counts as an empty output, and `warn` hears of it."""
        sources, references = [x.source for x in examples], [clean(x.target) for x in examples]
        found = self.outputs(
            sources, search, lambda index, what: warn(f"{examples[index].place} {what}; scored as empty"), advance
        )
        outputs = [clean(best[0].text) if best else "" for best in found]
        scores = text_scores(outputs, references)
        usable = [
            x
            for x, best in zip(examples, found, strict=True)
            if best and len(self.target.encode(x.target)) < self.longest
        ]
        if not usable:
            raise DataError(f"none of the {len(examples)} pairs can be used")
        kind = self.config.tokens.kind
        scores["perplexity"] = Score(
            "perplexity", math.exp(self._loss(usable)), f"per:token|tokens:{kind}|end:counted", higher_is_better=False
        )
        gold = [x for x in usable if x.alignment is not None]
        if gold and self.best_layer is not None:
            sides = self.source.encode_many([x.source for x in gold]), self.target.encode_many([x.target for x in gold])
            rate = alignment_error_rate(self.align(*sides), [x.alignment for x in gold if x.alignment is not None])
            signature = f"layer:{self.best_layer}|heads:mean|forced:reference"
            scores["aer"] = Score("AER", rate, signature, higher_is_better=False)
        return Evaluation(scores, outputs, list(examples))

    def validate(self, examples: Sequence[Example], sentences: int) -> dict[str, float]:
        """The few numbers that training steers by: loss over all examples, the rest from greedy outputs of some."""
        some = examples[:sentences]
        greedy = self.config.search.model_copy(update={"beam": 1, "nbest": 1, "sample": False, "coverage": 0.0})
        found = self.outputs([x.source for x in some], greedy, lambda *_: None)
        outputs = [clean(best[0].text) if best else "" for best in found]
        references = [clean(x.target) for x in some]
        metrics = (bleu_score, chrf_score, exact_match)
        bleu, chrf, exact = (metric(outputs, references).value for metric in metrics)
        return {"loss": self._loss(examples), "bleu": bleu, "chrf": chrf, "exact": exact}

    # Inside

    def _loss(self, examples: Sequence[Example]) -> float:
        """The mean of `-log p` over all target tokens."""
        scored = self.score([x.source for x in examples], [x.target for x in examples])
        return -math.fsum(pair.log_prob for pair in scored) / sum(len(pair.tokens) for pair in scored)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    @staticmethod
    def _groups(sources: Sequence[Tokens], budget: int, targets: Sequence[Tokens] | None = None) -> list[list[int]]:
        """Indices in groups of like length within a budget of tokens."""
        if not sources:
            return []
        lengths = np.array([len(x) for x in sources])
        others = lengths if targets is None else np.array([len(y) for y in targets])
        return [group.tolist() for group in pack(lengths, others, budget)]


SIDES: dict[Kind, tuple[str, str]] = {
    "cross": ("target", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
}


def attention_kind(name: str) -> Kind:
    """What attends to what in the attention of this name; see `SIDES`."""
    if name.startswith("encoder."):
        return "encoder"
    return "decoder" if name.endswith("self_attention") else "cross"


def longest_sequence(config: Config) -> int:
    """Positions a model needs: the longest of training and of search, and a mark."""
    return max(config.data.max_length, config.search.max_length, config.search.max_source) + 1
