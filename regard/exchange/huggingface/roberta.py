"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020), under the head that a checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.exchange.huggingface.bart import both
from regard.exchange.huggingface.bert import HEADS, Bert
from regard.exchange.huggingface.family import Move


class Roberta(Bert):
    """RoBERTa: BERT whose positions begin behind the number of its padding, and with heads of its own."""

    model_types = ("roberta", "xlm-roberta")
    architectures = tuple(
        f"{name}{ending}" for name in ("Roberta", "XLMRoberta") for ending in HEADS if ending != "ForPreTraining"
    )
    base = "roberta."
    first_position = 2
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {**Bert.fixed, "pad_token_id": (1,)}
    ignored = r".*\.position_ids|roberta\.pooler\..*"

    def head_moves(self) -> Iterator[Move]:
        if self.head == "masked":
            yield from both("lm_head.dense", "transform")
            yield from both("lm_head.layer_norm", "norm")
            yield Move("head.linear.bias", ("lm_head.bias",))
        elif self.head in ("label", "number"):
            yield from both("classifier.dense", "transform")
            yield from both("classifier.out_proj", "head.linear")
        else:
            yield from super().head_moves()

    def aliases(self) -> dict[str, str]:
        return {
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        }
