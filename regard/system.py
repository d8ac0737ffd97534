"""A trained model as its user meets it: load it, use it, look into it."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.artifacts import file_digest, mark, new_folder, read_json, read_mark, write_json, write_text
from regard.config import dump, parse, read_yaml, resolve_paths
from regard.data.corpora import Files, read_files
from regard.data.labels import Labels, Numbers, load_labels
from regard.data.sources import Nothing, Parts, Pictures, Source, Text
from regard.data.tokens import Tokenizer, load_tokenizer
from regard.errors import ConfigError, DamagedError, DataError, ModelError
from regard.explain.trace import Explanation, Layer
from regard.models.build import build, count_parameters
from regard.models.model import FillIn, OneNetwork, Reader, Writer
from regard.parts import ConvolutionEncoder, NoEncoder
from regard.search.ensemble import Ensemble
from regard.settings import Config, Search
from regard.tasks.blanks import FillingIn
from regard.tasks.task import (
    Advance,
    Evaluation,
    Given,
    Output,
    PairScore,
    Problem,
    Task,
    Warn,
    attention_kind,
    longest_sequence,
)
from regard.tasks.telling import Telling
from regard.tasks.writing import LanguageModel, Writing
from regard.training.checkpoint import (
    WEIGHTS,
    load_tensors,
    save_tensors,
    set_weights,
    weights,
)

CONFIG, SCORES = "config.yaml", "scores.json"
MODEL = "model"  # the kind of folder that `save` writes


class System:
    """A trained model: `generate`, `score`, `explain`, `evaluate`."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder

    def __repr__(self) -> str:
        """One line: where it lies, what it is, how large, and on which device."""
        model = self.config.model
        return (
            f"System('{self.folder}': encoder {model.encoder.kind}, decoder {model.decoder.kind}, "
            f"{self.parameters():,} parameters on {self.task.device})"
        )

    @property
    def config(self) -> Config:
        """All settings it was made with."""
        return self.task.config

    def generate(
        self, texts: Iterable[str], *, on_problem: Problem | None = None, prefixes: Iterable[str] | None = None,
        phrases: Iterable[Sequence[str]] | None = None, first_line: int = 0, **search: Any,
    ) -> list[str]:  # fmt: skip
        """The best output for each input. Any setting of `Search` may be given: `beam=1`, `sample=True`, …

        `prefixes` says how each output begins, `phrases` what each must hold. To a language model an input is how its
        output begins, and may be empty. An input that cannot be used gets an empty output, and `on_problem` (or a
        warning) says why. What is sampled for an input depends on `seed` and on its number, counted from `first_line`,
        and not on the inputs beside it.
        """
        found = self.outputs(
            texts, on_problem=on_problem, prefixes=prefixes, phrases=phrases, first_line=first_line,
            **{**search, "nbest": 1},
        )  # fmt: skip
        return [outputs[0].text if outputs else "" for outputs in found]

    def outputs(
        self, texts: Iterable[str], *, on_problem: Problem | None = None, prefixes: Iterable[str] | None = None,
        phrases: Iterable[Sequence[str]] | None = None, first_line: int = 0, **search: Any,
    ) -> list[list[Output]]:  # fmt: skip
        """The `nbest` outputs for each input, with their scores, best first; see `generate`."""
        texts = _texts(texts, "texts")
        prefixes = None if prefixes is None else _texts(prefixes, "prefixes")
        phrases = None if phrases is None else [_texts(some, f"phrases[{i}]") for i, some in enumerate(phrases)]
        for name, given in (("prefixes", prefixes), ("phrases", phrases)):
            if given is not None and len(given) != len(texts):
                raise DataError(f"{len(given)} {name} for {len(texts)} inputs; give one for each")
        beside = Given(prefixes, phrases, first_line)
        return self.task.outputs(texts, self.search(**search), on_problem or _warn, given=beside)

    def score(self, sources: Iterable[str], targets: Iterable[str] | None = None) -> list[PairScore]:
        """`log p(target given source)` of each pair, in all and by token; of a language model, `log p(text)`."""
        sources = _texts(sources, "sources")
        targets = None if targets is None else _texts(targets, "targets")
        if targets is None:
            sources, targets = [""] * len(sources), sources
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources but {len(targets)} targets; each source needs its target")
        return self.task.score(sources, targets)

    def explain(self, source: str, target: str | None = None, **search: Any) -> Explanation:
        """What every layer and head attends to while writing the target (its own best output, if none is given).

        The target is run once more, teacher forced, under `capture`: decoding itself stays on the fast path. A text
        with blanks is run as it is given, with `<mask>` in it.
        """
        for name, given in (("source", source), ("target", target)):
            if not isinstance(given, str) and not (name == "target" and given is None):
                raise TypeError(f"{name} should be one string, not {_shown(given)}")
            _check_text(given or "", f"the {name}")
        task = self.task
        y: Sequence[int]
        if target is None:
            y = self.outputs([source], on_problem=_refuse, **{**search, "nbest": 1})[0][0].tokens
        else:
            y = task.forced(source, target)
        x = task.source.encode_many([source])[0]
        if problem := task.source.problem(x, task.longest):
            _refuse(0, problem)
        shown = task.shown(source, x, y)
        attended = task.attention([x], [shown.tokens])[0]
        layers = [Layer(name, attention_kind(name), matrix) for name, matrix in attended.items()]
        return Explanation(
            source=shown.source,
            target=shown.target,
            source_word=shown.source_word,
            target_word=shown.target_word,
            inputs=shown.inputs,
            log_probs=shown.log_probs,
            layers=layers,
            best=task.best_layer,
            picture=task.source.picture(x),
            given=shown.given,
            places=shown.places,
            candidates=shown.candidates,
        )

    def align(self, sources: Iterable[str], targets: Iterable[str]) -> list[list[tuple[int, int]]]:
        """Links (source word, target word) that the attention makes."""
        sources, targets = _texts(sources, "sources"), _texts(targets, "targets")
        return self._writing().align(self.task.source.encode_many(sources), self.task.target.encode_many(targets))

    def stream(self, lines: Iterable[str]) -> Iterator[list[float]]:
        """`log p` of each token of a long text, a list for each line, with the language model's state carried on."""
        if not isinstance(self.task, LanguageModel):
            raise ConfigError("only a language model (data.source none) reads a text on and on")
        return self.task.stream(lines)

    def summaries(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """One vector for each input, `(texts, d_model)`: what the encoder makes of the whole."""
        return self.task.summaries(_texts(texts, "texts"))

    def vectors(self, texts: Iterable[str]) -> list[NDArray[np.float32]]:
        """For each input a vector of each of its positions, `(positions, d_model)`, marks counted: `task.source.pieces`
        of a text says what they stand for."""
        return self.task.vectors(_texts(texts, "texts"))

    def _writing(self) -> Writing:
        if not isinstance(self.task, Writing):
            raise ConfigError("this model does not write a text from a source, so there is nothing to align")
        return self.task

    def evaluate(
        self, files: Files, *, warn: Warn = warnings.warn, advance: Advance = lambda count: None, **search: Any
    ) -> Evaluation:
        """All scores of a file of examples, in the form that the model was trained on."""
        examples = list(read_files(files, self.config.data))
        return self.task.evaluate(examples, self.search(**search), warn, advance)

    def test(self, warn: Warn = warnings.warn) -> Evaluation:
        """Evaluate on the config's test data, and keep the scores in `scores.json`."""
        if self.config.data.test is None:
            raise ConfigError("the config names no data.test")
        result = self.evaluate(self.config.data.test, warn=warn)
        path = self.folder / SCORES
        try:
            known = read_json(path)
        except (FileNotFoundError, DamagedError):
            known = {}
        write_json(path, {**known, "test": {name: score.to_json() for name, score in result.scores.items()}})
        return result

    def search(self, **changes: Any) -> Search:
        """The model's own search settings with changes."""
        merged = {**self.config.search.model_dump(), **changes}
        return parse({"search": merged}, "the search settings").search

    def parameters(self) -> int:
        """How many numbers were learnt."""
        return sum(parameter.numel() for parameter in self.task.model.parameters())

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write a folder that loads anywhere: config, weights, tokenizers. `force` replaces an earlier model there."""
        with new_folder(Path(folder), MODEL, force=force) as new:
            write_text(new / CONFIG, dump(self.config.model_copy(update={"run": "."})))
            save_tokenizers(new, self.task.source.tokenizer, self.task.target)
            save_tensors(new / WEIGHTS, weights(self.task.model))
            mark(new, MODEL, tokens=token_files(new))
        return Path(folder)


def _texts(given: Iterable[str], name: str) -> list[str]:
    """A list of what any iterable of strings gives; what is none is refused with what it is."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name} should be a list of strings, not {_shown(given)}; for one text write [text]")
    texts = list(given)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name} should be strings, but number {i} is {_shown(text)}")
        _check_text(text, f"{name}: number {i}")
    return texts


