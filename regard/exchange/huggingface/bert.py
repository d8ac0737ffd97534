"""BERT (Devlin et al. 2019), under the head that a checkpoint has; and what encoders like it share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from regard.exchange.huggingface.bart import BOTH, both
from regard.exchange.huggingface.family import Family, Move

# The kind of target that a head is for, by how the name of an architecture ends; a masked language model has none.
HEADS = {
    "ForMaskedLM": "masked", "ForPreTraining": "masked", "ForSequenceClassification": "label",
    "ForTokenClassification": "tags", "ForQuestionAnswering": "span", "ForMultipleChoice": "choice",
}  # fmt: skip


class EncoderAlone(Family):
    """An encoder that reads text, with a head for masked tokens, for a label or a number of the whole text, for tags of
    words, for where an answer stands, or for which of several texts is right."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.head = next(kind for ending, kind in HEADS.items() if self.architecture.endswith(ending))
        kinds: tuple[str | None, ...] = (None, "single_label_classification")
        if self.head == "label" and len(self.labels) == 1:  # as transformers has it, a regression
            self.head, kinds = "number", (None, "regression")
        if self.head in ("label", "number", "tags") and self.config.get("problem_type") not in kinds:
            self.refuse("problem_type", "Regard imports heads that choose one label or predict one number")
        if self.head == "tags" and any(len(label.split()) != 1 for label in self.labels):
            self.refuse("id2label", "tags are written with blanks between them")

    def sections(self) -> dict[str, Any]:
        masked = self.head == "masked"
        return {
            "source": {"kind": "none"} if masked else {"kind": "text"},
            "target": {"kind": "text" if masked else self.head},
            "model": {**self.network(), "scale_embeddings": False, "decoder": {"kind": "none"}},
        }

    @abstractmethod
    def network(self) -> dict[str, Any]:
        """Settings of the encoder, and what goes with it."""

    @property
    def labels(self) -> list[str]:
        return self.label_names() if self.head in ("label", "tags") else []

    @property
    def outputs(self) -> int:
        return {"masked": self.vocabulary, "span": 2, "choice": 1, "number": 1}.get(self.head, len(self.labels))

    @property
    def pooled(self) -> bool:
        """Whether the head predicts from a dense layer over the first vector."""
        return self.head in ("label", "number", "choice")


class Bert(EncoderAlone):
    """BERT: post-norm, learned positions, a vector for each of two segments, a norm over the embeddings."""

    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    architectures: ClassVar[tuple[str, ...]] = tuple(f"Bert{ending}" for ending in HEADS)
    base = "bert."
    first_position: ClassVar[int] = 0
    fixed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
    }
    # Of a masked language model the pooler and the next sentence are left out.
    ignored = r".*\.position_ids|bert\.pooler\..*|cls\.seq_relationship\..*"

    def network(self) -> dict[str, Any]:
        config = self.config
        if self.head == "masked" and self.activation("hidden_act", "gelu") != "gelu":
            self.refuse("hidden_act", "the head of a masked language model has gelu in Regard")
        return {
            "d_model": config["hidden_size"], "dropout": config.get("hidden_dropout_prob", 0.1),
            "max_positions": config.get("max_position_embeddings", 512) - self.first_position,
            "encoder": {
                "kind": "transformer", "layers": config["num_hidden_layers"], "heads": config["num_attention_heads"],
                "d_ff": config["intermediate_size"], "norm": "post", "positions": "learned", "embedding_norm": True,
                "first_position": self.first_position, "activation": self.activation("hidden_act", "gelu"),
                "norm_epsilon": config.get("layer_norm_eps", 1e-12),
                "stem": {"kind": "tokens", "segments": config.get("type_vocab_size", 2)},
            },
        }  # fmt: skip

    def moves(self) -> Iterator[Move]:
        base = self.base
        yield Move("encoder.stem.embedding.table.weight", (f"{base}embeddings.word_embeddings.weight",))
        yield Move("encoder.stem.segments.weight", (f"{base}embeddings.token_type_embeddings.weight",))
        yield Move("encoder.positions.table.weight", (f"{base}embeddings.position_embeddings.weight",))
        yield from both(f"{base}embeddings.LayerNorm", "encoder.embedding_norm")
        for i in range(self.config["num_hidden_layers"]):
            theirs, ours = f"{base}encoder.layer.{i}", f"encoder.blocks.{i}"
            for kind in BOTH:
                parts = tuple(f"{theirs}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
                yield Move(f"{ours}.self_attention.inputs.{kind}", parts)
            yield from both(f"{theirs}.attention.output.dense", f"{ours}.self_attention.output")
            yield from both(f"{theirs}.attention.output.LayerNorm", f"{ours}.around_attention.norm")
            yield from both(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.inner")
            yield from both(f"{theirs}.output.dense", f"{ours}.feed_forward.outer")
            yield from both(f"{theirs}.output.LayerNorm", f"{ours}.around_feed_forward.norm")
        yield from self.head_moves()

    def head_moves(self) -> Iterator[Move]:
        """The weights behind the encoder."""
        if self.head == "masked":
            yield from both("cls.predictions.transform.dense", "transform")
            yield from both("cls.predictions.transform.LayerNorm", "norm")
            yield Move("head.linear.bias", ("cls.predictions.bias",))
            return
        if self.pooled:
            yield from both(f"{self.base}pooler.dense", "transform")
        yield from both("qa_outputs" if self.head == "span" else "classifier", "head.linear")

    def aliases(self) -> dict[str, str]:
        return {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
