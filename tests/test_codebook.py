"""Text to pictures: the codebook against its equations, and codes learnt, written, drawn, saved and judged."""

from __future__ import annotations

import json
import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import regard
from regard.config import parse
from regard.data.examples import Example, SourceLine
from regard.data.marks import MARKS
from regard.data.targets.image import ImageTarget
from regard.errors import ConfigError, DamagedError, DataError, ModelError, OutputError
from regard.fingerprint import Fingerprint
from regard.generation import Album
from regard.nn.codebook import Codebook, Quantizer, learn_codebook, to_bytes, to_colours
from regard.runs import prepare
from regard.training.watcher import Watcher
from tests.conftest import gpu, whole
from tests.test_cli import good, refused
from tests.toy import sides_of

COLOURS = {"red": (214, 36, 36), "green": (24, 146, 52), "blue": (34, 74, 222), "white": (246, 246, 246)}
SIDE, CELLS = 16, 16  # pixels, which are halved twice


def vectors(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Equations


def nearest(z: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
    """Eq. 1 of van den Oord et al. 2017."""
    return np.array([np.argmin([np.sum((one - code) ** 2) for code in codes]) for one in z])


def test_a_vector_becomes_its_nearest_code_and_the_gradient_goes_straight_through() -> None:
    quantizer = Quantizer(7, 3).double()
    z, weight = vectors(20, 3).requires_grad_(), vectors(20, 3, seed=2)
    found = quantizer(z)
    codes = quantizer.codes.numpy()
    expected = nearest(z.detach().numpy(), codes)
    assert len(set(expected)) > 3
    np.testing.assert_array_equal(found.indices.numpy(), expected)
    np.testing.assert_allclose(found.vectors.detach().numpy(), codes[expected], rtol=0, atol=1e-15)
    (passed,) = torch.autograd.grad((found.vectors * weight).sum(), z, retain_graph=True)
    np.testing.assert_array_equal(passed.numpy(), weight.numpy())  # as if q were z
    difference = z.detach().numpy() - codes[expected]
    np.testing.assert_allclose(found.commitment.item(), np.mean(difference**2), rtol=1e-14)
    (committed,) = torch.autograd.grad(found.commitment, z)
    np.testing.assert_allclose(committed.numpy(), 2 * difference / difference.size, rtol=0, atol=1e-15)


def test_codes_are_moving_means_of_the_vectors_that_chose_them() -> None:
    """Appendix A.1 of van den Oord et al. 2017, over three batches."""
    decay = 0.8
    quantizer = Quantizer(5, 2, decay).double()
    counts, sums = np.ones(5), quantizer.codes.numpy().copy()
    for seed in range(3):
        z = vectors(12, 2, seed=seed)
        chosen = nearest(z.numpy(), sums / counts[:, None])
        quantizer.update(z, quantizer.nearest(z))
        for i in range(5):
            counts[i] = decay * counts[i] + (1 - decay) * np.sum(chosen == i)
            sums[i] = decay * sums[i] + (1 - decay) * z.numpy()[chosen == i].sum(0)
        np.testing.assert_allclose(quantizer.codes.numpy(), sums / counts[:, None], rtol=0, atol=1e-13)


def test_codes_that_nothing_chooses_begin_anew_where_vectors_are() -> None:
    quantizer, draw = Quantizer(6, 2).double(), torch.Generator().manual_seed(1)
    quantizer.counts.copy_(torch.tensor([5.0, 0.001, 4.0, 3.0, 0.0, 6.0]))
    before, z = quantizer.codes.clone(), vectors(9, 2)
    quantizer.restart(z, draw)
    assert [bool((a == b).all()) for a, b in zip(before, quantizer.codes, strict=True)] == [1, 0, 1, 1, 0, 1]
    for code in quantizer.codes[[1, 4]]:
        assert (z == code).all(1).any()
    assert quantizer.counts[[1, 4]].tolist() == [1.0, 1.0]


def test_colours_there_and_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 16, 16, 3)
    assert torch.equal(to_bytes(to_colours(pixels)), pixels)
    assert to_bytes(torch.tensor([-3.0, 3.0, 0.0]).view(1, 3, 1, 1)).flatten().tolist() == [0, 255, 128]


# Pictures of two colours side by side


def pixels(left: str, right: str) -> NDArray[np.uint8]:
    found = np.zeros((SIDE, SIDE, 3), np.uint8)
    found[:, : SIDE // 2], found[:, SIDE // 2 :] = COLOURS[left], COLOURS[right]
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_the_same_seed_gives_the_same_codebook_and_draws_nothing_from_elsewhere(device: str) -> None:
    pictures = np.stack([pixels(*both) for both in product(COLOURS, COLOURS)])
    make = partial(Codebook, 16, 2, 8, 4)
    options: dict[str, Any] = {"steps": 8, "batch": 4, "rate": 0.01, "commitment": 0.25, "device": torch.device(device)}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = learn_codebook(make, pictures, seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    same, other = (learn_codebook(make, pictures, seed=seed, **options) for seed in (3, 4))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name]), name
        assert not torch.equal(tensor, other.state_dict()[name]), name
    assert not any(parameter.requires_grad for parameter in one.parameters())


BLOCK = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64}


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "run": "run",
        "data": {"train": "train.jsonl", "valid": "train.jsonl", "test": "train.jsonl"},
        "source": {"kind": "text"},
        "target": {"kind": "image", "size": SIDE, "halvings": 2, "codes": 24, "channels": 16, "code_width": 8,
                   "steps": 200, "pictures": 8, "learning_rate": 0.005},
        "tokens": {"kind": "word"},
        "model": {"d_model": 32, "dropout": 0.0, "encoder": BLOCK, "decoder": BLOCK},
        "training": {"steps": 100, "batch_tokens": 2000, "learning_rate": 0.01, "warmup": 10, "validate_every": 100,
                     "save_every": 100, "label_smoothing": 0.0, "tensorboard": False, "device": "cpu"},
        "search": {"max_ratio": 0.1, "max_length": 5},  # which do not hold for pictures
        **changes,
    }  # fmt: skip


