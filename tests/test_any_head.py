"""Any body takes any fitting head: two updates, predictions, a copy that is saved and loaded, what is explained and
what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.errors import ConfigError
from regard.exchange import ctranslate2, onnx
from tests.conftest import CONFORMER, crossed

ALONE, READER = {"encoder": {"kind": "none"}}, {"decoder": {"kind": "none"}}
BLOCKS = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}
BODIES: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": BLOCKS, **READER},
    "rnn": {"encoder": {"kind": "rnn"}, **READER},
    "lstm": {"encoder": {"kind": "lstm", "layers": 2}, **READER},
    "gru-one-way": {"encoder": {"kind": "gru", "bidirectional": False}, **READER},
    "conformer": {"encoder": CONFORMER, **READER},
    "stem": {"encoder": {"kind": "stem"}, **READER},
    "transformer-alone": {**ALONE, "decoder": {**BLOCKS, "positions": "learned"}},
    "gru-alone": {**ALONE, "decoder": {"kind": "gru"}},
}
PAIR, FOUR = {"column": [1, 2]}, {"column": [1, 2, 3, 4]}
# Settings of each head, lines of its data, and an input.
HEADS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "label": ({"target": "label"}, ["a b\tx", "c d a\ty"], "a d"),
    "label by attention": ({"target": {"kind": "label", "pooling": "attention"}}, ["a b\tx", "c d a\ty"], "a d"),
    "number by mean": ({"target": {"kind": "number", "pooling": "mean"}}, ["a b\t1", "c d a\t2.5"], "d"),
    "tags": ({"target": "tags"}, ["a b\tB-X I-X", "c d a\tO O B-X"], "a b c"),
    "crf": ({"target": {"kind": "tags", "crf": True}}, ["a b\tB-X I-X", "c d a\tO O B-X"], "a b c"),
    "number": ({"target": "number"}, ["a b\t1", "c d a\t2.5"], "d"),
    "label of a pair": ({"source": PAIR, "target": {"kind": "label", "column": 3}}, ["a\tb\tx", "c a\td\ty"], "a\td"),
    "number of a pair": ({"source": PAIR, "target": {"kind": "number", "column": 3}}, ["a\tb\t1", "c a\td\t3"], "a\td"),
    "choice": ({"source": FOUR, "target": {"kind": "choice", "column": 5}}, ["a\tb\tc\td\t2", "b\ta a\tc\t\t0"],
               "a\tb\tc"),
    "span": ({"source": PAIR, "target": {"kind": "span", "column": 3}}, ["a\tb c d\tc d", "b\ta d\ta"], "a\tb (c)  d"),
    "contrast": ({"source": PAIR, "target": {"kind": "contrast"}}, ["a b\tb a", "c\td"], "a\tb d"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "head"), crossed(list(BODIES), list(HEADS)))
def test_any_body_takes_any_head(body: str, head: str, tmp_path: Path) -> None:
    more, lines, given = HEADS[head]
    (tmp_path / "train.tsv").write_text("\n".join(lines * 3) + "\n")
    judged = ["a b\tb a\t3", "c\td\t1", "a\ta\t5"] if head == "contrast" else lines
    (tmp_path / "valid.tsv").write_text("\n".join(judged) + "\n")
    settings = {
        "run": str(tmp_path / "run"), "data": {x: str(tmp_path / f"{x}.tsv") for x in ("train", "valid")},
        "tokens": {"kind": "word"}, "model": {"d_model": 8, **BODIES[body]},
        "training": {"steps": 2, "batch_tokens": 60, "validate_every": 2, "save_every": 2, "tensorboard": False,
                     "device": "cpu"},
        **more,
    }  # fmt: skip
    system = regard.train(regard.Config.parse(settings))
    system.save(tmp_path / "copy")
    again = regard.load(tmp_path / "copy", device="cpu")
    (found,), (other,) = again.outputs([given], nbest=2), system.outputs([given], nbest=2)
    assert [(x.text, x.tokens) for x in found] == [(x.text, x.tokens) for x in other]
    np.testing.assert_allclose([x.log_prob for x in found], [x.log_prob for x in other], atol=1e-6)
    scores = again.evaluate(str(tmp_path / "valid.tsv"), warn=lambda text: None).scores
    assert scores == system.evaluate(str(tmp_path / "valid.tsv"), warn=lambda text: None).scores
    if head in ("choice", "contrast"):
        with pytest.raises(ConfigError, match=f"target.kind '{head}' is predicted from several texts"):
            again.explain(given)
    else:
        shown = again.explain(given)
        assert (found[0].text.split() if "tags" in str(more["target"]) else [found[0].text]) == shown.target
    with pytest.raises(ConfigError, match=r"target.kind is '\w+': only what writes text can be exported"):
        onnx.export(again, tmp_path / "onnx")
    with pytest.raises(ConfigError, match=r"target.kind is '\w+': CTranslate2 runs models that write text"):
        ctranslate2.specify(again)
