"""A trained model as its user meets it: load it, use it, look into it; or train one."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.config import Config, Search, dump, parse, read_yaml, resolve_paths
from regard.data.batches import Batches
from regard.data.corpora import Example, Files, read_pairs
from regard.data.store import write_pairs
from regard.data.tokens import Tokenizer, load_tokenizer, train_tokenizer
from regard.errors import ConfigError, DataError, ModelError, OutputError
from regard.explain.trace import Explanation, Layer
from regard.models.build import build
from regard.tasks import (
    Advance,
    Evaluation,
    Output,
    PairScore,
    Problem,
    TextToText,
    Warn,
    attention_kind,
    longest_sequence,
)
from regard.training.checkpoint import (
    WEIGHTS,
    Progress,
    checkpoints,
    load_tensors,
    save_tensors,
    set_weights,
    weights,
    write_text,
)
from regard.training.trainer import Trainer, Watcher

CONFIG = "config.yaml"


class System:
    """A trained model: `generate`, `score`, `explain`, `evaluate`."""

    def __init__(self, task: TextToText, folder: Path) -> None:
        self.task, self.folder = task, folder

    @property
    def config(self) -> Config:
        """All settings it was made with."""
        return self.task.config

    def generate(self, texts: Sequence[str], *, on_problem: Problem | None = None, **search: Any) -> list[str]:
        """The best output for each text. Any setting of `Search` may be given: `beam=1`, `sample=True`, …

        A text that cannot be used gets an empty output, and `on_problem` (or a warning) says why.
        """
        found = self.outputs(texts, on_problem=on_problem, **{**search, "nbest": 1})
        return [outputs[0].text if outputs else "" for outputs in found]

    def outputs(self, texts: Sequence[str], *, on_problem: Problem | None = None, **search: Any) -> list[list[Output]]:
        """The `nbest` outputs for each text, with their scores, best first."""
        if isinstance(texts, str):
            raise TypeError("texts should be a list of strings; for one text write [text]")
        return self.task.outputs(texts, self.search(**search), on_problem or _warn)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """`log p(target given source)` of each pair, in all and by token."""
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources but {len(targets)} targets; each source needs its target")
        return self.task.score(sources, targets)

    def explain(self, source: str, target: str | None = None, **search: Any) -> Explanation:
        """What every layer and head attends to while writing the target (its own best output, if none is given).

        The target is run once more, teacher forced, under `capture`: decoding itself stays on the fast path.
        """
        task = self.task
        x = task.source.encode(source)
        if not x:
            raise DataError("the source is empty; give a sentence to explain")
        if target is None:
            found = self.outputs([source], on_problem=_refuse, **{**search, "nbest": 1})
            y = found[0][0].tokens
        else:
            y = task.target.encode(target)
        names = task.attention([x], [y])[0]
        layers = [Layer(name, attention_kind(name), matrix) for name, matrix in names.items()]
        return Explanation(
            source=[*task.source.pieces(x), "</s>"],
            target=[*task.target.pieces(y), "</s>"],
            source_word=[*task.source.words(x), -1],
            target_word=[*task.target.words(y), -1],
            log_probs=task.score_tokens([x], [y])[0].tokens,
            layers=layers,
            best=task.best_layer,
        )

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Links (source word, target word) that the attention makes."""
        return self.task.align(self.task.source.encode_many(sources), self.task.target.encode_many(targets))

    def evaluate(
        self, files: Files, *, warn: Warn = warnings.warn, advance: Advance = lambda count: None, **search: Any
    ) -> Evaluation:
        """All scores of a file of pairs, in the columns that the model was trained on."""
        examples = list(read_pairs(files, self.config.data.columns))
        return self.task.evaluate(examples, self.search(**search), warn, advance)

    def test(self, warn: Warn = warnings.warn) -> Evaluation:
        """Evaluate on the config's test data, and keep the scores in `scores.json`."""
        if self.config.data.test is None:
            raise ConfigError("the config names no data.test")
        result = self.evaluate(self.config.data.test, warn=warn)
        path = self.folder / "scores.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        known["test"] = {name: score.to_json() for name, score in result.scores.items()}
        write_text(path, json.dumps(known, indent=1) + "\n")
        return result

    def search(self, **changes: Any) -> Search:
        """The model's own search settings with changes."""
        merged = {**self.config.search.model_dump(), **changes}
        return parse({"search": merged}, "the search settings").search

    def parameters(self) -> int:
        """How many numbers were learnt."""
        return sum(parameter.numel() for parameter in self.task.model.parameters())

    def save(self, folder: str | Path) -> Path:
        """Write a folder that loads anywhere: config, weights, tokenizers."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIG, dump(self.config))
        save_tokenizers(folder, self.task.source, self.task.target)
        save_tensors(folder / WEIGHTS, weights(self.task.model))
        return folder


def load(folder: str | Path, *, weights: str | Path | None = None, device: str = "auto") -> System:
    """Load a trained model from its folder; `weights` may name another file of weights, such as a checkpoint's."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}; `regard train` makes one, and `regard demo` makes runs/demo")
    if not (folder / CONFIG).exists():
        raise ModelError(f"{folder} is not a Regard model: it has no {CONFIG}")
    config = resolve_paths(parse(read_yaml(folder / CONFIG), str(folder / CONFIG)), folder)
    place = choose_device(device)
    task = new_task(config, *load_tokenizers(folder, config), place)
    file = Path(weights) if weights is not None else folder / WEIGHTS
    set_weights(task.model, load_tensors(file), file)
    return System(task, folder)


