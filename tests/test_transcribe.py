"""Recordings to text, end to end: CTC alone and beside a decoder, on a language of tones."""

from __future__ import annotations

import json
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.config import merge
from regard.data.examples import Example, read_files
from regard.data.modalities.audio import Audio, AudioSettings
from regard.errors import DataError
from regard.runs import Stopped
from regard.stem_settings import SubsamplingSettings
from tests.conftest import FULL, whole
from tests.test_cli import good, refused
from tests.test_training import StopAt, final
from tests.toy import sides_of

RATE = 8000
TONES = {"do": 500, "mi": 900, "so": 1500, "ti": 2600}
STEM = {"kind": "subsampling", "mels": 20, "channels": 4}
DECODERS: dict[str, dict[str, Any]] = {
    "ctc": {"kind": "none"},
    "lstm": {"kind": "lstm", "layers": 1, "score": "location"},
    **({"transformer": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}} if FULL else {}),
}


def sing(path: Path, words: list[str], draw: np.random.Generator) -> list[list[float]]:
    """A tone for each word with silence between, into a file; and when each of them sounds."""
    parts, times, at = [np.zeros(RATE // 50)], [], RATE // 50
    for number, word in enumerate(words):
        long = int(RATE * draw.uniform(0.06, 0.1))
        parts += [0.4 * np.sin(2 * np.pi * TONES[word] * np.arange(long) / RATE), np.zeros(RATE // 33)]
        times.append([number, number, at / RATE, (at + long) / RATE])
        at += long + RATE // 33
    sound = np.concatenate(parts) + draw.normal(0, 0.003, at)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32767).astype("<i2").tobytes())
    return times


def settings(name: str, **changes: Any) -> dict[str, Any]:
    given = {
        "run": name,
        "data": {"train": "train.jsonl", "valid": "valid.jsonl", "test": "valid.jsonl"},
        "source": {"kind": "audio", "rate": RATE, "batch_tokens": 300},
        "target": {"metrics": ["exact"]},
        "tokens": {"kind": "word"},
        "model": {
            "d_model": 32, "dropout": 0.0, "ctc": True, "encoder": {"kind": "lstm", "layers": 1, "stem": STEM},
            "decoder": DECODERS.get(name, {"kind": "none"}),
        },
        "training": {
            "steps": 120, "learning_rate": 1e-2, "warmup": 5, "schedule": "linear", "validate_every": 60,
            "save_every": 1000, "label_smoothing": 0.0, "metric": "exact", "tensorboard": False, "device": "cpu",
        },
        "search": {"beam": 2, "max_length": 10},
    }  # fmt: skip
    return merge(given, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, draw = tmp_path_factory.mktemp("tones"), np.random.default_rng(1)
    for split, count in (("train", 150), ("valid", 8)):
        lines = []
        for number in range(count):
            words = [list(TONES)[i] for i in draw.integers(0, 4, draw.integers(1, 4))]
            times = sing(place / f"{split}{number}.wav", words, draw)
            lines.append(json.dumps({"source": f"{split}{number}.wav", "target": " ".join(words), "words": times}))
        (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    for name in DECODERS:
        regard.train(regard.Config.parse(settings(name), place))
    return place


def examples(folder: Path) -> list[Example]:
    return list(read_files(str(folder / "valid.jsonl"), sides_of({"kind": "audio", "rate": RATE}).form))


def names(known: list[Example]) -> list[str]:
    return [str(x.source) for x in known]


@pytest.mark.parametrize("name", DECODERS)
def test_tones_are_heard(folder: Path, name: str) -> None:
    """In a batch and one at a time, whatever else there is to ask for."""
    system, known = regard.load(folder / name), examples(folder)
    texts = [x.target for x in known]
    outputs = system.generate(names(known))
    assert sum(a == b for a, b in zip(outputs, texts, strict=True)) >= 7
    assert system.generate(names(known)[:1]) + system.generate(names(known)[1:]) == outputs
    assert system.generate([]) == []
    several = system.outputs(names(known)[:3], beam=4, nbest=3)
    assert [len({one.text for one in some}) for some in several] == [3, 3, 3]
    for some in several:
        assert [one.score for one in some] == sorted((one.score for one in some), reverse=True)
    drawn = system.generate(names(known), sample=True, seed=3)
    assert drawn == system.generate(names(known), sample=True, seed=3)
    assert all(set(text.split()) <= set(TONES) for text in drawn)
    for precision in ("bfloat16", "int8"):
        rounded = system.generate(names(known), precision=precision)
        assert sum(a == b for a, b in zip(rounded, outputs, strict=True)) >= 6
    own, others = (
        sum(x.log_prob for x in system.score(some, texts))
        for some in (names(known), [*names(known)[1:], names(known)[0]])
    )
    assert own > others + 5
    scores = system.evaluate(folder / "valid.jsonl").scores
    assert scores["exact"].value == pytest.approx(100 * sum(a == b for a, b in zip(outputs, texts, strict=True)) / 8)
    layer = "ctc" if name == "ctc" else "decoder."
    assert scores["pointing"].signature.startswith(f"layer:{layer}")
    assert scores["word_time"].signature.startswith(f"layer:{layer}")


def test_the_weight_of_ctc_is_a_setting_of_search(folder: Path) -> None:
    """0 leaves it out, 1 leaves the decoder out; scores are those of both in between."""
    system, sources = regard.load(folder / "lstm"), names(examples(folder))
    plain: dict[str, Any] = {"beam": 4, "length_penalty": "none"}
    every = {weight: system.outputs(sources, ctc=weight, **plain) for weight in (0, 0.5, 1)}
    alike = [i for i in range(8) if len({some[i][0].text for some in every.values()}) == 1]
    assert len(alike) > 3
    found, source = {weight: some[alike[0]][0] for weight, some in every.items()}, [sources[alike[0]]]
    assert found[0.5].log_prob == pytest.approx((found[0].log_prob + found[1].log_prob) / 2, abs=1e-4)
    assert found[0].log_prob != pytest.approx(found[1].log_prob, abs=1e-4)
    (usual,) = system.outputs(source, **plain)[0]
    assert usual.log_prob == pytest.approx(0.7 * found[0].log_prob + 0.3 * found[1].log_prob, abs=1e-4)
    config = settings("kept", model={"decoder": DECODERS["lstm"]}, training={"steps": 2}, search={"ctc": 0.6})
    kept = regard.train(regard.Config.parse(config, folder))
    assert kept.search_settings().ctc == 0.6  # in the config of a model, and so in each of its searches
    assert len(kept.generate(source)) == 1
    other = regard.load(folder / "ctc")
    assert other.generate(source, ctc=0.5) == other.generate(source)  # it has nothing else to weigh it against


def test_a_recording_too_short_for_any_word_is_read_as_nothing(folder: Path, tmp_path: Path) -> None:
    sing(tmp_path / "short.wav", [], np.random.default_rng(1))
    system = regard.load(folder / "ctc")
    (found,) = system.outputs([str(tmp_path / "short.wav")], beam=4, nbest=4)
    assert all(one.log_prob > -1e20 for one in found)  # what no path reads is no output
    (score,) = system.score([str(tmp_path / "short.wav")], ["do mi so ti do"])
    assert score.log_prob == -np.inf
    (tmp_path / "short.jsonl").write_text('{"source": "short.wav", "target": "do mi so ti do"}\n')
    assert system.evaluate(tmp_path / "short.jsonl").scores["perplexity"].value == np.inf


def test_recordings_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    """When generating they leave an empty line; in training data they are skipped or stop it, as the config says."""
    known = names(examples(folder))[0]
    (tmp_path / "half.wav").write_bytes(Path(known).read_bytes()[:1000])
    system = regard.load(folder / "ctc")
    with pytest.warns(UserWarning, match="input 2 cannot be used: .*half.wav is cut off: it has 1,000 of "):
        assert system.generate([known, known, str(tmp_path / "half.wav")])[2] == ""
    shutil.copy(tmp_path / "half.wav", folder / "half.wav")
    lines = (folder / "train.jsonl").read_text().splitlines()[:5]
    (folder / "gaps.jsonl").write_text("\n".join([*lines, '{"source": "half.wav", "target": "do"}']) + "\n")
    for what in ("error", "skip"):
        config = settings(f"gaps-{what}", data={"train": "gaps.jsonl", "bad_lines": what}, training={"steps": 1})
        if what == "error":
            with pytest.raises(DataError, match=r"half\.wav is cut off"):
                regard.train(regard.Config.parse(config, folder))
        else:
            watcher = StopAt(0)
            regard.train(regard.Config.parse(config, folder), watcher)
            assert any("gaps.jsonl:6" in text for text in watcher.messages), watcher.messages


def test_what_was_attended_to_is_drawn_over_the_spectrogram(folder: Path, tmp_path: Path) -> None:
    source = names(examples(folder))[0]
    good("explain", folder / "lstm", source, "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    good("explain", folder / "lstm", source, "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    weights = np.array(found["layers"][0]["weights"])
    assert weights.shape == (1, len(found["target"]), len(found["source"]))
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-3)
    assert found["source"][:3] == ["0.00", "0.04", "0.08"]
    aligned = good("generate", folder / "lstm", "--align", text=source + "\n").rstrip("\n").split("\t")
    assert len(aligned[1].split()) == len(aligned[0].split())


def test_when_ctc_names_a_word_is_shown_as_attention_is_and_is_when_it_sounds(folder: Path, tmp_path: Path) -> None:
    """A moment is 40 ms, and a tone with the silence behind it about three of them."""
    system, (example, *_) = regard.load(folder / "ctc"), examples(folder)
    assert system.evaluate(folder / "valid.jsonl").scores["word_time"].value < 60
    explained = system.explain(example, example.target)
    assert explained.best == "ctc"
    weights = explained.weights()
    assert weights.shape == (len(example.target.split()) + 1, len(explained.source))
    np.testing.assert_allclose(weights.sum(1), [*[1.0] * len(example.target.split()), 0.0], atol=1e-5)
    assert [word for _, word in explained.alignment()] == list(range(len(example.target.split())))
    for ending in ("png", "html"):
        good("explain", folder / "ctc", example.source, "-o", tmp_path / f"a.{ending}")
    aligned = good("generate", folder / "ctc", "--align", text=f"{example.source}\n").rstrip("\n").split("\t")
    assert len(aligned[1].split()) == len(aligned[0].split())
    assert "search.coverage needs a model with attention" in refused(
        "generate", folder / "ctc", "--set", "coverage=1", text=f"{example.source}\n"
    )
    beside = regard.load(folder / "lstm").explain(example, example.target)
    assert beside.best == "decoder.attention"
    assert beside.weights("ctc").shape == beside.weights().shape
    assert [word for _, word in beside.alignment("ctc")] == list(range(len(example.target.split())))


def test_exports_are_refused_and_ensembles_write(folder: Path, tmp_path: Path) -> None:
    for name, to in (("ctc", "onnx"), ("lstm", "onnx"), ("lstm", "ctranslate2"), ("ctc", "ctranslate2")):
        said = refused("export", folder / name, "--to", to, "-o", tmp_path / "out")
        assert "models with model.ctc cannot be exported" in said
        assert not (tmp_path / "out").exists()
    both = regard.load(folder / "ctc", folder / "lstm")
    known = examples(folder)
    right = [a == x.target for a, x in zip(both.generate(names(known)), known, strict=True)]
    assert sum(right) >= 7
    scores = {}
    for weight in (0.0, 0.5):
        alone, twice = regard.load(folder / "lstm"), regard.load(folder / "lstm", folder / "lstm")
        one, two = ([found[0] for found in x.outputs(names(known), ctc=weight)] for x in (alone, twice))
        assert [x.text for x in two] == [x.text for x in one]
        assert [x.log_prob for x in two] == pytest.approx([x.log_prob for x in one], abs=1e-4)
        scores[weight] = [x.log_prob for x in one]
    assert scores[0.5] != pytest.approx(scores[0.0], abs=1e-4)


@whole
@pytest.mark.parametrize("decoder", ["ctc", "lstm"] if FULL else ["ctc"])
def test_a_stopped_run_with_every_augmentation_resumes_exactly(folder: Path, decoder: str) -> None:
    """Six updates, and three and three: weights and the statistics of norms are the same bits."""
    changes = {
        "source": {"augment": {"speed": [0.9, 1.0, 1.1], "noise": 0.5, "frequency_masks": 2, "frequency_width": 4,
                               "time_masks": 2, "time_share": 0.2}},
        "model": {"decoder": DECODERS[decoder], "dropout": 0.1,
                  "encoder": {"kind": "conformer", "layers": 1, "heads": 2, "d_ff": 16, "kernel": 3,
                              "stem": {**STEM, "normalize": "global"}}},
        "training": {"steps": 6, "validate_every": 6, "save_every": 2},
    }  # fmt: skip
    config = settings("run", **changes)
    regard.train(regard.Config.parse(config, folder))
    straight = final(folder)
    shutil.rmtree(folder / "run")
    with pytest.raises(Stopped):
        regard.train(regard.Config.parse(config, folder), StopAt(3))
    watcher = StopAt(0)
    regard.train(regard.Config.parse(config, folder), watcher)
    assert "resuming from update 3" in watcher.messages
    cut = final(folder)
    assert any(name.endswith("running_var") for name in cut)
    assert cut["encoder.stem.normalize.seen"].item() == 6
    assert straight.keys() == cut.keys()
    assert all(torch.equal(straight[name], cut[name]) for name in cut)
    shutil.rmtree(folder / "run")
    regard.train(regard.Config.parse(merge(config, {"source": {"augment": {"noise": 0.0}}}), folder))
    assert not all(torch.equal(straight[name], tensor) for name, tensor in final(folder).items())
    shutil.rmtree(folder / "run")


# What vectors stand for


def audio(**given: Any) -> Audio:
    return Audio(AudioSettings.model_validate({"rate": RATE, **given}), SubsamplingSettings())


def test_gold_times_become_places() -> None:
    """A place lasts 40 ms; a word belongs to all that its time reaches into, and to one at least."""
    example = Example(
        "a.wav", "do mi so", place="here", gold=((0, 0, 0.0, 0.05), (1, 2, 0.10, 0.10), (1, 1, 0.16, 0.24))
    )
    found = audio().gold(example)
    assert found is not None
    assert found.possible == {(0, 0), (1, 0), (2, 1), (2, 2), (4, 1), (5, 1)}
    assert not found.sure
    assert audio().gold(Example("a.wav", "do", place="here")) is None
    endless = Example("a.wav", "do", place="here", gold=((0, 0, 0.0, 1e9),))
    most = audio(max_length=100).gold(endless)
    assert most is not None
    assert most.possible == {(place, 0) for place in range(25)}


@pytest.mark.parametrize(
    "words",
    [
        [[0, 0, 0.1]], [[0, 0, 0.2, 0.1]], [[1, 0, 0.1, 0.2]], [[-1, 0, 0.1, 0.2]], [[0, 0, -0.1, 0.2]], 3, [3], "ab",
        [[0, 0, float("nan"), 1]], [[0, 0, 0, float("inf")]], [[0, 10**9, 0, 1]], [["a", 0, 0, 1]], None,
    ],
)  # fmt: skip
def test_words_that_cannot_be_are_told(words: Any) -> None:
    with pytest.raises(ValueError, match=r"has 'words' that should be lists \[first word, last word, begin, end\] in"):
        audio().read_gold({"words": words})


def test_times_are_read() -> None:
    assert audio().read_gold({"words": [[0, 1, 0.5, 1]]}) == ((0, 1, 0.5, 1.0),)
    assert audio().read_gold({}) == ()


def test_places_pieces_and_the_canvas() -> None:
    item = np.zeros((10, RATE // 100), np.int16)
    item[5:] = 9000
    heard = audio()
    assert heard.places(item) == 3
    assert heard.pieces(item) == ["0.00", "0.04", "0.08"]
    assert heard.seconds_per_place == pytest.approx(0.04)
    canvas = heard.canvas(item)
    assert canvas is not None
    assert (canvas.rows, canvas.columns, canvas.kind, canvas.seconds) == (1, 3, "sound", 0.1)
    assert canvas.pixels.shape == (64, 10, 3)
    assert canvas.sound is not None
    assert canvas.sound.startswith(b"RIFF")
    assert len(canvas.sound) == 44 + 2 * item.size
    assert heard.most_places(0) == 750
    assert audio(augment={"speed": [0.5, 2.0]}).most_places(0) == 1500  # played slowly, it takes longer
    assert heard.export() is None


@whole
def test_a_recording_and_a_text_together(folder: Path) -> None:
    """Two sources: the recording, and a word that is of no use."""
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    with (folder / "two.jsonl").open("w") as out:
        for line in lines:
            out.write(json.dumps({"source": line["source"], "hint": "sing", "target": line["target"]}) + "\n")
    config = settings(
        "two", data={"train": "two.jsonl", "valid": "two.jsonl", "test": None}, model={"decoder": DECODERS["lstm"]},
        training={"steps": 3, "validate_every": 3, "validate_sentences": 4},
    )  # fmt: skip
    config["source"] = [config["source"], {"kind": "text", "column": "hint"}]
    config["model"]["encoder"] = [config["model"]["encoder"], {"kind": "stem"}]
    system = regard.train(regard.Config.parse(config, folder))
    assert len(system.generate([(str(folder / lines[0]["source"]), "sing")])) == 1