class Heard(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("colours")
    (place / "pictures").mkdir()
    lines = []
    for left, right in product(COLOURS, COLOURS):
        name = f"pictures/{left}-{right}.png"
        Image.fromarray(pixels(left, right)).save(place / name)
        lines.append(json.dumps({"source": f"{left} {right}", "target": name}) + "\n")
    (place / "train.jsonl").write_text("".join(lines))
    heard = Heard()
    regard.train(regard.Config.parse(settings(), place), heard)
    assert heard.messages[1] == "learning a codebook (24 codes, on 16 pictures)"
    assert sum(text.startswith("codebook: step ") for text in heard.messages) == 4
    return place


@pytest.fixture(scope="module")
def system(folder: Path) -> regard.System:
    return regard.load(folder / "run", device="cpu")


def error(found: NDArray[np.uint8] | None, left: str, right: str) -> float:
    assert found is not None
    assert found.shape == (SIDE, SIDE, 3)
    return float(np.abs(found.astype(float) - pixels(left, right)).mean())


@whole
def test_what_was_learnt_by_heart_is_painted_again(system: regard.System) -> None:
    pairs = list(product(COLOURS, COLOURS))
    found = system.pictures([" ".join(pair) for pair in pairs], beam=1)
    errors = [[error(picture, *pair) for pair in pairs] for picture in found]
    right = sum(int(np.argmin(row)) == i for i, row in enumerate(errors))
    assert right >= 10, errors
    with pytest.warns(UserWarning, match="input 1 is empty"):
        assert system.pictures(["red blue", ""])[1] is None


@pytest.mark.parametrize(
    "search",
    [{"beam": 1}, {"beam": 4, "nbest": 3, "length_penalty": "none"}, {"sample": True, "nbest": 3, "temperature": 9.0},
     {"contrastive": 0.5}, {"mbr": 4, "epsilon": 0.0}, {"unknown": True, "sample": True, "temperature": 50.0}],
    ids=str,
)  # fmt: skip
def test_an_output_has_as_many_codes_as_there_are_cells(system: regard.System, search: dict[str, Any]) -> None:
    for outputs in system.outputs(["red blue", "white"], **search):
        for output in outputs:
            assert len(output.tokens) == CELLS
            assert all(len(MARKS) <= token < len(MARKS) + 24 for token in output.tokens)
            assert output.text == " ".join(str(token - len(MARKS)) for token in output.tokens)


def test_an_ensemble_needs_one_codebook(folder: Path, system: regard.System, tmp_path: Path) -> None:
    twice = regard.load(folder / "run", folder / "run", device="cpu")
    assert twice.generate(["red blue"], beam=2) == system.generate(["red blue"], beam=2)
    shutil.copytree(folder / "run", tmp_path / "other")
    other = regard.load(tmp_path / "other", device="cpu")
    assert isinstance(other.task.target, ImageTarget)
    other.task.target.codebook.quantizer.codes.add_(1.0)
    other.save(tmp_path / "shifted")
    with pytest.raises(ConfigError, match="an ensemble needs models of one vocabulary"):
        regard.load(folder / "run", tmp_path / "shifted")


def test_codes_stand_for_a_picture_wherever_one_is_asked_for(folder: Path, system: regard.System) -> None:
    picture = str(folder / "pictures" / "red-blue.png")
    target = system.task.target
    (codes,) = target.encode_many([picture])
    text = target.decode(codes)
    assert target.encode(text) == codes
    assert target.encode_many(["", text, picture]) == [[], codes, codes]
    assert len(set(map(str, system.score(["red blue"] * 2, [picture, text])))) == 1
    begun = system.outputs(["white white"], prefixes=["3 1 4"], beam=2)[0][0]
    assert begun.text.startswith("3 1 4 ")
    assert len(begun.tokens) == CELLS
    with pytest.raises(DataError, match="there is no code 24; this codebook has those from 0 to 23"):
        target.encode("3 24")
    with pytest.raises(DataError, match="a picture has 16 codes, not 2: '3 1'"):
        target.pictures(["3 1"])
    with pytest.warns(UserWarning, match="a prefix of 17 tokens, more than the 16 that target.kind image allows"):
        system.generate(["red"], prefixes=[" ".join("1" * 17)])
    explained = system.explain("red blue", text)
    assert explained.target[:5] == ["1,1", "1,2", "1,3", "1,4", "2,1"]
    assert explained.layers[-1].weights.shape[1:] == (CELLS + 1, 3)


def test_a_saved_model_paints_the_same_and_damage_is_noticed(system: regard.System, tmp_path: Path) -> None:
    system.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved", device="cpu")
    one, other = (x.pictures(["red blue"], sample=True, seed=3)[0] for x in (system, again))
    assert one is not None
    np.testing.assert_array_equal(one, other)
    path = tmp_path / "saved" / "codebook.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(DamagedError, match=r"codebook.safetensors is damaged: it is not what was written"):
        regard.load(tmp_path / "saved")
    target = again.task.target
    path.write_bytes(whole[:99])
    with pytest.raises(DamagedError, match=r"cannot be read .*; it is cut off or not a safetensors file"):
        target.load(path.parent)
    path.unlink()
    with pytest.raises(DamagedError, match=r"has no codebook.safetensors; the folder is not whole"):
        regard.load(path.parent)
    with pytest.raises(ModelError, match=r"has no codebook.safetensors; the folder is not whole"):
        target.load(path.parent)
    path.write_bytes(whole)
    wide = sides_of("text", {**settings()["target"], "codes": 30}).target
    with pytest.raises(ModelError, match=r"quantizer.codes is \(24, 8\), here \(30, 8\)"):
        wide.load(path.parent)


def test_a_run_that_goes_on_learns_no_new_codebook(folder: Path, tmp_path: Path) -> None:
    """And a damaged one is made again as it was; another run may begin from it."""
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.copytree(folder / "pictures", tmp_path / "pictures")
    shutil.copy(folder / "train.jsonl", tmp_path)
    path = tmp_path / "run" / "codebook.safetensors"
    written = path.read_bytes()
    longer = settings(training={**settings()["training"], "steps": 104})
    heard = Heard()
    regard.train(regard.Config.parse(longer, tmp_path), heard)
    assert not any("codebook" in text for text in heard.messages)
    path.write_bytes(written[:-4] + b"oops")
    heard = Heard()
    regard.train(regard.Config.parse(longer, tmp_path), heard)
    assert heard.messages[0].endswith("codebook.safetensors is damaged: it is not what was written; it is made anew")
    assert path.read_bytes() == written
    heard = Heard()
    begun = {**settings(), "run": "more", "start": {"model": "run"}}
    begun["training"] = {**begun["training"], "steps": 1}
    regard.train(regard.Config.parse(begun, tmp_path), heard)
    assert not any("codebook" in text for text in heard.messages)
    assert (tmp_path / "more" / "codebook.safetensors").read_bytes() == written


def test_fresh_weights_are_the_same_whether_the_codebook_was_learnt_or_is_read(folder: Path, tmp_path: Path) -> None:
    """Where a run is killed before its first checkpoint, only the second time it is read."""
    shutil.copytree(folder / "pictures", tmp_path / "pictures")
    shutil.copy(folder / "train.jsonl", tmp_path)
    config = regard.Config.parse(settings(target={**settings()["target"], "steps": 8}), tmp_path)
    first, again = (dict(prepare(config)[0].model.named_parameters()) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_pictures_as_files_and_scores_of_a_judge(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("red blue\n\nwhite green\n")
    album = tmp_path / "album"
    done = good("generate", folder / "run", tmp_path / "in.txt", "--pictures", album, "--nbest", "2", "--beam", "2")
    assert done.splitlines() == [
        f"{album}/000001.png\t{album}/000001-2.png",
        "",
        f"{album}/000003.png\t{album}/000003-2.png",
    ]
    with Image.open(album / "000001.png") as image:
        assert error(np.asarray(image), "red", "blue") < error(np.asarray(image), "blue", "red")
    assert (album / "index.png").read_bytes().startswith(b"\x89PNG")
    first = json.loads(good("generate", folder / "run", "--pictures", album, "--json", "--force", text="red red\n"))
    assert sorted(path.name for path in album.iterdir()) == ["000001.png", "index.png", "regard.json"]
    assert first["outputs"][0]["picture"] == f"{album}/000001.png"
    assert len(first["outputs"][0]["text"].split()) == CELLS
    assert "give another name, or --force to replace its pictures" in refused(
        "generate", folder / "run", "--pictures", album, text="red blue\n"
    )  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000001.png").write_text("precious")
    said = refused("generate", folder / "run", "--pictures", tmp_path / "mine", "--force", text="red blue\n")
    assert "exists and holds no pictures that Regard made" in said
    assert (tmp_path / "mine" / "000001.png").read_text() == "precious"

    stem = {"kind": "stem", "stem": {"kind": "convolution", "channels": 8, "halvings": 2}}
    captioner = settings(
        run="captioner", source={"kind": "image", "size": SIDE, "column": "target"},
        target={"kind": "text", "column": "source"}, search={"beam": 1},
        training={**settings()["training"], "steps": 70},
        model={"d_model": 32, "dropout": 0.0, "encoder": stem, "decoder": BLOCK},
    )  # fmt: skip
    judge = regard.train(regard.Config.parse(captioner, folder))
    known = [f"{left} {right}" for left, right in product(COLOURS, COLOURS)]
    pictures = [str(folder / "pictures" / f"{text.replace(' ', '-')}.png") for text in known]
    right = sum(said == text for said, text in zip(judge.generate(pictures), known, strict=True))
    assert right > 8
    report = tmp_path / "scores.json"
    good("evaluate", folder / "run", "--judge", folder / "captioner", "--report", report, "--beam", "1")
    scores = json.loads(report.read_text())["scores"]
    assert scores["real_exact"]["score"] == pytest.approx(100 * right / 16)
    assert scores["judged_exact"]["signature"].endswith("|judge:captioner|of:judged")
    assert 0 < scores["rebuilt_exact"]["score"] <= 100
    assert {"judged_bleu", "rebuilt_bleu", "real_bleu"} <= set(scores)
    assert 1 < scores["perplexity"]["score"] < 30
    assert scores["perplexity"]["signature"] == "per:token|tokens:image|end:counted"
    # By hand: what the judge says of the pictures that are painted.
    painter = regard.load(folder / "run", device="cpu")
    for i, picture in enumerate(painter.pictures(known, beam=1)):
        assert picture is not None
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    captions = judge.generate([str(tmp_path / f"{i}.png") for i in range(16)])
    exact = 100 * sum(a == b for a, b in zip(captions, known, strict=True)) / 16
    assert scores["judged_exact"]["score"] == pytest.approx(exact)
    real = np.stack([pixels(*text.split()) for text in known]).astype(float)
    again = np.stack(painter.task.target.pictures(pictures))
    assert scores["reconstruction"]["score"] == pytest.approx(np.sqrt(((real - again) ** 2).mean()), abs=1e-4)

    assert "a judge of pictures is a captioner (source.kind image" in refused(
        "evaluate", folder / "run", "--judge", folder / "run"
    )
    assert "target.kind 'text' is no picture" in refused(
        "evaluate", folder / "captioner", "--judge", folder / "captioner"
    )
    assert "target.kind 'text' is no picture" in refused(
        "generate", folder / "captioner", "--pictures", tmp_path / "none", text="a.png\n"
    )
    assert not (tmp_path / "none").exists()


def test_only_the_job_that_began_a_folder_of_pictures_goes_on_with_it(system: regard.System, tmp_path: Path) -> None:
    mine, other = Fingerprint({"job": 1}), Fingerprint({"job": 2})
    line = SourceLine(7, b"", "red blue")
    outputs = system.outputs(["red blue"], beam=1)[0]
    (path,) = Album(tmp_path, system, mine, resumed=False, force=False).add(line, outputs)
    Album(tmp_path, system, mine, resumed=True, force=False).close()
    assert Path(path).is_file()
    for made_from, resumed in ((other, True), (mine, False)):
        with pytest.raises(OutputError, match="give another name, or --force to replace its pictures"):
            Album(tmp_path, system, made_from, resumed=resumed, force=False)
    (tmp_path / "mine.png").write_text("precious")
    Album(tmp_path, system, other, resumed=False, force=True)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["mine.png", "regard.json"]


# What is wrong


def test_targets_that_are_no_pictures_are_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "pictures", tmp_path / "pictures")
    (tmp_path / "pictures" / "red-red.png").write_text("no picture")
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    lines += [json.dumps({"source": "red", "target": "pictures/gone.png"}) + "\n", '{"source": "red", "target": " "}\n']
    (tmp_path / "train.jsonl").write_text("".join(lines))
    config = settings(data={**settings()["data"], "bad_lines": "error"})
    with pytest.raises(DataError) as found:
        regard.train(regard.Config.parse(config, tmp_path))
    said = str(found.value)
    assert f"train.jsonl:17 names a target that is no picture: no picture {tmp_path}/pictures/gone.png" in said
    assert f"train.jsonl:1 names a target that is no picture: {tmp_path}/pictures/red-red.png cannot be read" in said
    assert "train.jsonl:18 names no picture as its target" in said
    target = sides_of("text", {"kind": "image", "size": SIDE, "halvings": 2}).target
    with pytest.raises(DataError, match="hold no picture to learn a codebook from"):
        target.learn([Example("red", str(tmp_path / "gone.png"))])


def test_another_picture_under_the_same_name_is_other_data(folder: Path, tmp_path: Path) -> None:
    from regard.data.examples import data_content

    shutil.copytree(folder / "pictures", tmp_path / "pictures")
    shutil.copy(folder / "train.jsonl", tmp_path)
    form = sides_of("text", {"kind": "image", "size": SIDE, "halvings": 2}).form
    before = data_content(str(tmp_path / "train.jsonl"), form)
    assert before == data_content(str(folder / "train.jsonl"), form)
    Image.fromarray(pixels("white", "red")).save(tmp_path / "pictures" / "red-red.png")
    assert data_content(str(tmp_path / "train.jsonl"), form) != before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": {"kind": "image", "size": 60, "halvings": 3}}, r"size \(60\) has to be a multiple of 2 \*\* "
         r"halvings \(8\), and at least twice that; try size 64, or fewer halvings"),
        ({"target": {"kind": "image", "size": 64, "halvings": 6}}, "try size 128, or fewer halvings"),
        ({"target": {"kind": "image", "size": 1024, "halvings": 1}}, "262,144 codes is too long to write"),
        ({"target": {"kind": "image", "metrics": ["bleu"]}}, "'bleu', which is not of pictures; there is: "),
        ({"training": {"metric": "bleu"}}, "training.metric 'bleu' is not among the metrics of target.kind 'image'"),
        ({"training": {"objective": "minimum_risk"}}, "'minimum_risk' compares texts, and target.kind is 'image'"),
        ({"model": {"ctc": True}}, "model.ctc reads text off a source, and target.kind is 'image'"),
        ({"model": {"share_embeddings": True}}, "share_embeddings needs a text as source and as target"),
        ({"model": {"encoder": "none"}}, "both need one vocabulary"),
        ({"source": "none", "model": {"encoder": "none"}}, "'image' is made from a source, but source.kind is none"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse({"target": "image", **changes})


def test_pictures_are_not_exported(folder: Path, tmp_path: Path) -> None:
    for engine, said in (("onnx", "only what writes text"), ("ctranslate2", "models that write text")):
        assert f"target.kind is 'image': {said}" in " ".join(
            refused("export", folder / "run", "--to", engine, "-o", tmp_path / engine).split()
        ).replace("CTranslate2 runs ", "")
