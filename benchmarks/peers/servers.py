"""Servers as people write them around a model, to hold Regard's beside.

`python -m benchmarks.peers.servers KIND MODEL PORT PRECISION` starts one. `marian` is FastAPI around `generate` of
Hugging Face, as most examples have it: the endpoint is no coroutine, so requests run in threads, each by itself.
`ctranslate2` is the way of LibreTranslate: one translator of CTranslate2, which takes one request after the other. Both
have the weights of a folder that Regard has saved, and write as many tokens as they are asked for.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from pydantic import BaseModel

import regard
from benchmarks.peers.base import Job
from benchmarks.peers.ctranslate import Translator
from benchmarks.peers.marian import Marian, with_weights
from benchmarks.peers.ours import fixed_search
from benchmarks.workload import SHAPES, Shape
from regard.errors import ConfigError
from regard.tasks.generating import TextGeneration


class Question(BaseModel):
    """A text of words that are tokens, and how many tokens its output has."""

    text: str
    length: int
    beam: int


Answer = Callable[[str, int, int], str]  # a text, the length of its output and the beam to the output


def shape_of(task: TextGeneration) -> Shape:
    """The stated shape that a saved model has."""
    size = task.target.size
    return next(x for x in SHAPES.values() if (x.d_model, x.vocabulary) == (task.config.model.d_model, size))


def marian(task: TextGeneration, folder: Path, precision: str) -> Answer:
    """Each call by itself, in whatever thread it comes."""
    peer, shape = Marian("HF Marian"), shape_of(task)
    model = with_weights(task, shape, precision)

    def answer(text: str, length: int, beam: int) -> str:
        source = task.source.encode_many([text])
        decode = peer.decoder(model, Job(task, fixed_search(beam, length, precision), source, folder, shape))
        return task.target.decode(decode(source)[0].tokens)

    return answer


def ctranslate2(task: TextGeneration, folder: Path, precision: str) -> Answer:
    """One call at a time."""
    lock = Lock()
    translator = Translator(Job(task, fixed_search(1, 8, precision), [[10] * 8], folder, shape_of(task)))

    def answer(text: str, length: int, beam: int) -> str:
        with lock:
            translator.options |= {
                "beam_size": beam, "min_decoding_length": length, "max_decoding_length": length,
            }  # fmt: skip
            return task.target.decode(translator(task.source.encode_many([text]))[0].tokens)

    return answer


def main(kind: str, folder: str, port: str, precision: str) -> None:
    """Serve until the process is ended."""
    import uvicorn
    from fastapi import FastAPI

    kinds = {"marian": marian, "ctranslate2": ctranslate2}
    task = regard.load(folder, device="auto").task
    if not isinstance(task, TextGeneration):
        raise ConfigError(f"{folder} is no model that translates")
    app = FastAPI()
    with tempfile.TemporaryDirectory() as own:
        answer = kinds[kind](task, Path(own), precision)

        @app.post("/generate")
        def generate(question: Question) -> dict[str, str]:
            return {"text": answer(question.text, question.length, question.beam)}

        @app.get("/ready")
        def ready() -> dict[str, bool]:
            return {"ready": True}

        uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
