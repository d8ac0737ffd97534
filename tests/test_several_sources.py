"""Several sources, end to end: two texts, and an image and a text; trained, used, explained and scored."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.bundle import Bundle
from regard.config import merge
from regard.data.batches import Position
from regard.data.synthetic import scenes
from regard.data.tokenizers.symbols import Bytes
from regard.errors import ConfigError, OutputError
from regard.explain.trace import Explanation
from regard.loading import new_task
from regard.models.encoders import SeveralEncoders
from regard.models.model import EncoderDecoder
from regard.ragged import Ragged
from regard.runs import prepare
from regard.training.checkpoint import WEIGHTS, checkpoints, load_tensors
from tests.test_cli import good, refused, run
from tests.toy import sides_of, toy_config

WORDS = ["alpha", "beta", "gamma", "delta"]
BLOCKS = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}
TWO = ["text", "text"]
FEW: dict[str, Any] = {"steps": 2, "validate_every": 2, "validate_sentences": 2}


def write_texts(folder: Path, count: int = 400) -> None:
    """The words of the first in capitals, then those of the second with one; and which belongs to which."""
    draw = random.Random(0)
    for split, size in (("train", count), ("valid", 20), ("test", 20)):
        rows = []
        for _ in range(size):
            a, b = ([draw.choice(WORDS) for _ in range(draw.randint(1, 2))] for _ in range(2))
            target = [*(word.upper() for word in a), *(word.capitalize() for word in b)]
            links = " ".join(f"{i}-{i}" for i in range(len(target)))
            rows.append(["\t".join(map(" ".join, (a, b, target))), links])
        (folder / f"{split}.tsv").write_text("".join(f"{row}\t{links}\n" for row, links in rows))


def texts_config(folder: Path, **changes: Any) -> regard.Config:
    return toy_config(folder, **merge({"source": TWO, "model": {"d_model": 32}}, changes))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> regard.System:
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return regard.train(texts_config(folder, training={"steps": 140, "validate_every": 140, "batch_tokens": 200}))


# Two texts


def test_a_model_learns_from_both(texts: regard.System) -> None:
    result = texts.test()
    assert result.scores["exact"].value > 75
    assert result.scores["aer"].value < 0.4
    assert texts.generate([("alpha", "beta"), ("beta", "alpha")]) == ["ALPHA Beta", "BETA Alpha"]
    own, swapped = texts.score([("alpha", "beta"), ("beta", "alpha")], ["ALPHA Beta"] * 2)
    assert own.log_prob > swapped.log_prob + 2


def test_a_loaded_model_gives_the_same_alone_and_among_others(texts: regard.System, tmp_path: Path) -> None:
    texts.save(tmp_path / "model")
    again = regard.load(tmp_path / "model", device="cpu")
    given = [("alpha beta", "gamma"), ("beta", "delta alpha gamma"), ("delta", "delta")]
    together = again.outputs((pair for pair in given), nbest=2)  # any iterable will do
    assert together == texts.outputs(given, nbest=2)
    for pair, outputs in zip(given, together, strict=True):
        (alone,) = again.outputs([pair], nbest=2)
        assert [x.text for x in alone] == [x.text for x in outputs]
        assert [x.log_prob for x in alone] == pytest.approx([x.log_prob for x in outputs], abs=1e-4)
    assert "text + text to text" in repr(again)
    ensemble = regard.load(tmp_path / "model", tmp_path / "model", device="cpu")
    assert ensemble.generate(given) == again.generate(given)


def test_embeddings_are_of_both(texts: regard.System) -> None:
    (tokens,) = texts.token_embeddings([("alpha beta", "gamma")])
    assert tokens.shape == (3 + 2, 32)
    first, second = texts.token_embeddings([("alpha beta", "delta"), ("delta", "gamma")])
    np.testing.assert_allclose(tokens[:3], first[:3], atol=1e-5)
    np.testing.assert_allclose(tokens[3:], second[2:], atol=1e-5)
    assert texts.sentence_embeddings([("alpha", "beta"), ("gamma", "delta")]).shape == (2, 32)


def test_which_part_is_which_is_told_with_what_was_attended_to(texts: regard.System, tmp_path: Path) -> None:
    found = texts.explain(("alpha beta", "gamma"))
    assert found.source == ["alpha", "beta", "</s>", "gamma", "</s>"]
    assert found.source_word == [0, 1, -1, 2, -1]
    assert [(part.name, part.start, part.end) for part in found.parts] == [("1: text", 0, 3), ("2: text", 3, 5)]
    weights = found.layer().weights
    assert weights.shape == (1, len(found.target), 5)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert found.target[:3] == ["ALPHA", "BETA", "Gamma"]
    assert found.alignment() == texts.align([("alpha beta", "gamma")], [" ".join(found.target[:-1])])[0]
    assert (2, 2) in found.alignment()
    second = found.part(2)
    assert (second.source, second.source_word) == (["gamma", "</s>"], [0, -1])
    np.testing.assert_array_equal(second.layer().weights, weights[:, :, 3:])
    for number in (0, 3):
        with pytest.raises(ConfigError, match=f"no source {number} in this explanation; it has 2, counted from 1"):
            found.part(number)
    again = Explanation.from_json(json.loads(json.dumps(found.to_json())))
    assert again.parts == found.parts
    for ending in ("png", "html", "json"):
        assert found.save(tmp_path / f"a.{ending}").stat().st_size > 500


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("a",)], "texts: number 0 should be 2 strings, one for each source, not ('a',) (tuple)"),
        (["ab"], "texts: number 0 should be 2 strings, one for each source, not 'ab' (str)"),
        ([("a", "b"), ("a", "b", "c")], "texts: number 1 should be 2 strings, one for each source"),
        ([("a", 1)], "but number 1 is 1 (int)"),
        ([None], "texts: number 0 should be 2 strings, one for each source, not None (NoneType)"),
    ],
)
def test_inputs_that_are_not_as_many_are_refused(texts: regard.System, given: list[Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        texts.generate(given)
    assert message in str(error.value)


def test_which_source_cannot_be_used_is_said(texts: regard.System) -> None:
    heard: list[tuple[int, str]] = []
    given = [("alpha", ""), ("alpha", "beta"), ("alpha", "beta gamma delta")]
    found = texts.generate(given, max_source=2, on_problem=lambda i, what: heard.append((i, what)))
    assert found == ["", *texts.generate([given[1]]), ""]
    assert [i for i, _ in heard] == [0, 2]
    assert heard[0][1] == "has a source 2 that is empty"
    assert heard[1][1].startswith("has a source 2 that has 3 tokens, more than search.max_source=2")


def test_the_command_line_takes_them_parted_by_tabs(texts: regard.System, tmp_path: Path) -> None:
    model, test = texts.folder, texts.folder.parent / "test.tsv"
    rows = [line.split("\t") for line in test.read_text().splitlines()]
    expected = texts.generate([(row[0], row[1]) for row in rows])
    assert good("generate", model, test, "--device", "cpu").splitlines() == expected
    records = [{"source": row[0], "source2": row[1]} for row in rows]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert good("generate", model, tmp_path / "x.jsonl", "--device", "cpu").splitlines() == expected
    lines = "".join(f"{row[0]}\t{row[1]}\n" for row in rows)
    assert good("generate", model, "--device", "cpu", text=lines).splitlines() == expected
    for side, name in enumerate(("a", "b", "c")):
        (tmp_path / name).write_text("".join(row[side] + "\n" for row in rows))
    files = [tmp_path / name for name in ("a", "b", "c")]
    assert good("score", model, *files, "--device", "cpu") == good("score", model, test, "--device", "cpu")
    assert "AER" in good("evaluate", model, test, "--device", "cpu")
    good("explain", model, "alpha beta\tgamma", "-o", tmp_path / "a.json", "--device", "cpu")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    assert [part["name"] for part in found["parts"]] == ["1: text", "2: text"]
    (tmp_path / "in.txt").write_text("alpha\tbeta\tx\nbeta\tbeta\ty\nbeta alpha\tgamma\ty\n")
    good("space", model, tmp_path / "in.txt", "-o", tmp_path / "space.json", "--device", "cpu")
    drawn = json.loads((tmp_path / "space.json").read_text())
    assert (drawn["groups"], drawn["labels"][0]) == (["x", "y", "y"], "alpha | beta")
    said = refused("explain", model, "alpha beta", "-o", tmp_path / "b.json", "--device", "cpu")
    assert "text 1 has 1 of 2 sources; they are separated by tabs" in said


def test_lines_that_cannot_be_read_leave_an_empty_one(texts: regard.System, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"alpha\tbeta\nalone\n\n\xff\tbeta\nbeta\talpha\n\tbeta\n")
    done = run("generate", texts.folder, tmp_path / "in.txt", "--device", "cpu")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["ALPHA Beta", "", "", "", "BETA Alpha", ""]
    told = [line.removeprefix(f"regard: {tmp_path}/in.txt:") for line in done.stderr.splitlines()]
    assert [line[0] for line in told] == ["2", "3", "4", "6"]
    assert told[0] == "2 has 1 of 2 sources; they are separated by tabs; its line of output is empty"
    assert told[3] == "6 has a source 1 that is empty; its line of output is empty"


# What may be shared, and what not


def several_encoders(folder: Path, **changes: Any) -> tuple[regard.System, SeveralEncoders]:
    if not (folder / "train.tsv").exists():
        write_texts(folder, count=40)
    system = regard.train(texts_config(folder, **merge({"training": FEW}, changes)))
    assert isinstance(system.model, EncoderDecoder)
    assert isinstance(system.model.encoder, SeveralEncoders)
    return system, system.model.encoder


def test_an_encoder_for_each_or_one_for_all(tmp_path: Path) -> None:
    _, apart = several_encoders(tmp_path, run="apart")
    assert apart.encoders[0] is not apart.encoders[1]
    system, shared = several_encoders(tmp_path, run="shared", model={"share_encoder": True})
    assert shared.encoders[0] is shared.encoders[1]
    assert not any(name.startswith("encoder.encoders.1.") for name in load_tensors(tmp_path / "shared" / WEIGHTS))
    given = [("alpha", "beta gamma")]
    assert regard.load(tmp_path / "shared", device="cpu").outputs(given) == system.outputs(given)
    _, own = several_encoders(tmp_path, run="own", model={"encoder": ["gru", BLOCKS]})
    assert [type(encoder).__name__ for encoder in own.encoders] == ["RecurrentEncoder", "TransformerEncoder"]


def test_what_encoders_make_stands_end_to_end(tmp_path: Path) -> None:
    system, encoder = several_encoders(tmp_path)
    reads = system.task.source
    source: Bundle = reads.pack(reads.encode_many([("alpha", "beta gamma"), ("delta beta", "alpha")]))  # type: ignore[assignment]
    with torch.no_grad():
        memory = encoder.eval()(source)
        one, other = (part(rows) for part, rows in zip(encoder.encoders, source.parts, strict=True))
    assert memory.states.lengths.tolist() == [2 + 3, 3 + 2]
    rows = [x.states.values.split(x.states.lengths.tolist()) for x in (one, other)]
    expected = torch.cat([torch.cat((a, b)) for a, b in zip(*rows, strict=True)])
    torch.testing.assert_close(memory.states.values, expected)
    torch.testing.assert_close(memory.summary, (one.summary + other.summary) / 2)


def test_only_text_of_one_vocabulary_shares_embeddings() -> None:
    """Another vocabulary of the same size is another vocabulary."""
    own = {"tokens": {"kind": "byte"}}
    sides = sides_of(["text", own, "text"], model={"encoder": BLOCKS, "share_embeddings": True, "d_model": 16})
    sides.use({"tokens": Bytes(), "source2": Bytes()})
    model = new_task(sides, torch.device("cpu")).model
    assert isinstance(model, EncoderDecoder)
    tables = [encoder.stem.embedding for encoder in model.encoder.encoders]  # type: ignore[union-attr]
    embedding = model.get_submodule("decoder.embedding")
    assert [table is embedding for table in tables] == [True, False, True]


def test_each_encoder_has_all_positions_to_itself(tmp_path: Path) -> None:
    """Two texts as long as may be are read, though together they are longer than any one may be."""
    longest = {"max_length": 12}
    system, _ = several_encoders(
        tmp_path, source=[longest, longest], target=longest, search={"max_source": 12, "max_length": 12},
        model={"encoder": {**BLOCKS, "positions": "learned"}, "decoder": {**BLOCKS, "positions": "learned"},
               "max_positions": 14},
    )  # fmt: skip
    text = " ".join(WORDS * 3)
    assert system.task.longest == 14
    heard: list[str] = []
    (found,) = system.outputs([(text, text)], on_problem=lambda i, what: heard.append(what))
    assert found
    assert not heard
    assert math.isfinite(system.score([(text, text)], ["ALPHA"])[0].log_prob)
    system.generate([(text, f"{text} alpha beta")], max_source=99, on_problem=lambda i, what: heard.append(what))
    assert "more than a model of 14 positions can read" in heard[0]


# Training


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    ends = []
    write_texts(tmp_path, count=60)
    for name, cuts in (("whole", [8]), ("cut", [3, 8])):
        for steps in cuts:
            short = {
                "steps": steps,
                "validate_every": 4,
                "save_every": 3,
                "validate_sentences": 2,
                "schedule": "constant",
            }
            regard.train(texts_config(tmp_path, run=name, training=short))
        ends.append(load_tensors(checkpoints(tmp_path / name / "checkpoints")[-1] / WEIGHTS))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_of_other_sources_is_another_run_and_the_difference_is_named(tmp_path: Path) -> None:
    several_encoders(tmp_path)
    with pytest.raises(OutputError, match=r"differs in source\[1\]\.max_length \(256 before, 9 now\); give another"):
        regard.train(texts_config(tmp_path, source=["text", {"max_length": 9}], training=FEW))
    with pytest.raises(OutputError, match=r"differs in source\[0\]\.column \(null before, 2 now\)"):
        regard.train(texts_config(tmp_path, source=[{"column": 2}, {"column": 2}], target={"column": 3}, training=FEW))


def test_every_side_has_its_budget(tmp_path: Path) -> None:
    write_texts(tmp_path, count=100)
    config = texts_config(tmp_path, source=[{"batch_tokens": 40}, {}], target={"batch_tokens": 33}, training=FEW)
    _, batches = prepare(config)
    assert list(batches.budgets) == [40, config.training.batch_tokens, 33]
    totals = []
    for batch, position in batches.since(Position()):
        if position.epoch:
            break
        totals.append([*(len(part.values) for part in batch.source.parts), len(batch.outputs.values)])
    most = np.array(totals).max(0)
    assert most[0] <= 40
    assert 25 < most[2] <= 33
    plain = prepare(texts_config(tmp_path, run="plain", training=FEW))[1]
    assert list(plain.budgets) == [config.training.batch_tokens] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"objective": {"kind": "minimum_risk", "samples": 2}}},
        {"training": {"objective": {"kind": "scheduled_sampling"}}},
        {"training": {"objective": {"agreement": 1.0}}},
        {"model": {"decoder": {"score": "additive", "place": "output", "hard": True}}},
        {"model": {"decoder": {"kind": "lstm", "context": "every", "score": None, "place": None}}},
        {"model": {"encoder": {"kind": "lstm"}, "decoder": {"kind": "lstm", "bridge": "copy"}}},
        {"model": {"encoder": BLOCKS, "decoder": {**BLOCKS, "positions": "alibi"}}},
        {"source": [{"tokens": {"kind": "bpe", "size": 280, "sampling": 0.2}}, {"tokens": {"kind": "char"}}]},
        {"source": ["text", "text", {"kind": "text", "column": 1}], "target": {"column": 3}},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_whatever_trains_with_one_source_trains_with_several(tmp_path: Path, changes: dict[str, Any]) -> None:
    system, _ = several_encoders(tmp_path, **changes)
    assert math.isfinite(system.test().scores["perplexity"].value)


@pytest.mark.parametrize(
    "search", [{"sample": True}, {"mbr": 3}, {"contrastive": 0.5}, {"coverage": 0.2}, {"beam": 4, "groups": 2}]
)
def test_whatever_searches_with_one_source_searches_with_several(texts: regard.System, search: dict[str, Any]) -> None:
    given = [("alpha beta", "gamma"), ("delta", "beta")]
    assert [texts.generate([pair], first_line=i, **search)[0] for i, pair in enumerate(given)] == texts.generate(
        given, **search
    )


# An image and a text


QUESTIONS = {"size": 1, "colour": 2, "shape": 3}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> regard.System:
    """A model that learns by heart what the first thing in each of a few images is like."""
    folder = tmp_path_factory.mktemp("asked")
    scenes.write(folder, train=4, valid=1, test=1, picture=48)
    rows = []
    for line in (folder / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        boxes = [[0, 0, *record["boxes"][0][2:]]]
        for question, place in QUESTIONS.items():
            answer = record["target"].split()[place]
            rows.append({**record, "source2": f"which {question} ?", "target": answer, "boxes": boxes})
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stem = {"kind": "stem", "stem": {"kind": "convolution", "channels": 8}}
    files = dict.fromkeys(("train", "valid", "test"), "all.jsonl")
    return regard.train(
        toy_config(
            folder, data=files, source=[{"kind": "image", "size": 48}, {"tokens": {"kind": "word"}}],
            model={"d_model": 32, "dropout": 0.0, "encoder": [stem, {"kind": "gru"}]},
            training={"steps": 180, "validate_every": 180, "learning_rate": 5e-3, "label_smoothing": 0.0,
                      "batch_tokens": 320},
        )
    )  # fmt: skip


def answers(system: regard.System) -> list[tuple[tuple[str, str], str]]:
    rows = [json.loads(line) for line in (system.folder.parent / "all.jsonl").read_text().splitlines()]
    return [((str(system.folder.parent / row["source"]), row["source2"]), row["target"]) for row in rows]


def test_questions_about_images_are_answered(asked: regard.System) -> None:
    given, right = zip(*answers(asked), strict=True)
    found = asked.generate(given)
    assert sum(a == b for a, b in zip(found, right, strict=True)) >= 2 * len(right) / 3
    assert asked.evaluate(str(asked.folder.parent / "all.jsonl")).outputs == found
    other = [(given[(i + 3) % len(given)][0], question) for i, (_, question) in enumerate(given)]
    own, others = (sum(x.log_prob for x in asked.score(some, right)) for some in (given, other))
    assert own > others + 3  # it looks at the image too


def test_the_same_data_in_every_form_are_the_same_examples(asked: regard.System) -> None:
    folder, rows = asked.folder.parent, answers(asked)
    rows = [((source[0].removeprefix(f"{folder}/"), source[1]), target) for source, target in rows]
    (folder / "all.tsv").write_text("".join(f"{a}\t{b}\t{c}\n" for (a, b), c in rows))
    for name, column in zip("abc", zip(*((a, b, c) for (a, b), c in rows), strict=True), strict=True):
        (folder / name).write_text("".join(f"{cell}\n" for cell in column))
    found = [
        asked.evaluate(files)
        for files in (str(folder / "all.jsonl"), str(folder / "all.tsv"), [str(folder / name) for name in "abc"])
    ]
    assert found[0].outputs == found[1].outputs == found[2].outputs
    assert "pointing" in found[0].scores  # only records say where things are
    assert [x.source for x in found[0].examples] == [x.source for x in found[1].examples]


def test_the_encoder_of_a_picture_is_that_of_a_captioner_or_a_classifier(asked: regard.System, tmp_path: Path) -> None:
    """Which has no words to bring along: those of questions are learnt, and those of captions."""
    data = dict.fromkeys(("train", "valid"), str(asked.folder.parent / "all.jsonl"))
    picture, stem = {"kind": "image", "size": 48}, {"kind": "stem", "stem": {"kind": "convolution", "channels": 8}}

    def begun(run: str, start: str | None, **changes: Any) -> dict[str, torch.Tensor]:
        found = {} if start is None else {"start": {"encoder": str(tmp_path / start)}}
        training = {**FEW, "learning_rate": 1e-12}
        regard.train(toy_config(tmp_path, run=run, data={**data, "test": None}, training=training, **found, **changes))
        return load_tensors(tmp_path / run / WEIGHTS)

    head = begun("head", None, source=picture, target="label",
                 model={"d_model": 32, "encoder": stem, "decoder": {"kind": "none"}})  # fmt: skip
    captioner = begun("captioner", "head", source=picture, model={"d_model": 32, "encoder": stem})
    both = [picture, {"tokens": {"kind": "word"}}]
    vqa = begun("vqa", "captioner", source=both, model={"d_model": 32, "encoder": [stem, {"kind": "gru"}]})
    names = [name for name in head if name.startswith("encoder.")]
    assert len(names) > 8
    for name in names:
        torch.testing.assert_close(captioner[name], head[name])
        torch.testing.assert_close(vqa[name.replace("encoder.", "encoder.encoders.0.", 1)], head[name])
    assert "which" in (tmp_path / "vqa" / "source2.json").read_text()
    with pytest.raises(ConfigError, match=r"captioner fits none of the 2 encoders of this config's \[model\]"):
        begun("wide", "captioner", source=both, model={"d_model": 16, "encoder": [stem, {"kind": "gru"}]})


def test_an_image_that_is_not_there_leaves_the_others_their_answers(asked: regard.System, tmp_path: Path) -> None:
    (first, _), *_ = answers(asked)
    heard: list[tuple[int, str]] = []
    gone = (str(tmp_path / "gone.png"), first[1])
    found = asked.generate([gone, first], on_problem=lambda i, what: heard.append((i, what)))
    assert found == ["", *asked.generate([first])]
    assert [i for i, _ in heard] == [0]
    assert f"no picture {gone[0]}" in heard[0][1]


def test_attention_is_drawn_over_the_image_and_beside_the_text(asked: regard.System, tmp_path: Path) -> None:
    (source, _), *_ = answers(asked)
    found = asked.explain(source)
    assert found.picture is None
    assert [(part.name, part.start, part.end) for part in found.parts] == [("1: image", 0, 36), ("2: text", 36, 40)]
    image, text = found.part(1), found.part(2)
    assert image.canvas is not None
    assert image.canvas.pixels.shape == (48, 48, 3)
    assert (image.canvas.rows, image.canvas.columns) == (6, 6)
    assert text.picture is None
    assert text.source == [*source[1].split(), "</s>"]
    for name, one in (("image", image), ("text", text), ("all", found)):
        assert one.save(tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    again = Explanation.from_json(json.loads(json.dumps(found.to_json())))
    assert again.parts[0].canvas is not None
    np.testing.assert_array_equal(again.parts[0].canvas.pixels, image.picture)


def test_batches_of_both_kinds_hold_what_belongs_together(asked: regard.System) -> None:
    _, batches = prepare(asked.config.model_copy(update={"run": str(asked.folder.parent / "again")}))
    known = {target for _, target in answers(asked)}
    count = 0
    for batch, position in batches.since(Position()):
        if position.epoch:
            break
        images, texts = batch.source.parts
        assert isinstance(images, Ragged)
        assert images.values.dtype == torch.uint8
        assert images.lengths.tolist() == [48] * len(batch.source)
        assert len(texts) == len(batch.inputs) == len(batch.source)
        count += len(batch.source)
    assert count == len(answers(asked))
    assert known