def _check_text(text: str, name: str) -> None:
    """Refuse half characters, such as bytes of another encoding become on a command line."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name} is not UTF-8 text (character {error.start + 1}: {text[error.start]!r})") from None


def _shown(value: object) -> str:
    """A value and its type, shortly."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:39] + '…'} ({type(value).__name__})"


def load(folder: str | Path, *others: str | Path, weights: str | Path | None = None, device: str = "auto") -> System:
    """Load a trained model from its folder; `weights` may name another file of weights, such as a checkpoint's.

    With `others`, models of any kind over the same tokens, an ensemble of all of them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}; `regard train` makes one, and `regard demo` makes runs/demo")
    if not (folder / CONFIG).exists():
        raise ModelError(f"{folder} is not a Regard model: it has no {CONFIG}")
    config = resolve_paths(parse(read_yaml(folder / CONFIG), str(folder / CONFIG)), folder)
    check_tokenizers(folder, (read_mark(folder) or {}).get("tokens"))
    place = choose_device(device)
    task = new_task(config, load_tokenizers(folder, config), place)
    file = Path(weights) if weights is not None else folder / WEIGHTS
    set_weights(task.model, load_tensors(file), file)
    more = [load(other, device=device).task for other in others]
    for other in others:
        if vocabulary(Path(other)) != vocabulary(folder):
            raise ConfigError(f"an ensemble needs models of one vocabulary; that of {other} is not that of {folder}")
    return System(together([task, *more]), folder)


def together(tasks: Sequence[Task]) -> Task:
    """One task that writes with all models at once."""
    first = tasks[0]
    if len(tasks) == 1:
        return first
    models: list[Writer] = []
    for task in tasks:
        if not isinstance(task, Writing) or task.first != first.first or type(task.source) is not type(first.source):
            raise ConfigError("an ensemble needs models that read the same and write; these differ in kind")
        models.append(task.model)
    return replace(first, model=Ensemble(models))  # type: ignore[arg-type]


def new_task(config: Config, tokenizers: tuple[Tokenizer | None, Tokenizer], device: torch.device) -> Task:
    """A task with a model of fresh weights."""
    text, target = tokenizers
    source = _source(config, text)
    _check_size(config, max(source.size, target.size))
    model = build(config.model, source.size, target.size, longest_sequence(config)).to(device)
    match model:
        case FillIn():
            return FillingIn(config, source, target, model, device)
        case Reader():
            assert isinstance(target, Labels | Numbers), "a head tells labels or numbers"
            return Telling(config, source, target, model, device)
        case OneNetwork() if config.data.source == "none":
            return LanguageModel(config, source, target, model, device)
        case _:
            return Writing(config, source, target, model, device)


def _source(config: Config, tokenizer: Tokenizer | None) -> Source:
    match config.data.source, config.model.encoder:
        case "picture", ConvolutionEncoder() as encoder:
            return Pictures(config.data.picture, -(-config.data.picture // 2**encoder.halvings))
        case "text", _ if tokenizer is not None and config.model.head != "text":
            return Parts(tokenizer)
        case "text", encoder if tokenizer is not None:
            return Text(tokenizer, end=not isinstance(encoder, NoEncoder))
        case _:
            return Nothing()


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


def _check_size(config: Config, vocabulary: int) -> None:
    """See that a model fits into memory before any is taken."""
    width, parts = config.model.d_model, (config.model.encoder, config.model.decoder)
    rough = width * (
        vocabulary + sum(getattr(part, "layers", 1) * max(width, getattr(part, "d_ff", 0)) for part in parts)
    )
    if rough < 2**28:
        return
    needed = 4 * count_parameters(config.model, vocabulary)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > room:
        raise ConfigError(
            f"[model] is too large for this machine: its weights alone take {needed / 2**30:,.0f} GiB, and there are "
            f"{room / 2**30:,.0f} GiB; lower d_model ({width}) or layers"
        )


def save_tokenizers(folder: Path, source: Tokenizer | None, target: Tokenizer) -> None:
    """One file if one serves both sides, or there is but one side; else one a side. Labels have their own."""
    if isinstance(target, Labels | Numbers):
        if source is not None:
            source.save(folder, "tokens")
        target.save(folder, "labels")
    elif source is target or source is None:
        target.save(folder, "tokens")
    else:
        source.save(folder, "source")
        target.save(folder, "target")


def token_files(folder: Path) -> dict[str, str]:
    """The files of a folder's tokenizers, and a digest of each."""
    names = ("source", "target", "tokens", "labels")
    return {path.name: file_digest(path) for name in names for path in sorted(folder.glob(f"{name}.*"))}


