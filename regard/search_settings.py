"""The settings of search: how the output is written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from regard.section import Count, Fraction, Section, Share, Size, Small, Weight


class Search(Section):
    """How outputs are decoded. Each setting can also be given to `regard generate` and `System.generate`."""

    beam: Small = Field(5, description="hypotheses kept at each step (1: greedy)")
    nbest: Small = Field(1, description="outputs per input; at most beam, or any number with sample")
    length_penalty: Literal["none", "gnmt", "average"] = Field(
        "average",
        description="divide log p by 1 (none), ((5 + length) / 6) ** alpha (gnmt: Wu et al. 2016) or "
        "length ** alpha (average)",
    )
    alpha: float = Field(1.0, ge=0, le=10, description="strength of the length penalty")
    coverage: Weight = Field(
        0.0, description="weight of the coverage penalty (Wu et al. 2016); re-ranks the beam, needs attention"
    )
    ctc: Fraction | None = Field(
        None, description="weight of CTC in joint decoding (Watanabe et al. 2017; default 0.3 with model.ctc)"
    )
    groups: Small = Field(
        1, description="diverse beam search: parts of the beam that are pushed apart (Vijayakumar et al. 2018)"
    )
    diversity: Weight = Field(0.5, description="diverse beam search: how strongly groups are pushed apart")
    no_repeat: int = Field(0, ge=0, le=10**6, description="never repeat an n-gram of this size (0: off)")
    min_length: int = Field(0, ge=0, le=10**6, description="minimum length of an output, in tokens")
    max_length: Size = Field(256, description="maximum length of an output, in tokens")
    max_ratio: float = Field(3.0, gt=0, le=10**6, description="maximum output tokens per source token (and 10 more)")
    stop: Literal["early", "heuristic", "exact"] = Field(
        "heuristic", description="when beam search stops: once `beam` hypotheses have ended (early), once moreover no "
        "open one scores better now (heuristic), or once none ever could (exact)"
    )  # fmt: skip
    at_limit: Literal["scored", "forced", "cut"] = Field(
        "scored", description="the end of a hypothesis that reaches max_length: scored like any token, forced with "
        "probability 1, or left out, which cuts it off there"
    )  # fmt: skip
    prefix_scored: bool = Field(
        True, description="whether a prefix (for a language model: the prompt) counts in the score and length of a beam"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="divide the scores of tokens that were already written by this, multiply those "
        "below 0 (Keskar et al. 2019): log-probabilities in a beam, logits in greedy search and sampling (1: off)"
    )  # fmt: skip
    sample: bool = Field(False, description="sample from the model instead of searching")
    temperature: float = Field(
        1.0, ge=1e-6, le=10**6, description="sampling temperature: below 1 sharpens, above 1 flattens"
    )
    epsilon: float | None = Field(
        None, ge=0, lt=1, description="epsilon sampling: drop tokens less probable than this, except the likeliest "
        "(Hewitt et al. 2022; default 0, with mbr 0.02 as in Freitag et al. 2023); applied after top_k, top_p and "
        "typical_p"
    )  # fmt: skip
    top_k: int = Field(0, ge=0, le=10**7, description="sample among this many likeliest tokens (0: all)")
    top_p: float = Field(
        1.0, gt=0, le=1, description="nucleus sampling (Holtzman et al. 2020): total probability of the tokens kept"
    )
    typical_p: float = Field(
        1.0, gt=0, le=1, description="locally typical sampling (Meister et al. 2023): total probability of the tokens "
        "kept, those whose information is nearest to the entropy first; applied after top_p"
    )  # fmt: skip
    mbr: int = Field(
        0,
        ge=0,
        le=1000,
        description="minimum Bayes risk: draw this many outputs and return the one nearest to the others (0: off)",
    )
    utility: Literal["chrf", "bleu", "exact"] = Field("chrf", description="similarity of outputs in mbr")
    contrastive: Share = Field(
        0.0,
        description="contrastive search (Su et al. 2022): weight of the penalty on tokens like those before (try "
        "0.6), among top_k tokens (4 if 0)",
    )
    unknown: bool = Field(False, description="allow <unk> in outputs")
    seed: Count = Field(1, description="random seed of sample and mbr")
    stride: int | None = Field(
        None, ge=1, le=10**6, description="perplexity of a Transformer over a stream (evaluate): tokens by which its "
        "window moves; smaller is slower and gives each token more context (default: half of the window)"
    )  # fmt: skip
    max_source: Size = Field(
        1024, description="maximum length of a source text, in tokens; a longer one gets no output"
    )
    batch_tokens: int = Field(8192, ge=1, le=10**8, description="source tokens times beam to decode at once")
    precision: Literal["float32", "bfloat16", "int8"] = Field(
        "float32", description="precision of decoding; bfloat16 and int8 (on a CPU) are faster and round"
    )

    @model_validator(mode="after")
    def _fits(self) -> Search:
        if not (self.sample or self.mbr) and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) is more than beam ({self.beam}); raise beam or use sample")
        if self.nbest > max(self.mbr, 1) and self.mbr:
            raise ValueError(f"nbest ({self.nbest}) is more than mbr ({self.mbr}); raise mbr")
        ways = [name for name in ("sample", "mbr", "contrastive") if getattr(self, name)]
        ways += ["groups"] if self.groups > 1 else []
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} are ways to search that exclude each other; choose one")
        if self.beam % self.groups:
            raise ValueError(f"beam ({self.beam}) is not divisible by groups ({self.groups})")
        if self.contrastive and self.nbest > 1:
            raise ValueError("contrastive search gives one output; leave nbest at 1")
        if self.contrastive and self.repetition_penalty != 1:
            raise ValueError("contrastive search has a penalty of its own; leave repetition_penalty at 1")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length ({self.min_length}) is more than max_length ({self.max_length})")
        return self

    @property
    def least(self) -> float:
        """The probability below which no token is drawn, save the likeliest: `epsilon`, or what it is by default."""
        return (0.02 if self.mbr else 0.0) if self.epsilon is None else self.epsilon
