"""A worker with every kind of task: what it answers, and that it refuses what a task cannot do."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.config import merge, parse
from regard.data.sides import Sides
from regard.explain.trace import Explanation
from regard.loading import new_task
from regard.serving.engine import new_engine
from regard.serving.limits import Limits
from regard.serving.settings import Served
from regard.serving.wire import ASK, TELL, Channel, Start, frame
from regard.serving.worker import Worker, describe_model
from regard.system import System
from tests.conftest import redrawn
from tests.served import PAINTING, PICTURES, TEXT, TOKENS, TRANSFORMER, with_codebook

NONE = {"kind": "none"}
HEAD = merge(TEXT, {"model": {"decoder": NONE}})
CONVOLUTION = {**TRANSFORMER, "stem": {"kind": "convolution", "halvings": 2, "channels": 2}}
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": merge(TEXT, {"model": {"encoder": {"kind": "gru"}, "decoder": {"kind": "lstm"}}}),
    "decoder-only": merge(TEXT, {"model": {"encoder": NONE}}),
    "language model": merge(TEXT, {"source": {"kind": "none"}, "model": {"encoder": NONE}}),
    "masked": merge(HEAD, {"source": {"kind": "none"}}),
    "denoising": merge(TEXT, {"source": {"kind": "none"}, "training": {"objective": "denoising"}}),
    "labels": merge(HEAD, {"target": {"kind": "label"}}),
    "numbers": merge(HEAD, {"target": {"kind": "number"}}),
    "picture": PICTURES,
    "text to picture": PAINTING,
    "picture and text": {
        **TEXT, "source": [{"kind": "image", "size": 16}, "text"],
        "model": {**TEXT["model"], "encoder": [CONVOLUTION, TRANSFORMER]},
    },
}  # fmt: skip


def untrained(settings: dict[str, Any]) -> System:
    sides = Sides.of(parse(settings))
    sides.use(dict.fromkeys(sides.vocabularies, TOKENS))
    if sides.target.settings.kind == "label":
        sides.target.labels = ["low", "high"]  # type: ignore[attr-defined]
    system = System(with_codebook(new_task(sides, torch.device("cpu"))), Path("model"))
    redrawn(system.model).float()
    return system


Asking = Callable[..., list[Any]]


@contextmanager
def at_work(system: System, folder: Path, limits: Limits | None = None) -> Iterator[Asking]:
    """A worker in a thread, and how it is asked."""
    ours, theirs = socket.socketpair()
    start = Start(served=Served(folder="model"), limits=limits or Limits(), folder=str(folder), modules=[])
    worker = Worker(system, Channel(theirs), start, new_engine(system.task, budget=4000))

    def run() -> None:
        with theirs, suppress(EOFError):
            worker.run()

    def ask(do: str, **what: Any) -> list[Any]:
        count = len(what["request"]["inputs"]) if do == "generate" else 1
        ours.sendall(frame(ASK.validate_python({"do": do, "id": 1, **what}).model_dump_json().encode()))
        replies = list[Any]()
        while sum(reply.say in ("found", "answer", "failed") for reply in replies) < count:
            replies += [TELL.validate_json(content) for content in channel.receive(wait=True)]
            if any(reply.say == "failed" for reply in replies):
                break
        return [reply for reply in replies if reply.say not in ("load", "started")]

    thread, channel = threading.Thread(target=run), Channel(ours)
    thread.start()
    try:
        yield ask
    finally:
        ours.close()
        thread.join()


def inputs(system: System) -> tuple[Any, Any]:
    """An input that a model reads, as a request has it and as the model takes it."""
    file, path = io.BytesIO(), str(system.folder / "picture.png")
    Image.fromarray(np.random.default_rng(0).integers(256, size=(20, 20, 3)).astype(np.uint8)).save(file, "PNG")
    blob = {"data": base64.b64encode(file.getvalue()).decode()}
    Path(path).write_bytes(file.getvalue())
    kinds = {"image": (blob, path), "text": ("alpha <mask> gamma", "alpha <mask> gamma")}
    found = [kinds[part.media] for part in system.task.source.parts]
    return found[0] if len(found) == 1 else ([one for one, _ in found], tuple(one for _, one in found))


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_answers_for_every_task(kind: str, tmp_path: Path) -> None:
    system = untrained(KINDS[kind])
    system.folder = tmp_path
    asked, field = inputs(system)
    (tmp_path / "uploads").mkdir()
    search: dict[str, Any] = {"max_length": 6, "beam": 2}
    info = describe_model(system, Start(served=Served(folder="x"), limits=Limits(), folder="", modules=[]))
    with at_work(system, tmp_path / "uploads") as ask:
        request = {"inputs": [asked], "search": search, "tokens": True, "alignment": True}
        (*deltas, found) = ask("generate", request=request, stream=True)
        assert found.say == "found", found
        (expected,) = system.outputs([field], **search)
        assert found.outputs[0].text == expected[0].text
        assert "".join(delta.text for delta in deltas) == expected[0].text
        assert (found.outputs[0].tokens is not None) == info.writes
        assert found.outputs[0].alignment is None or info.aligns
        (answer,) = ask("embed", sources=[asked])
        assert np.allclose(json.loads(answer.content), system.sentence_embeddings([field]), atol=1e-4)
        (explained,) = ask("explain", source=asked, target=None, method="attention", search=search)
        assert json.loads(explained.content)["source"]
        for do, what in (
            ("score", {"sources": [asked], "targets": ["ALPHA BETA" if info.target == "text" else "low"]}),
            ("explain", {"source": asked, "target": None, "method": "erasure", "search": search}),
            (
                "inspect",
                {"source": asked, "forced": [], "alternatives": 2, "tree": True, "edits": None, "search": search},
            ),
            (
                "inspect",
                {"source": asked, "forced": [10**6], "alternatives": 2, "tree": False, "edits": {}, "search": {}},
            ),
        ):
            (reply,) = ask(do, **what)
            assert reply.say == "answer" or (reply.status == 422 and reply.message), reply
            if reply.say == "answer":
                json.loads(reply.content)
        for wrong in ("", "alpha " * 3000):
            for do, what in (
                ("generate", {"request": {"inputs": [wrong], "search": search}, "stream": False}),
                ("embed", {"sources": [wrong]}),
                ("score", {"sources": [wrong], "targets": [wrong]}),
                ("explain", {"source": wrong, "target": None, "method": "attention", "search": search}),
            ):
                (reply,) = ask(do, **what)
                assert reply.say in ("found", "answer") or reply.status == 422, (do, wrong[:10], reply)
    assert not list((tmp_path / "uploads").iterdir())


def test_a_picture_that_was_written_comes_as_a_file(tmp_path: Path) -> None:
    """Each output; but no more of them than an answer may have pixels."""
    system = untrained(KINDS["text to picture"])
    request = {"inputs": ["alpha", "beta gamma"], "search": {"beam": 2, "nbest": 2}}
    with at_work(system, tmp_path) as ask:
        replies = ask("generate", request=request, stream=False)
        for reply in replies:
            texts = [output.text for output in reply.outputs]
            assert len(set(texts)) == 2
            files = [Image.open(io.BytesIO(output.picture)) for output in reply.outputs]
            assert all(file.format == "PNG" for file in files)
            assert np.array_equal([np.asarray(x) for x in files], system.task.target.pictures(texts))
        best = system.outputs(["alpha"], beam=2)[0][0].text
        (answer,) = ask("inspect", source="alpha", forced=[], alternatives=3, tree=False, edits=None, search={})
        found = json.loads(answer.content)
        (drawn,) = system.task.target.pictures([best])
        again = Explanation.from_json(found["explanation"]).drawn
        assert again is not None
        assert np.array_equal(again, drawn)
        others = [one["text"] for one in found["outputs"][0]["tokens"][0]["alternatives"]]
        assert len(set(others)) == 3
        assert all(map(str.isdigit, others))
    few = Limits(pixels=3 * 16 * 16)
    with at_work(system, tmp_path, few) as ask:
        (reply,) = ask("generate", request=request, stream=False)
        assert (reply.status, reply.message) == (413, "4 pictures of 256 pixels have more than 768, the limit here")
        assert ask("generate", request={**request, "inputs": ["alpha"]}, stream=False)[0].say == "found"


def test_a_target_is_no_path(tmp_path: Path) -> None:
    """A text-to-picture model reads its targets from files; those of the server are nobody's to read."""
    system = untrained(KINDS["text to picture"])
    path = str(tmp_path / "secret.png")
    Image.new("RGB", (16, 16)).save(path)
    assert system.score(["alpha"], [path])
    codes = "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"
    with at_work(system, tmp_path) as ask:
        for target in (path, "", codes):
            for do, what in (
                ("score", {"sources": ["alpha"], "targets": [target]}),
                ("explain", {"source": "alpha", "target": target, "method": "attention", "search": {}}),
                ("generate", {"request": {"inputs": ["alpha"], "prefixes": [target[:9] or target]}, "stream": False}),
                ("generate", {"request": {"inputs": ["alpha"], "phrases": [[target[:9]]]}, "stream": False}),
            ):
                (reply,) = ask(do, **what)
                if target == path:
                    assert reply.say == "failed", do
                    assert "not the path of a picture" in reply.message
                elif target:
                    assert reply.say in ("answer", "found"), (do, reply)