def check_tokenizers(folder: Path, known: dict[str, str] | None) -> None:
    """See that tokenizers are what was written; a folder of an earlier Regard says nothing of them."""
    for name, digest in (known or {}).items():
        if not (folder / name).is_file():
            raise DamagedError(f"{folder} has no {name}; the folder is not whole")
        if file_digest(folder / name) != digest:
            raise DamagedError(f"{folder / name} is damaged: it is not what was written")


def load_tokenizers(folder: Path, config: Config) -> tuple[Tokenizer | None, Tokenizer]:
    """What `save_tokenizers` wrote."""
    if config.model.head != "text":
        return (load_tokenizer(folder, "tokens") if config.data.source == "text" else None), load_labels(folder)
    if config.data.source != "text":
        return None, load_tokenizer(folder, "tokens")
    if config.tokens.shared:
        tokenizer = load_tokenizer(folder, "tokens")
        return tokenizer, tokenizer
    return load_tokenizer(folder, "source"), load_tokenizer(folder, "target")


def vocabulary(folder: Path) -> str:
    """A digest of a model's tokenizers, by which two models write with the same tokens."""
    return hashlib.sha256("".join(token_files(folder).values()).encode()).hexdigest()


def _warn(index: int, what: str) -> None:
    warnings.warn(f"input {index} {what}; its output is empty", stacklevel=4)


def _refuse(index: int, what: str) -> None:
    raise DataError(f"the source {what}")
