"""Export to CTranslate2: it writes and scores what Regard writes and scores, for every option it can express."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ctranslate2")

import regard
from regard import artifacts
from regard.config import parse
from regard.data.marks import BOS, EOS, MARKS, MASK, PAD, SEP, UNK
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, ModelError, OutputError
from regard.exchange import ctranslate2 as exchange
from regard.exchange.ct2_engine import EXPORT, CTranslate2Engine, load_engine, names
from regard.exchange.ct2_hypotheses import Written, best, judge
from regard.exchange.ctranslate2 import export, exported, open_engine
from regard.loading import together
from regard.search_settings import Search
from regard.system import System
from regard.tasks.results import Output
from regard.training.checkpoint import WEIGHTS, save_tensors, weights
from tests.toy import WORDS, toy_config, untrained, write_corpus

MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {"encoder": {"activation": "gelu"}, "decoder": {"activation": "gelu"}},
    "post-norm": {"encoder": {"norm": "post"}, "decoder": {"norm": "post"}},
    "learned": {
        "encoder": {"positions": "learned", "activation": "silu"}, "decoder": {"positions": "learned"},
        "tie_output": False,
    },
    "gated-rms": {
        "encoder": {"gated": True, "activation": "silu", "normalize": "rms"},
        "decoder": {"gated": True, "normalize": "rms", "norm": "post"},
    },
    "rotary": {"encoder": {"positions": "rotary"}, "decoder": {"positions": "rotary", "heads": 1}},
    "shaw": {"encoder": {"positions": "shaw", "norm": "post"}, "decoder": {"positions": "shaw"}},
    "t5": {"encoder": {"positions": "t5"}, "decoder": {"positions": "t5"}},
    "alibi": {"encoder": {"positions": "alibi", "heads": 4}, "decoder": {"positions": "alibi"}},
    "alibi-12-heads": {"d_model": 12, "encoder": {"positions": "alibi", "heads": 3}, "decoder": {"positions": "alibi"}},
    "deep-shallow": {
        "encoder": {"layers": 4, "heads": 4, "positions": "t5"}, "decoder": {"layers": 1, "norm": "post", "d_ff": 20},
    },
    "as-marian": {
        "output_bias": False, "encoder": {"positions": "sinusoidal_halves", "norm": "post", "activation": "silu"},
        "decoder": {"positions": "sinusoidal_halves", "norm": "post", "activation": "gelu_tanh"},
    },
    "as-bart": {
        part: {"positions": "learned", "first_position": 2, "embedding_norm": True, "norm": "post"}
        for part in ("encoder", "decoder")
    } | {"scale_embeddings": False},
    "as-t5": {
        "scale_embeddings": False,
        **{
            part: {
                "positions": "t5", "buckets": 8, "bucket_distance": 12, "normalize": "rms", "biases": False,
                "d_head": 3, "scale_scores": False, "gated": part == "decoder",
                **({"scale_output": True} if part == "decoder" else {}),
            }
            for part in ("encoder", "decoder")
        },
    },
    "shared": {"share_layers": True, "share_embeddings": True, "encoder": {}, "decoder": {}},
}  # fmt: skip
MOST = 12  # tokens of an output


def tiny(folder: Path = Path("nowhere"), seed: int = 1, **settings: Any) -> System:
    """A system with weights drawn at random, whose outputs end now and then and seldom hold marks."""
    part = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12}
    model = settings.pop("model", {"encoder": {}, "decoder": {}})
    both = {name: {**part, **model[name]} for name in ("encoder", "decoder")}
    longest = {"max_length": 8}
    config = parse(
        {
            "data": {"valid": str(folder / "valid.tsv")},
            "source": {**longest, **settings.pop("given", {})},
            "target": {**longest, **settings.pop("wanted", {})},
            "tokens": {"kind": "word", **settings.pop("tokens", {})},
            "search": {"max_length": MOST, "max_source": 120, **settings.pop("search", {})},
            "model": {"d_model": 8, **model, **both},
        }
    )
    source = settings.pop("source", None) or Symbols("word", [*WORDS, *(word.upper() for word in WORDS)])
    target = settings.pop("target", None) or source
    task = untrained(config, source, target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        end = settings.pop("end", 8.5)
        if task.model.head.linear.bias is not None:
            task.model.head.linear.bias[: len(MARKS)] -= 8.0
            task.model.head.linear.bias[EOS] += end
    assert not settings, settings
    task.model.eval()
    return System(task, folder)


def texts(count: int = 12, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


def quick(system: System, folder: Path, quantization: str | None = None) -> CTranslate2Engine:
    """An engine of a system, compared on few lines."""
    export(system, folder, quantization, lines=2)
    return load_engine(folder, threads=1, exact=True)


def assert_same(found: Sequence[Sequence[Output]], wanted: Sequence[Sequence[Output]]) -> None:
    assert [[output.tokens for output in some] for some in found] == [[o.tokens for o in some] for some in wanted]
    for some, others in zip(found, wanted, strict=True):
        for output, other in zip(some, others, strict=True):
            assert output.text == other.text
            assert output.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            assert output.score == pytest.approx(other.score, abs=1e-4)


def assert_scored(system: System, lines: Sequence[str], found: Sequence[Sequence[Output]]) -> None:
    """Each best output is as likely as it says."""
    items = system.task.source.encode_many(lines)
    scored = system.task.score_items(items, [some[0].tokens for some in found])
    assert [some[0].log_prob for some in found] == pytest.approx([one.log_prob for one in scored], abs=1e-4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[System, System]:
    """A system that has learnt a little, and the same with CTranslate2 as its engine."""
    folder = tmp_path_factory.mktemp("engine")
    write_corpus(folder, 1200)
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64}
    settings = {"model": {"d_model": 32, "encoder": part, "decoder": part}, "search": {"max_source": 60}}
    system = regard.train(toy_config(folder, **settings, training={"steps": 80, "validate_every": 80}))
    engine = quick(system, folder / "export")
    return system, System(engine, engine.folder)


# Every option


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_scores_are_regards_for_every_option(name: str, tmp_path: Path) -> None:
    system = tiny(tmp_path, model=MODELS[name])
    other = System(quick(system, tmp_path / "export"), tmp_path)
    draw = random.Random(2)
    sources = [[draw.randrange(6, 22) for _ in range(length)] for length in (1, 4, 90, 7)]  # far apart, too
    targets = [[draw.randrange(6, 22) for _ in range(length)] for length in (11, 0, 3, 6)]
    pairs = [system.task.score_items(sources, targets), other.task.score_items(sources, targets)]
    for ours, theirs in zip(*pairs, strict=True):
        assert theirs.tokens == pytest.approx(ours.tokens, abs=1e-5)
        assert theirs.log_prob == pytest.approx(ours.log_prob, abs=1e-4)
    for beam in (1, 4):
        assert_same(other.outputs(texts(), beam=beam, nbest=beam), system.outputs(texts(), beam=beam, nbest=beam))


@pytest.mark.parametrize("kind", ["unigram", "char", "byte"])
def test_tokens_of_every_kind_survive_the_way_there_and_back(kind: str, tmp_path: Path) -> None:
    lines = [*texts(60), "ärger #1 ▁ über 'x'", "<s> </s> <0x41> a b"]
    tokenizers: dict[str, Tokenizer] = {
        "unigram": Subwords.train(lines, "unigram", 320), "char": Symbols.train(lines, "char", 100), "byte": Bytes(),
    }  # fmt: skip
    tokenizer = tokenizers[kind]
    called = names(tokenizer)
    assert len(set(called)) == len(called) == tokenizer.size
    assert called[: len(MARKS)] == list(MARKS)
    if isinstance(tokenizer, Subwords):  # so that SentencePiece's output can be fed to CTranslate2 by others
        assert called[-1] == tokenizer.processor.id_to_piece(tokenizer.size - 1)
    system = tiny(tmp_path, source=tokenizer, tokens={"kind": kind})
    other = System(quick(system, tmp_path / "export"), tmp_path)
    assert_same(other.outputs(lines[-6:], beam=3), system.outputs(lines[-6:], beam=3))


def test_names_that_collide_are_told_apart() -> None:
    called = names(Symbols("char", [" ", "▁", "a", "▁#7"]))
    assert called[len(MARKS) :] == ["▁", "▁#7", "a", "▁#7#9"]


def test_each_side_may_have_its_own_tokens(tmp_path: Path) -> None:
    source, target = Symbols("word", WORDS), Symbols("word", [word.upper() for word in WORDS[:5]])
    system = tiny(tmp_path, source=source, target=target, tokens={"shared": False})
    engine = quick(system, tmp_path / "export")
    assert (tmp_path / "export" / "source_vocabulary.json").exists()
    assert_same(System(engine, tmp_path).outputs(texts(), beam=3), system.outputs(texts(), beam=3))


# The engine's search

SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5},
    "nbest": {"beam": 5, "nbest": 5},
    "gnmt": {"beam": 4, "nbest": 2, "length_penalty": "gnmt", "alpha": 0.6},
    "half average": {"beam": 4, "nbest": 3, "alpha": 0.5},
    "likeliest": {"beam": 4, "length_penalty": "none"},
    "likeliest few": {"beam": 4, "nbest": 3, "length_penalty": "none"},
    "cut": {"beam": 3, "nbest": 2, "max_length": 3},
    "cut greedy": {"beam": 1, "max_length": 2},
    "cut by ratio": {"beam": 3, "max_ratio": 0.2},
    "long enough": {"beam": 4, "min_length": 6},
    "long enough greedy": {"beam": 1, "min_length": 8},
    "of one length": {"beam": 3, "min_length": 5, "max_length": 5},
    "never long enough": {"beam": 3, "min_length": 12, "max_ratio": 0.05},
    "no repeats": {"beam": 1, "no_repeat": 2},
    "unknown": {"beam": 3, "unknown": True},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_what_regards_finds(name: str, pair: tuple[System, System]) -> None:
    system, other = pair
    assert_same(other.outputs(texts(40), **SEARCHES[name]), system.outputs(texts(40), **SEARCHES[name]))


@pytest.mark.parametrize("beam", [1, 4])
def test_outputs_begin_as_they_are_told(beam: int, pair: tuple[System, System]) -> None:
    system, other = pair
    draw = random.Random(3)
    prefixes = [" ".join(draw.choices(WORDS, k=i % 4)) for i in range(24)]
    settings: dict[str, Any] = {"prefixes": prefixes, "beam": beam}
    found = other.outputs(texts(24), **settings)
    assert_same(found, system.outputs(texts(24), **settings))
    assert all(some[0].text.startswith(prefix) for some, prefix in zip(found, prefixes, strict=True))
    full: dict[str, Any] = {"prefixes": ["alpha beta"], "max_length": 2, "beam": beam}
    assert_same(other.outputs(["gamma"], **full), system.outputs(["gamma"], **full))
    with pytest.warns(UserWarning, match="a prefix of 2 tokens, more than the 1 that search.max_length=1 allows"):
        assert other.outputs(["gamma"], prefixes=["alpha beta"], max_length=1) == [[]]


def test_a_beam_that_may_not_repeat_itself_goes_its_own_way(pair: tuple[System, System]) -> None:
    system, other = pair
    found, wanted = (one.outputs(texts(40), beam=4, no_repeat=2) for one in (other, system))
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(found, wanted, strict=True)) > 20
    assert_scored(system, texts(40), found)
    for some in found:
        pairs = list(pairwise(some[0].tokens))
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("beam", [1, 3])
def test_marks_are_never_written_however_likely(beam: int, tmp_path: Path) -> None:
    system = tiny(tmp_path)
    with torch.no_grad():
        system.task.model.head.linear.bias[: len(MARKS)] += 8.0
    other = System(quick(system, tmp_path / "export"), tmp_path)
    found, wanted = (one.outputs(texts(30), beam=beam) for one in (other, system))
    assert not {PAD, UNK, BOS, SEP, MASK} & {token for some in found for token in some[0].tokens}
    if beam == 1:
        assert_same(found, wanted)
    assert_scored(system, texts(30), found)  # of a beam, too, which may find another


def test_one_search_is_as_good_as_it_can_be(pair: tuple[System, System], tmp_path: Path) -> None:
    system, other = pair
    fast = System(load_engine(other.folder, threads=1, exact=False), tmp_path)
    ours, theirs = (one.outputs(texts(40), beam=1) for one in (system, fast))
    assert [some[0].tokens for some in theirs] == [some[0].tokens for some in ours]
    ours, theirs = (one.outputs(texts(40), beam=4, nbest=2) for one in (system, fast))
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(ours, theirs, strict=True)) > 20
    for some, others in zip(ours, theirs, strict=True):
        assert others[0].score <= some[0].score + 0.05  # which leaves out what may not come
        assert len(others) == 2
        assert min(others[0].tokens, default=9) >= len(MARKS)
    assert {len(some[0].tokens) for some in fast.outputs(texts(9), min_length=5, max_length=5)} == {5}
    assert all(len(some[0].tokens) <= 10 + 2 for some in fast.outputs(texts(9), max_ratio=0.2))


def test_a_few_lines_and_many_are_written_the_same(pair: tuple[System, System]) -> None:
    other = pair[1]
    two = System(load_engine(other.folder, threads=2, exact=True), other.folder)
    assert_same(two.outputs(texts(40)), other.outputs(texts(40)))
    assert_same(two.outputs(texts(3)), other.outputs(texts(3)))


def test_inputs_that_cannot_be_used_are_told_as_ever(pair: tuple[System, System]) -> None:
    lines = ["alpha", "", "beta gamma", " ".join(["eta"] * 200)]
    heard: list[list[tuple[int, str]]] = []
    for system in pair:
        heard.append([])
        found = system.outputs(lines, on_problem=lambda i, what: heard[-1].append((i, what)))
        assert [bool(some) for some in found] == [True, False, True, False]
    assert heard[0] == heard[1]
    assert heard[0][0] == (1, "is empty")
    assert pair[1].outputs([]) == []


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"sample": True}, r"search.sample is True, and the engine ctranslate2 has plain beam search alone; leave out"),
        ({"mbr": 4}, r"search.mbr is 4"),
        ({"contrastive": 0.6}, r"search.contrastive is 0.6"),
        ({"coverage": 0.2}, r"search.coverage is 0.2"),
        ({"stop": "exact"}, r"search.stop is exact"),
        ({"stop": "early"}, r"search.stop is early"),
        ({"at_limit": "cut"}, r"search.at_limit is cut"),
        ({"repetition_penalty": 1.2}, r"search.repetition_penalty is 1.2"),
        ({"beam": 4, "groups": 2}, r"search.groups is 2"),
        ({"phrases": [["alpha"]]}, r"cannot hold outputs to phrases"),
    ],
)
def test_a_search_that_is_not_there_is_refused(
    search: dict[str, Any], message: str, pair: tuple[System, System]
) -> None:
    with pytest.raises(ConfigError, match=message):
        pair[1].outputs(["alpha"], **search)


def test_what_looks_into_the_network_is_refused(pair: tuple[System, System]) -> None:
    other = pair[1]
    for ask in (lambda: other.sentence_embeddings(["alpha"]), lambda: other.align(["alpha"], ["ALPHA"]),
                lambda: other.explain("alpha", "ALPHA")):  # fmt: skip
        with pytest.raises(ConfigError, match="load the Regard model"):
            ask()


def test_a_system_with_the_engine_is_evaluated_like_any(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    system = tiny(tmp_path)
    report = export(system, tmp_path / "export")
    assert (report.made_up, report.lines, report.greedy_matches, report.beam_matches) == (False, 32, 32, 32)
    assert report.bleu is not None
    assert report.bleu[0] == report.bleu[1]
    other = System(load_engine(tmp_path / "export", threads=1, exact=True), tmp_path)
    ours, theirs = (one.evaluate(str(tmp_path / "test.tsv")) for one in (system, other))
    assert theirs.outputs == ours.outputs
    assert theirs.exposure is None
    for name in ("bleu", "chrf", "perplexity"):
        assert theirs.scores[name].value == pytest.approx(ours.scores[name].value, rel=1e-4)


# When Regard's search stops


def written(tokens: int, log_prob: float, *, end: int | None = EOS, by_token: list[float] | None = None) -> Written:
    return Written([7] * tokens, log_prob, end, by_token)


def search(**settings: Any) -> Search:
    return Search(**{"beam": 2, "length_penalty": "none", **settings})


LIMIT = 10


def test_a_search_stops_when_nothing_open_is_better_than_the_worst_closed() -> None:
    first, second, late = written(2, -1.0), written(3, -4.0), written(6, -5.0)
    assert judge([first, second, late], LIMIT, search()).closed == [first, second]


def test_a_search_goes_on_for_what_ends_later_and_is_better() -> None:
    first, second, late = written(2, -1.0), written(3, -4.0), written(6, -3.0)
    last = written(8, -3.5)  # after the late one there are two better than it
    verdict = judge([first, second, late, last], LIMIT, search())
    assert verdict.closed == [first, second, late]
    assert not verdict.again


def test_what_is_open_is_known_by_its_first_tokens() -> None:
    worse = {"length_penalty": "average", "nbest": 1}
    first, second = written(2, -1.5), written(3, -2.0)  # -0.5 each
    late = written(7, -3.2)  # -0.4, but its log p is no better than that of the others when they close
    verdict = judge([first, second, late], LIMIT, search(**worse))
    assert verdict.unclear == [late]
    late.by_token = [-2.5, *[-0.1] * 7]
    assert judge([first, second, late], LIMIT, search(**worse)).closed == [first, second]
    late.by_token = [*[-0.1] * 7, -2.5]
    assert judge([first, second, late], LIMIT, search(**worse), last=True).closed == [first, second, late]


def test_a_search_is_made_anew_where_it_cannot_be_told() -> None:
    first, second = written(2, -1.0), written(3, -4.0)
    assert judge([first, second], LIMIT, search()).again  # nothing ended later
    assert not judge([first, second], LIMIT, search(), last=True).again
    mark = written(4, -1.0, end=PAD)
    assert judge([first, mark], LIMIT, search(), last=True).again  # too few
    assert judge([first, mark], LIMIT, search(), last=True).closed == [first]
    early = written(3, -1.0)
    assert judge([first, early], LIMIT, search(min_length=5), last=True).again
    assert judge([first, written(12, -2.0)], LIMIT, search()).again  # beyond the limit of this line
    assert judge([mark], LIMIT, search(beam=1)).again


def test_what_is_cut_off_is_closed_where_the_limit_is() -> None:
    first, cut = written(2, -1.0), written(10, -2.0, end=None)
    assert judge([first, cut], LIMIT, search()).unclear == [cut]
    cut.by_token = [-0.2] * 10 + [-3.0]
    verdict = judge([first, cut], LIMIT, search())
    assert verdict.closed == [first, cut]
    assert cut.log_prob == pytest.approx(-5.0)
    assert [h.score for h in best(verdict.closed, LIMIT, search(nbest=2))] == pytest.approx([-1.0, -5.0])


def test_what_may_neither_end_nor_go_on_has_no_probability() -> None:
    found = [written(10, -2.0, end=None), written(10, -1.0, end=None)]
    (only,) = best(found, LIMIT, search(min_length=12))
    assert only.log_prob == only.score == -math.inf


# What cannot be exported

RECURRENT = {"model": {"encoder": {"kind": "gru"}, "decoder": {"kind": "transformer", "heads": 1}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "recurrent encoder": (
        RECURRENT,
        r"model.encoder.kind is gru, and CTranslate2 runs Transformers alone; try --to onnx",
    ),
    "recurrent decoder": (
        {"model": {"encoder": {"kind": "transformer"}, "decoder": {"kind": "lstm"}}},
        r"model.decoder.kind is lstm",
    ),
    "segments": (
        {"model": {"encoder": {"kind": "transformer", "stem": {"segments": 2}}, "decoder": {"kind": "transformer"}}},
        r"model.encoder.stem.segments is 2",
    ),
    "width": (
        {"model": {"encoder": {"kind": "transformer", "width": 64}, "decoder": {"kind": "transformer"}}},
        r"model.encoder.width is 64, and CTranslate2 has one width; try --to onnx",
    ),
    "language model": ({"preset": "gpt-mini"}, r"model.encoder.kind is none, .* encoders with decoders alone"),
    "one text": (
        {"model": {"encoder": {"kind": "none"}, "decoder": {"kind": "transformer"}}},
        r"model.encoder.kind is none",
    ),
    "encoder alone": ({"preset": "bert-mini"}, r"model.decoder.kind is none"),
    "pictures": (
        {"preset": "xu2015-hard"},
        r"source.kind is image, and CTranslate2 runs models that read text",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_said_with_its_setting(name: str, tmp_path: Path) -> None:
    settings, message = REFUSED[name]
    config = parse({**settings, "tokens": {"kind": "word"}})
    system = System(untrained(config, Symbols("word", WORDS)), tmp_path)
    with pytest.raises(ConfigError, match=message):
        export(system, tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_an_ensemble_is_exported_model_by_model(tmp_path: Path) -> None:
    ensemble = System(together([tiny().task, tiny(seed=2).task]), tmp_path)
    with pytest.raises(ConfigError, match="one model at a time; export each"):
        export(ensemble, tmp_path / "export")


def test_an_export_is_not_exported_again(pair: tuple[System, System], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is an export itself; export the Regard model"):
        export(pair[1], tmp_path / "export")


def test_an_export_that_writes_something_else_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exchange.ACTIVATIONS, "relu", "GELU")
    with pytest.raises(ModelError, match="does not write what the model writes, and is thrown away"):
        export(tiny(tmp_path), tmp_path / "export")
    assert not list(tmp_path.iterdir())


# Folders


def test_a_folder_is_whole_and_can_be_moved(tmp_path: Path) -> None:
    system = tiny(tmp_path / "model")
    export(system, tmp_path / "export", lines=2)
    shutil.move(tmp_path / "export", tmp_path / "moved")
    engine = open_engine(tmp_path / "moved", threads=1, exact=True)
    assert engine.exact
    assert engine.compute_type == "float32"
    assert_same(System(engine, tmp_path).outputs(texts()), system.outputs(texts()))
    assert not list((tmp_path / "moved").glob("*.safetensors"))
    with pytest.raises(ConfigError, match="stored as float32, not int8; export the model anew"):
        open_engine(tmp_path / "moved", "int8")
    with pytest.raises(ConfigError, match="no device 'tpu'; try auto, cpu or cuda"):
        open_engine(tmp_path / "moved", device="tpu")
    (tmp_path / "moved" / "model.bin").write_bytes(b"no model")
    with pytest.raises(ModelError, match="CTranslate2 cannot load"):
        System(load_engine(tmp_path / "moved"), tmp_path).outputs(["alpha"])
    with pytest.raises(ModelError, match=r"is no export: its export.json is not there"):
        load_engine(tmp_path)


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    system = tiny(tmp_path)
    with pytest.raises(ConfigError, match="unknown quantization 'int4'; there are: float32, float16"):
        export(system, tmp_path / "export", "int4")
    export(system, tmp_path / "export", lines=1)
    with pytest.raises(OutputError, match="exists; give another name, or --force"):
        export(system, tmp_path / "export")
    export(system, tmp_path / "export", lines=1, force=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    with pytest.raises(OutputError, match="is no CTranslate2 export that Regard has marked as its own"):
        export(system, tmp_path / "mine", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "mine"]
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear diary"


def test_a_folder_that_only_looks_like_an_export_is_not_replaced(tmp_path: Path) -> None:
    """One with a file of that name, and one of another kind: a mark says what a folder is, and nothing else does."""
    for name, kind in (("mine", None), ("onnx", "ONNX export"), ("model", "model")):
        (tmp_path / name).mkdir()
        (tmp_path / name / EXPORT).write_text('{"quantization": "float32"}')
        if kind:
            artifacts.mark(tmp_path / name, kind)
        with pytest.raises(OutputError, match=f"{name} is no CTranslate2 export that Regard has marked as its own"):
            export(tiny(tmp_path), tmp_path / name, force=True)
        assert (tmp_path / name / EXPORT).read_text() == '{"quantization": "float32"}'


def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tiny(tmp_path), tmp_path / "export", lines=1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}

    def stop(*arguments: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.exchange.ctranslate2.compare", stop)
    with pytest.raises(KeyboardInterrupt):
        export(tiny(tmp_path, seed=2), tmp_path / "export", lines=1, force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_quantised_models_leave_the_model_as_it_was(quantization: str, tmp_path: Path) -> None:
    system = tiny(tmp_path)
    before = {name: tensor.clone() for name, tensor in system.task.model.state_dict().items()}
    report = export(system, tmp_path / "export", quantization, lines=8)
    assert all(torch.equal(tensor, before[name]) for name, tensor in system.task.model.state_dict().items())
    assert report.quantization == quantization
    assert 0 <= report.beam_matches <= report.lines == 8
    assert f"{quantization} (computed in " in str(report)
    assert "made-up sources" in str(report)
    assert json.loads((tmp_path / "export" / EXPORT).read_text())["report"]["chrf"] == report.chrf
    engine = load_engine(tmp_path / "export", threads=1)
    assert not engine.exact
    assert all(System(engine, tmp_path).outputs(texts(), beam=3))


def test_an_engine_is_exported_once_and_anew_for_a_new_model(tmp_path: Path) -> None:
    system = tiny(tmp_path)
    system.save(tmp_path)
    made = tmp_path / "exports" / "ctranslate2-float32" / "model.bin"
    assert exported(tmp_path) == made.parent
    first = made.stat().st_mtime_ns
    assert_same(
        System(open_engine(tmp_path, threads=1, exact=True), tmp_path).outputs(texts()), system.outputs(texts())
    )
    assert made.stat().st_mtime_ns == first
    with torch.no_grad():
        system.task.model.head.linear.bias.add_(torch.randn(22, generator=torch.Generator().manual_seed(5)))
    save_tensors(tmp_path / WEIGHTS, weights(system.task.model))
    other = System(open_engine(tmp_path, threads=1, exact=True), tmp_path)
    assert made.stat().st_mtime_ns > first
    assert_same(other.outputs(texts()), system.outputs(texts()))