def train(config: Config, watcher: Watcher | None = None) -> System:
    """Train what the config says, in `config.run`; goes on where an earlier run with the same settings was cut off."""
    watcher = watcher or Watcher()
    folder = Path(config.run)
    _claim(folder, config)
    torch.manual_seed(config.training.seed)
    device = choose_device(config.training.device)
    tokenizers = _tokenizers(folder, config, watcher)
    pairs = write_pairs(
        folder / "cache", read_pairs(config.data.train, config.data.columns), *tokenizers,
        max_length=config.data.max_length, bad_lines=config.data.bad_lines, text=config.tokens.sampling > 0,
        made_from={"files": _fingerprint(config.data.train), "columns": config.data.columns,
                   "tokens": [_digest(tokenizer, folder) for tokenizer in ("source", "target")]},
    )  # fmt: skip
    if pairs.report:
        watcher.message(f"{_name(config.data.train)}: {pairs.report}")
    valid = _usable(read_pairs(config.data.valid, config.data.columns), tokenizers, config, watcher)
    task = new_task(config, *tokenizers, device)
    system = System(task, folder)
    watcher.message(
        f"{len(pairs):,} pairs to train on, {len(valid):,} to validate; {tokenizers[0].size:,} source and "
        f"{tokenizers[1].size:,} target tokens; {system.parameters():,} parameters on {device}"
    )
    batches = Batches(pairs, tokenizers, config.training.batch_tokens, config.training.seed, config.tokens.sampling)

    def validate() -> dict[str, float]:
        return task.validate(valid, config.training.validate_sentences)

    trainer = Trainer(task.model, batches, config.training, folder, device, validate, watcher)
    progress = trainer.run()
    if not progress.finished:
        raise Stopped(progress)
    set_weights(task.model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return system


class Stopped(Exception):  # noqa: N818 - not an error: the user asked
    """Training was asked to stop, and can go on from its last checkpoint."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"stopped at update {progress.step}")
        self.progress = progress


def new_task(config: Config, source: Tokenizer, target: Tokenizer, device: torch.device) -> TextToText:
    """A task with a model of fresh weights."""
    model = build(config.model, source.size, target.size, longest_sequence(config)).to(device)
    return TextToText(config, source, target, model, device)


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"training.device '{name}' cannot be used here; try auto or cpu") from None
    return device


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """One file if they are one, else one a side."""
    if source is target:
        source.save(folder, "tokens")
    else:
        source.save(folder, "source")
        target.save(folder, "target")


def load_tokenizers(folder: Path, config: Config) -> tuple[Tokenizer, Tokenizer]:
    """What `save_tokenizers` wrote."""
    if config.tokens.shared:
        tokenizer = load_tokenizer(folder, "tokens")
        return tokenizer, tokenizer
    return load_tokenizer(folder, "source"), load_tokenizer(folder, "target")


def _tokenizers(folder: Path, config: Config, watcher: Watcher) -> tuple[Tokenizer, Tokenizer]:
    """The run's tokenizers, learnt from the training data the first time."""
    if any(folder.glob("tokens.*")) or any(folder.glob("target.*")):
        return load_tokenizers(folder, config)
    settings, data = config.tokens, config.data
    watcher.message(f"learning tokens ({settings.kind}) from {_name(data.train)}")

    def texts(sides: str) -> Iterator[str]:
        for example in read_pairs(data.train, data.columns):
            if "s" in sides:
                yield example.source
            if "t" in sides:
                yield example.target

    if settings.shared:
        both = train_tokenizer(texts("st"), settings.kind, settings.size)
        made = both, both
    else:
        made = tuple(train_tokenizer(texts(side), settings.kind, settings.size) for side in "st")  # type: ignore[assignment]
    save_tokenizers(folder, *made)
    return made


def _usable(
    examples: Iterator[Example], tokenizers: tuple[Tokenizer, Tokenizer], config: Config, watcher: Watcher
) -> list[Example]:
    """Validation examples that are neither empty nor too long; those that are get named."""
    kept, limit = [], config.data.max_length
    for example in examples:
        lengths = [len(t.encode(text)) for t, text in zip(tokenizers, (example.source, example.target), strict=True)]
        if min(lengths) > 0 and max(lengths) <= limit:
            kept.append(example)
        else:
            problem = "has an empty side" if min(lengths) == 0 else f"is longer than data.max_length={limit} tokens"
            if config.data.bad_lines == "error":
                raise DataError(f"{example.place} {problem}; mend it, or set data.bad_lines=skip")
            watcher.message(f"{example.place} {problem}: left out")
    if not kept:
        raise DataError(f"no usable pairs in {_name(config.data.valid)} to validate on")
    return kept


def _claim(folder: Path, config: Config) -> None:
    """Make the run's folder, or see that it is this run's."""
    known = folder / CONFIG
    if known.exists():
        before = resolve_paths(parse(read_yaml(known), str(known)), folder)
        differing = [
            f"{section}.{name}"
            for section in ("data", "tokens", "model")
            for name in type(getattr(config, section)).model_fields
            if name != "test" and getattr(getattr(before, section), name) != getattr(getattr(config, section), name)
        ]
        if differing and not checkpoints(folder / "checkpoints"):
            shutil.rmtree(folder)  # an attempt that never trained: nothing is lost
        elif differing:
            raise OutputError(
                f"{folder} holds a run with other settings ({', '.join(differing)}); "
                "give another run=FOLDER, or remove it"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty and holds no run; give another run=FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(known, dump(config))


def _fingerprint(files: Files) -> list[list[str | int]]:
    paths = [Path(files)] if isinstance(files, str) else [Path(file) for file in files]
    for path in paths:
        if not path.exists():
            raise DataError(f"no file {path}; check data.train in the config (paths are relative to the config file)")
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def _digest(name: str, folder: Path) -> str:
    found = sorted([*folder.glob(f"{name}.*"), *folder.glob("tokens.*")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest()


def _name(files: Files) -> str:
    return files if isinstance(files, str) else " + ".join(files)


def _warn(index: int, what: str) -> None:
    warnings.warn(f"input {index} {what}; its output is empty", stacklevel=4)


def _refuse(index: int, what: str) -> None:
    raise DataError(f"the source {what}")
