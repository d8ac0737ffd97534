"""What checkpoints of NMT toolkits have in common: files that are read without running what is in them, blocks whose
parts go by other names, and lists of tokens."""

from __future__ import annotations

import argparse
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.data.marks import Marks
from regard.data.tokenizers.published import SPACE, FileTokens, PieceTokens, Published
from regard.errors import ConfigError, ModelError, require
from regard.exchange.huggingface.family import Family, Form, Move

JOINER = "@@"  # after a piece that the next one goes on, as subword-nmt writes it
# A vector of zeros, as wide as the output of a product that has no bias there.
ZEROS = Form(lambda weight: weight.new_zeros(len(weight)), lambda bias: bias)


@dataclass(frozen=True)
class Names:
    """What a toolkit calls the parts of a block."""

    self_attention: str
    cross_attention: str
    queries: str
    keys: str
    values: str
    output: str
    self_norm: str
    cross_norm: str
    feed_forward_norm: str
    inner: str
    outer: str


class Toolkit(Family):
    """A translation model of a toolkit, made as `Toolkit(options, tensors, tokens)` from its options by name, its
    tensors, and the tokenizers of source and target."""

    program: ClassVar[str]
    file: ClassVar[str]  # where its options are
    tables: ClassVar[tuple[str, str]]  # the embeddings of source and target
    output: ClassVar[str] = "generator.weight"  # of the output layer
    ties: ClassVar[tuple[str, str]] = ("share_embeddings", "share_decoder_embeddings")  # see `shared` and `tied`

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizers: Mapping[str, Published]
    ) -> None:
        self.tokenizers = dict(tokenizers)
        super().__init__(config, tensors)

    @abstractmethod
    def part(self, side: str) -> dict[str, Any]:
        """The settings of the encoder or of the decoder."""

    @property
    def shared(self) -> bool:
        """Whether source and target have one embedding."""
        return bool(self.config.get(self.ties[0]))

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding of the target."""
        return bool(self.config.get(self.ties[1]))

    def table_moves(self) -> Iterator[Move]:
        """The embeddings and the weights of the output layer."""
        source, target = self.tables
        yield Move("encoder.stem.embedding.table.weight", (source,))
        if not self.shared:
            yield Move("decoder.embedding.table.weight", (target,))
        if not self.tied:
            yield Move("head.linear.weight", (self.output,))

    def aliases(self) -> dict[str, str]:
        source, target = self.tables
        tied = {self.output: source if self.shared else target} if self.tied else {}
        return {**tied, **({target: source} if self.shared else {})}

    def refuse(self, name: str, why: str) -> None:
        raise ConfigError(f"{self.file} has {name}: {self.config.get(name)!r}; {why}, so this model cannot be imported")

    def activation(self, name: str, usual: str) -> str:
        found = self.config.get(name, usual)
        if found not in ("relu", "gelu"):
            self.refuse(name, "Regard has it only as relu or gelu")
        return str(found)

    def block(self, theirs: str, ours: str, names: Names, *, cross: bool) -> Iterator[Move]:
        """A block; products without a bias get one of zeros."""
        attentions = [(names.self_attention, "self_attention")]
        norms = [(names.self_norm, "around_self" if cross else "around_attention")]
        if cross:
            attentions.append((names.cross_attention, "cross_attention"))
            norms.append((names.cross_norm, "around_cross"))
        for there, here in attentions:
            inputs = [f"{theirs}.{there}.{part}" for part in (names.queries, names.keys, names.values)]
            yield from self.product(inputs, f"{ours}.{here}.inputs")
            yield from self.product([f"{theirs}.{there}.{names.output}"], f"{ours}.{here}.output")
        for there, here in [*norms, (names.feed_forward_norm, "around_feed_forward")]:
            yield from self.product([f"{theirs}.{there}"], f"{ours}.{here}.norm")
        for there, here in ((names.inner, "inner"), (names.outer, "outer")):
            yield from self.product([f"{theirs}.{there}"], f"{ours}.feed_forward.{here}")

    def product(self, theirs: Sequence[str], ours: str) -> Iterator[Move]:
        """The weights and biases of products, or of a norm."""
        matrices = tuple(f"{name}.weight" for name in theirs)
        yield Move(f"{ours}.weight", matrices)
        if f"{theirs[0]}.bias" in self.tensors:
            yield Move(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))
        else:
            yield Move(f"{ours}.bias", matrices, ZEROS)


def read_torch(path: Path, program: str) -> dict[str, Any]:
    """What torch wrote: tensors, numbers, texts, lists and dicts, and options as argparse gives them. Anything else is
    refused, and nothing is run."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelError(f"no file {path}; check the path") from None
    except Exception as error:  # pickled files fail in every way
        lines = str(error).strip().splitlines() or [type(error).__name__]
        what = next((line.strip() for line in lines if "GLOBAL" in line), lines[0])[:300]
        if what.startswith("Weights only load failed"):  # and torch goes on to say how to run what is in it
            what = "it holds more than tensors and plain values, or is cut off"
        raise ModelError(
            f"{path} cannot be read without running what is in it ({what}); in {program}, torch.load it and torch.save "
            "its weights and options alone, as tensors and plain values"
        ) from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds a {type(found).__name__}, and no checkpoint of {program}")
    return found


