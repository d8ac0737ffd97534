"""Pictures that were made from texts, judged by a captioner: does it say of them what they were made from?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.data.modality import Picture
from regard.data.target import Target, measure
from regard.data.tokens import clean
from regard.errors import ConfigError
from regard.evaluation.metrics import Score
from regard.tasks.results import Evaluation
from regard.tasks.task import Task, windows

METRICS = ("exact", "bleu")
WINDOW = 512  # pictures that are on disk at once


def judge_pictures(painter: Task, judge: Task, made: Evaluation, name: str) -> dict[str, Score]:
    """What a captioner's captions of pictures score against the texts that these were made from.

    `judged_…` is of the pictures that were made. `rebuilt_…` is of the real pictures as the codebook draws them again,
    which the decoder cannot be better than, and `real_…` of the real ones, which shows how far the judge is to be
    trusted. An output that is missing counts as an empty caption. `name` is the judge's, for the signature.
    """
    check_judge(judge)
    texts = [clean(example.source) for example in made.examples]
    real = [example.target for example in made.examples]
    captions = {
        "judged": _captions(judge, painter.target, made.outputs),
        "rebuilt": _captions(judge, painter.target, real),
        "real": [clean(caption) for caption in _written(judge, real)],
    }
    found = {}
    for what, written in captions.items():
        for metric in METRICS:
            score = measure(metric, written, texts)
            signature = f"{score.signature}|judge:{name}|of:{what}"
            found[f"{what}_{metric}"] = replace(score, name=f"{score.name}, {what}", signature=signature)
    return found


def check_judge(judge: Task) -> None:
    """Refuse one that is no captioner."""
    kinds = " and ".join(side.kind for side in judge.config.sources)
    if kinds != "image" or not judge.config.target.text:
        raise ConfigError(
            f"a judge of pictures is a captioner (source.kind image, target.kind text); this one has source.kind "
            f"{kinds} and target.kind {judge.config.target.kind}"
        )


def _captions(judge: Task, target: Target, outputs: Sequence[str]) -> list[str]:
    """The captions of pictures that codes, or files as the codebook draws them again, become."""
    found: list[str] = []
    for some in windows(outputs, WINDOW):
        there = [i for i, output in enumerate(some) if output]
        captions = dict(zip(there, _captioned(judge, target.pictures([some[i] for i in there])), strict=True))
        found += [clean(captions.get(i, "")) for i in range(len(some))]
    return found


def _captioned(judge: Task, pictures: Sequence[Picture]) -> list[str]:
    from PIL import Image

    # By way of files: so the judge reads them as it reads every picture.
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.png" for i in range(len(pictures))]
        for path, picture in zip(paths, pictures, strict=True):
            Image.fromarray(picture).save(path, compress_level=1)
        return _written(judge, [str(path) for path in paths])


def _written(judge: Task, paths: Sequence[str]) -> list[str]:
    found = judge.outputs(list(paths), judge.config.search, lambda index, what: None)
    return [outputs[0].text if outputs else "" for outputs in found]
