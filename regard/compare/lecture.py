"""The standing experiment: what the lectures argue, as something to run.

From the last state alone, to the encoding at every step, to attention with each score, to the Transformer; on the
phrasebook, whose sentences can be of any length, also far beyond those of training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.artifacts import write_text
from regard.compare.runner import claim
from regard.config import merge, override_settings, parse, resolve_paths
from regard.data.synthetic import corpus as corpora
from regard.data.synthetic import phrasebook
from regard.errors import ConfigError

PAIRS = 20000
WORDS = (5, 16)  # of an English sentence in training
GROUPS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 28), (29, 40))
SENTENCES = 100  # of each group
TOKENS = 2_000_000  # the budget, if none is given

_SHARED: dict[str, Any] = {
    "tokens": {"kind": "unigram", "size": 3500},
    "model": {"dropout": 0.0, "share_embeddings": True},
    "training": {"batch_tokens": 1024, "learning_rate": 3e-3, "warmup": 100, "schedule": "cosine",
                 "validate_sentences": 100, "label_smoothing": 0.1, "tensorboard": False},
    "search": {"beam": 5, "max_ratio": 2.0},
}  # fmt: skip


def _recurrent(encoder: dict[str, Any] | None = None, **decoder: Any) -> dict[str, Any]:
    return {"model": {"d_model": 256, "encoder": {"kind": "lstm", **(encoder or {})},
                      "decoder": {"kind": "lstm", **decoder}}}  # fmt: skip


def _transformer(positions: str) -> dict[str, Any]:
    part = {"kind": "transformer", "layers": 2, "heads": 4, "d_ff": 512, "positions": positions}
    return {"model": {"d_model": 128, "encoder": dict(part), "decoder": dict(part)}}


def _attention(score: str) -> dict[str, Any]:
    return _recurrent(context="attention", score=score, place="output")


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "last state": (
        "an LSTM starts from the last state of another, which read the source backwards (Sutskever et al. 2014)",
        _recurrent({"bidirectional": False, "reverse": True}, context="last", bridge="copy"),
    ),
    "last state, both ways": (
        "as above, with an encoder that reads both ways, through a dense layer",
        _recurrent(context="last"),
    ),
    "context at every step": (
        "the encoding enters the decoder at every step (Cho et al. 2014)",
        _recurrent(context="every"),
    ),
    "attention, dot": ("hᵀs (Luong et al. 2015)", _attention("dot")),
    "attention, bilinear": ("hᵀWs (Luong et al. 2015)", _attention("bilinear")),
    "attention, additive": ("vᵀtanh(W[h;s]) (Bahdanau et al. 2015)", _attention("additive")),
    "attention, mlp": ("a multi-layer perceptron on [h;s]", _attention("mlp")),
    "attention, scaled dot": ("(Wh)ᵀ(Us)/√d (Vaswani et al. 2017)", _attention("scaled_dot")),
    "Transformer": ("sinusoidal positions (Vaswani et al. 2017)", _transformer("sinusoidal")),
    "Transformer, relative": ("as above, with T5's relative positions (Raffel et al. 2020)", _transformer("t5")),
}


def lecture(folder: Path, overrides: list[str], only: list[str]) -> dict[str, Any]:
    """What `compare` is to compare, of all models or `only` some; the corpus is made in `folder` if it is not there."""
    for name in only:
        if name not in MODELS:
            raise ConfigError(f"no model '{name}' in the lecture; there are: {'; '.join(MODELS)}")
    corpus = folder / "corpus"
    files = {split: corpus / f"{split}.tsv" for split in (*phrasebook.SPLITS, "lengths")}
    data = {"data": {split: str(files[split].absolute()) for split in phrasebook.SPLITS}}
    given = override_settings(overrides)
    chosen = {name: MODELS[name] for name in MODELS if not only or name in only}
    models = {
        name: resolve_paths(parse(merge(merge(merge(_SHARED, data), own), given), name), folder)
        for name, (_, own) in chosen.items()
    }
    claim(folder)
    facts = {"corpus": "lecture", "train": PAIRS, "words": [*WORDS], "groups": [[*x] for x in GROUPS],
             "sentences": SENTENCES}  # fmt: skip
    corpora.make(corpus, facts, [x.name for x in files.values()], _write_corpus, otherwise="give another --folder")
    return {
        "models": models,
        "folder": folder / "runs",
        "title": "From the last state to the Transformer",
        "ideas": {name: idea for name, (idea, _) in chosen.items()},
        "data": f"The synthetic phrasebook, English to German: {PAIRS:,} training pairs of {WORDS[0]} to {WORDS[1]} "
        f"English words, 500 test pairs of these lengths, and {SENTENCES} of each of the length groups below.",
        "lengths": str(files["lengths"].absolute()),
        "groups": GROUPS,
        "trained": WORDS,
    }


def _write_corpus(folder: Path) -> None:
    """The corpus of training, and test sentences of all lengths."""
    phrasebook.write(folder, train=PAIRS, words=WORDS)
    pairs = [pair for group in GROUPS for pair in phrasebook.pairs(SENTENCES, split="test", words=group, seed=2)]
    write_text(folder / "lengths.tsv", "".join(f"{pair.line}\n" for pair in pairs))