def plain(options: Any) -> dict[str, Any]:
    """Options by name, of argparse or of a dict."""
    return dict(vars(options)) if isinstance(options, argparse.Namespace) else dict(options or {})


def read_lines(path: Path) -> list[str]:
    """The lines of a list of tokens; only a line feed ends one."""
    try:
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise ModelError(f"no list of tokens {path}; put it there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read as a list of tokens ({error})") from None
    return text.removesuffix("\n").split("\n")


def words(tokens: Sequence[str], marks: Marks, *, lowercase: bool = False) -> FileTokens:
    """A tokenizer of words between blanks, or of pieces into which a text was cut before (`@@ `)."""
    library = require("tokenizers")
    vocabulary = {name if i in marks.names else SPACE + name: i for i, name in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(name for i, name in enumerate(tokens) if name in tokens[:i])
        raise ModelError(f"the list of tokens has '{twice}' twice")
    assert marks.unknown is not None, "toolkits have one"
    made = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=marks.names[marks.unknown]))
    if lowercase:
        made.normalizer = library.normalizers.Lowercase()
    split = library.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([library.pre_tokenizers.WhitespaceSplit(), split])
    blanks = library.decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)
    if any(name.endswith(JOINER) for name in tokens):
        joined = library.decoders.Replace(f"{JOINER} ", "")
        made.decoder = library.decoders.Sequence([blanks, library.decoders.Fuse(), joined])
    else:
        made.decoder = blanks
    made.add_special_tokens([name for i, name in marks.names.items() if i != marks.unknown])
    return FileTokens(made.to_str(), len(tokens), marks)


def pieces(tokens: Sequence[str], marks: Marks, model: Path) -> PieceTokens:
    """A SentencePiece model, whose pieces have the ids of a list."""
    try:
        content = model.read_bytes()
    except OSError as error:
        raise ModelError(f"the SentencePiece model {model} cannot be read ({error.strerror}); put it there") from None
    try:
        return PieceTokens(content, {name: i for i, name in enumerate(tokens)}, len(tokens), marks)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{model} cannot be read as a SentencePiece model ({error})") from None


def marks_of(tokens: Sequence[str], begin: str, end: str, pad: str, unknown: str, *, first: str) -> Marks:
    """Marks by their names in a list of tokens; `first` is what an output is written after."""
    ids = {name: i for i, name in reversed([*enumerate(tokens)])}  # of a name that is there twice, the first
    if lacking := [name for name in (begin, end, pad, unknown) if name not in ids]:
        raise ModelError(f"the list of tokens lacks the mark {lacking[0]}; it begins with {json.dumps(tokens[:6])}")
    named = {ids[name]: name for name in (begin, end, pad, unknown)}
    return Marks(
        named, end=ids[end], begin=ids[begin], pad=ids[pad], unknown=ids[unknown], first=(ids[first],),
        unwritten=(ids[pad], ids[begin]),
    )  # fmt: skip
