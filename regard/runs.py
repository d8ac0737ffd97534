"""Training what a config says, in its folder: claim it, prepare, begin from trained weights, train, resume."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.artifacts import LOCK, file_digest, is_empty, locked, mark, read_mark, sync, write_text
from regard.config import dump
from regard.data.batches import Batches
from regard.data.examples import Example, data_content
from regard.data.lines import BadLine
from regard.data.scan import Report, file_names, scan_each, split_names, usable_examples
from regard.data.sides import Sides
from regard.data.store import ExampleStore, HeldStore, usable, write_examples
from regard.data.tokens import Tokenizer
from regard.data_settings import SPLITS, Data
from regard.errors import ConfigError, DamagedError, DataError, OutputError, RegardError
from regard.evaluation.metrics import perplexity
from regard.fingerprint import CONTENT, Fingerprint, defaults_of, settings_of
from regard.model_settings import EncoderSettings
from regard.models.encoders import Body
from regard.models.published import clash, encoder_weights, layout_of, put, read_published
from regard.nn.adaptive import AdaptiveHead
from regard.nn.statistics import statistics
from regard.settings import Config
from regard.system import (
    CONFIG,
    System,
    check_tokenizers,
    choose_device,
    load,
    load_sides,
    new_task,
    token_files,
    vocabulary,
)
from regard.tasks.results import Encoded
from regard.tasks.task import Task, longest_sequence
from regard.training.checkpoint import WEIGHTS, Progress, checkpoints, load_tensors, set_weights
from regard.training.lora import Adapters
from regard.training.objectives import make_objective
from regard.training.trainer import Trainer, Watcher

RUN = "run"  # the kind of folder
CACHE = "cache"
COUNTED = 4096  # targets whose tokens are counted at once
# What may change when a run is resumed: how long it trains, how it is watched, where, and how it searches.
FREE = (
    "training.steps", "training.tokens", "training.seconds", "training.patience", "training.device",
    "training.compile", "training.validate_every", "training.validate_sentences", "training.save_every",
    "training.keep_last", "training.average", "training.log_every", "training.tensorboard", "search.",
)  # fmt: skip


def train(config: Config | str | Path, watcher: Watcher | None = None) -> System:
    """Train what a config, or a file of one, says, in its `run` folder; resumes an earlier run of the same settings."""
    if not isinstance(config, Config):
        if not isinstance(config, str | Path):
            raise TypeError(f"train takes a Config or the path of a config file, not {type(config).__name__}")
        config = Config.load(config)
    watcher = watcher or Watcher()
    with _claimed(config, watcher) as (claimed, made_from):
        return _train(claimed, made_from, watcher)


def _train(config: Config, made_from: Fingerprint, watcher: Watcher) -> System:
    task, batches = _prepared(config, made_from, watcher)
    folder, settings = Path(config.run), config.training
    valid, watched = _validation(task, made_from, watcher), _watched(task, watcher)
    names = [corpus.name for corpus in config.data.split("valid")]
    system = System(task, folder)
    what = "vocabulary" if config.target.written else config.target.kind
    watcher.message(
        f"{len(batches.examples):,} examples to train on, {sum(len(x.targets) for x in valid):,} to validate; {what} "
        f"of {task.target.size:,}; {system.parameters():,} parameters on {task.device}"
    )
    if config.data.corpora is not None:
        drawn = zip(config.data.split("train"), batches.examples.sizes, batches.quotas, strict=True)
        each = ", ".join(f"{quota:,} of {corpus.name} ({size:,} examples)" for corpus, size, quota in drawn)
        watcher.message(f"an epoch draws {each}")
    adapters = _adapters(task, watcher)
    objective = make_objective(
        task.model, settings.objective, settings.label_smoothing, task.first, task.longest, task.target
    )
    if settings.objective.sampled:
        objective.use_counts(_token_counts(task, batches.examples))
    trainer = Trainer(
        task.model, objective, batches, settings, folder, task.device,
        lambda: {**validate_each(task, names, valid), **_validate_watched(task, watched)}, config.metric, watcher,
        lower=task.lower_is_better(config.metric, valid[0].some), adapters=adapters, watched=[*watched],
    )  # fmt: skip
    if not trainer.resume() and adapters is None:
        _start_from(task, watcher)
    _say_what_learns(trainer, watcher)
    progress = trainer.run()
    if not progress.finished:
        raise Stopped(progress, trainer.stop)
    if adapters is not None:
        adapters.merge()
    set_weights(task.model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return system


def prepare(config: Config, watcher: Watcher | None = None) -> tuple[Task, Batches]:
    """All that training needs, in `config.run`: tokens, a model of fresh weights, and batches of the training data."""
    watcher = watcher or Watcher()
    with _claimed(config, watcher) as (claimed, made_from):
        return _prepared(claimed, made_from, watcher)


def _prepared(config: Config, made_from: Fingerprint, watcher: Watcher) -> tuple[Task, Batches]:
    folder, settings = Path(config.run), config.training
    torch.manual_seed(settings.seed)
    sides, device = Sides.of(config), choose_device(settings.device)
    sides.target.to(device)
    _learn(sides, folder, watcher)
    task = new_task(sides, device)
    store = _stored(task, "train", made_from, watcher)
    if config.model.output == "adaptive" or settings.objective.sampled:
        counts = _token_counts(task, store)
        for module in task.model.modules():
            if isinstance(module, AdaptiveHead):
                module.rank(counts)
    budgets = [side.batch_tokens or settings.batch_tokens for side in (*config.sources, config.target)]
    return task, task.training_batches(store, budgets, settings.seed)


def _token_counts(task: Task, store: ExampleStore) -> Tensor:
    """How often each token is written in the training data, the end of each target included, `(vocabulary,)`."""
    target, targets = task.target, store.stores[-1]
    counts = np.zeros(target.size, np.int64)
    for start in range(0, len(targets), COUNTED):
        some: Sequence[Any] = [targets[i] for i in range(start, min(start + COUNTED, len(targets)))]
        if target.sampled:  # stored as it is written
            some = target.encode_many([text.tobytes().decode() for text in some])
        counts += np.bincount(np.concatenate([np.asarray(x, np.int64) for x in some]), minlength=target.size)
    counts[target.marks.end] += len(targets)
    return torch.from_numpy(counts)


def _say_what_learns(trainer: Trainer, watcher: Watcher) -> None:
    """Of how many parameters training changes some, where it is not all."""
    every = sum(parameter.numel() for parameter in trainer.model.parameters())
    learning = {weight: pace for weight, pace in trainer.updater.paces.items() if math.isfinite(pace.since)}
    count = sum(weight.numel() for weight in learning)
    if count < every:
        at_first = sum(weight.numel() for weight, pace in learning.items() if not pace.since)
        later = f", {at_first:,} of them from the start" if at_first < count else ""
        watcher.message(f"{count:,} of {every:,} parameters learn ({100 * count / every:.2g} %){later}")


class Stopped(Exception):  # noqa: N818 - not an error: the user asked
    """Training was asked to stop by a signal, and can be resumed from its last checkpoint."""

    def __init__(self, progress: Progress, signal: int | None) -> None:
        super().__init__(f"stopped at update {progress.step}")
        self.progress, self.signal = progress, signal


def run_fingerprint(config: Config) -> Fingerprint:
    """All that decides what a run learns: every setting, and the content of the data and of weights to start from."""
    data, start = config.data, config.start
    files = [f"data.{split}" for split in SPLITS]
    files += [f"data.corpora[{i}].{split}" for i in range(len(data.corpora or ())) for split in SPLITS]
    without = ("preset", "run", *files, "data.root", "data.watch.", "start.")
    parts: dict[str, Any] = settings_of(config, without=without)
    sides = Sides.of(config)
    for split in ("train", "valid"):
        contents = [data_content(corpus.files, sides.form_of(split)) for corpus in data.split(split)]
        whole = contents[0] if data.corpora is None else hashlib.sha256("".join(contents).encode()).hexdigest()
        parts[f"{CONTENT}data.{split}"] = whole
    for name in ("model", "encoder", "decoder"):
        if (folder := getattr(start, name)) is not None:
            weights = Path(folder) / WEIGHTS
            parts[f"{CONTENT}start.{name}"] = file_digest(weights) if weights.is_file() else None
    if start.weights is not None:
        given = Path(start.weights)
        parts[f"{CONTENT}start.weights"] = file_digest(given) if given.is_file() else None
    return Fingerprint(parts, defaults_of(config))


@contextmanager
def _claimed(config: Config, watcher: Watcher) -> Iterator[tuple[Config, Fingerprint]]:
    """Make the run's folder, or see that it is this run's, and keep other processes out of it meanwhile. Gives the
    config with its positions, which are the model's once training has begun, and its fingerprint."""
    folder = Path(config.run)
    # What is wrong with the data is said before anything is written.
    made_from = run_fingerprint(config)
    parts = dict(made_from.parts)
    if _marked(folder).get("tokens") is None:
        for split in ("train", "valid"):
            for report in scan_each(config.data, split, Sides.of(config)):
                report.check(config.data)
        for files in config.data.watch.values():
            for report in scan_each(_watched_data(config.data, files), "valid", Sides.of(config)):
                report.check(config.data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, folder):
        known = _marked(folder)
        before: dict[str, Any] = known.get("fingerprint", {})
        trained = bool(checkpoints(folder / "checkpoints")) or (folder / WEIGHTS).exists()
        parts |= {name: before[name] for name in before if parts.get(name, "") is None}  # to start from, and gone since
        positions = before.get("model.max_positions") if trained and config.model.max_positions is None else None
        parts["model.max_positions"] = positions or longest_sequence(_with_tokens(config))
        model = config.model.model_copy(update={"max_positions": parts["model.max_positions"], **_settled(config)})
        config, now = config.model_copy(update={"model": model}), replace(made_from, parts=parts)
        clash, changed = now.differences(before, free=FREE), now.differences(before)
        named = ", ".join(clash or changed)
        if before and clash and trained:
            raise OutputError(
                f"{folder} holds a run that differs in {named}; give another run=FOLDER "
                f"(start.model={folder} begins with the weights of this one)"
            )
        if before and clash:
            watcher.message(f"{folder} was begun with other settings and never trained: it begins anew ({named})")
            known = {}
            for name in token_files(folder):  # and nothing else that may lie there
                (folder / name).unlink()
        elif changed and trained:
            watcher.message(f"resuming with {named}")
        mark(folder, RUN, fingerprint=dict(now.parts), tokens=known.get("tokens"))
        write_text(folder / CONFIG, dump(config.model_copy(update={"run": "."})))  # it may be moved
        yield config, now


def _with_tokens(config: Config) -> Sides:
    """Both sides; with the tokens of a model to start from, which may have more marks than Regard's own."""
    sides, start = Sides.of(config), config.start
    begun = start.model or start.encoder or start.decoder
    if begun is not None and config.model.max_positions is None:
        with suppress(RegardError):  # what is wrong with that model is said where its tokens are taken
            sides.use(_tokenizers_from(Path(begun), sides))
    return sides


def _settled(config: Config) -> dict[str, Any]:
    """The encoders, with what their stems take from the sources that they are trained on."""

    def one(number: int, encoder: EncoderSettings) -> EncoderSettings:
        if encoder.stem is None:
            return encoder
        return encoder.model_copy(update={"stem": encoder.stem.settled(config.sources[number])})

    given = config.model.encoder
    if isinstance(given, list):
        return {"encoder": [one(number, encoder) for number, encoder in enumerate(given)]}
    return {"encoder": one(0, given)}


def _marked(folder: Path) -> dict[str, Any]:
    """The mark of a run's folder, empty if there is none yet; a folder that is not a run's is refused."""
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file; give another run=FOLDER")
    known = read_mark(folder)
    if known is not None:
        if known["kind"] != RUN:
            raise OutputError(f"{folder} holds a {known['kind']}, not a run; give another run=FOLDER")
        return known
    if (folder / CONFIG).exists() and (folder / WEIGHTS).exists():
        raise OutputError(
            f"{folder} was trained by an earlier Regard and cannot be resumed; its model can be used as it is, and "
            f"start.model={folder} begins with its weights in another run=FOLDER"
        )
    if not is_empty(folder):
        raise OutputError(f"{folder} is not empty and holds no run; give another run=FOLDER")
    return {}


def _learn(sides: Sides, folder: Path, watcher: Watcher) -> None:
    """Give the sides their tokens and labels: learnt from the training data, or those of the model to start from."""
    known = read_mark(folder) or {}
    if known.get("tokens"):
        try:
            check_tokenizers(folder, known["tokens"])
            sides.load(folder)
            return
        except DamagedError as error:
            watcher.message(f"{error}; it is made anew")
    _learn_anew(sides, watcher)
    sides.save(folder)
    files = token_files(folder)
    if known.get("tokens", files) not in (None, files):
        raise DamagedError(f"the tokens of {folder} cannot be made again as they were; give another run=FOLDER")
    for name in files:
        sync(folder / name)
    mark(folder, RUN, fingerprint=known["fingerprint"], tokens=files)


def _learn_anew(sides: Sides, watcher: Watcher) -> None:
    config = sides.config
    start, written = config.start, config.target.written
    begun = [Path(place) for place in (start.model, start.encoder, start.decoder) if place]
    if start.model is not None and not written:  # labels come along too
        sides.load(begun[0])
        return
    given: dict[str, Tokenizer] = {}
    if start.encoder is not None and not _reads_text(Path(start.encoder)):
        begun.remove(Path(start.encoder))
    if begun and sides.texts:
        for other in begun[1:] if written else ():
            if vocabulary(begun[0]) != vocabulary(other):
                raise ConfigError(
                    f"start: {begun[0]} and {other} have different vocabularies; train one with start from the other"
                )
        watcher.message(f"tokens are those of {begun[0]}")
        given = _tokenizers_from(begun[0], sides)

    known = start.model or start.decoder  # whose codes are what it wrote
    sides.learn(
        lambda: usable_examples(config.data, "train", sides, _ignore), given, watcher.message,
        known=None if known is None or not written or config.target.text else Path(known),
    )  # fmt: skip


def _reads_text(folder: Path) -> bool:
    """Whether an encoder has tokens to bring along: one of pictures, of sound or of words by their characters has
    none."""
    config = load_sides(folder).config
    return any("text" in config.stem(number).reads for number in range(len(config.sources)))


def _tokenizers_from(folder: Path, sides: Sides) -> dict[str, Tokenizer]:
    """The tokenizers of a model that a run starts from, for each of its vocabularies."""
    loaded = load_sides(folder)
    written, theirs = sides.config.target.written, loaded.texts
    if written and _apart(sides) != _apart(loaded):
        there, here = ("a vocabulary for each side" if _apart(x) else "one vocabulary" for x in (loaded, sides))
        raise ConfigError(
            f"start: {folder} has {there}, this config {here}; set source.tokens and target.tokens as there"
        )
    wrote = theirs.get("target")  # what a decoder reads is what it wrote
    read = wrote if not written and sides.config.start.encoder is None else None
    found = {}
    for name, sharers in sides.vocabularies.items():
        side = wrote if "target" in sharers else read or theirs.get(sharers[0]) or wrote
        if side is None:
            raise ConfigError(f"start: {folder} has no tokens for the {sharers[0]}")
        one = len(sharers) > 1 and not _apart(loaded)  # which may cut what is read and what is written differently
        found[name] = next(iter(loaded.tokenizers.values())) if one else side.tokenizer
    return found


def _apart(sides: Sides) -> bool:
    """Source and target are texts of different vocabularies."""
    return {"source", "target"} <= sides.texts.keys() and not sides.config.one_vocabulary


def validate_each(task: Task, names: Sequence[str], valid: Sequence[Encoded]) -> dict[str, float]:
    """What training steers by. Of several corpora, the mean over them of each metric and, over all of their target
    tokens, of the loss; then both of each, as `bleu/NAME`."""
    if len(valid) == 1:
        return task.validate(valid[0])
    found = [task.validate(one) for one in valid]
    tokens = [sum(len(target) + 1 for target in one.targets) for one in valid]
    scores = {name: math.fsum(one[name] for one in found) / len(found) for name in found[0]}
    scores["loss"] = math.fsum(n * one["loss"] for n, one in zip(tokens, found, strict=True)) / sum(tokens)
    if "perplexity" in scores:
        scores["perplexity"] = perplexity(scores["loss"])
    each = {f"{name}/{corpus}": one[name] for corpus, one in zip(names, found, strict=True) for name in one}
    return {**scores, **each}


def _validation(task: Task, made_from: Fingerprint, watcher: Watcher) -> list[Encoded]:
    """Validation examples of each corpus that can be used, on disk; messages say what cannot."""
    config, data = task.config, task.config.data

    def examples() -> Iterator[Example]:
        return task.checked(usable_examples(data, "valid", task.sides, _ignore), _ignore)

    store = _stored(task, "valid", made_from, watcher)
    targets = (x.target for x in examples())
    if not config.target.written and (new := task.target.describe_unseen(targets, split_names(data, "valid"))):
        what, everything = new
        if everything:  # nothing to steer by
            raise DataError(what)
        watcher.message(what)
    corpora = data.split("valid")
    count = -(-config.training.validate_sentences // len(corpora))
    some: dict[int, list[Example]] = {corpus.number: [] for corpus in corpora}
    for example, _, _ in usable(examples(), task.sides, _ignore):
        if len(some[example.corpus]) < count:
            some[example.corpus].append(example)
        elif len(corpora) == 1:
            break
    if len(corpora) == 1:
        return [Encoded.stored(store, some[corpora[0].number])]
    ends = np.cumsum(store.sizes)
    if empty := [corpus for corpus in corpora if not store.sizes[corpus.number]]:
        raise DataError(f"{file_names(empty[0].files)} has no line that can be used to validate on")
    return [
        Encoded.stored(store, some[i], range(ends[i] - store.sizes[i], ends[i])) for i in (x.number for x in corpora)
    ]


def _watched_data(data: Data, files: str | list[str]) -> Data:
    """The data with these files to validate on."""
    return data.model_copy(update={"valid": files, "corpora": None})


def _watched(task: Task, watcher: Watcher) -> dict[str, Encoded]:
    """The examples of `data.watch` that can be used; messages say what cannot."""
    config, found = task.config, dict[str, Encoded]()
    for name, files in config.data.watch.items():
        data, report = _watched_data(config.data, files), Report(file_names(files))
        examples = task.checked(usable_examples(data, "valid", task.sides, report.add), report.add)
        rows = list(usable(examples, task.sides, report.add))
        report.lines = len(rows) + report.bad
        report.check(data)
        if what := report.describe():
            watcher.message(what)
        some = [example for example, _, _ in rows[: config.training.validate_sentences]]
        targets: Sequence[Any] = [target for *_, target in rows]
        if task.target.block is not None:
            targets = HeldStore(targets)
        found[name] = Encoded([source for _, source, _ in rows], targets, some)
    return found


def _validate_watched(task: Task, watched: dict[str, Encoded]) -> dict[str, float]:
    """Scores of what is watched beside the validation data, as `bleu/NAME`."""
    found = {name: task.validate(examples) for name, examples in watched.items()}
    return {f"{score}/{name}": value for name, scores in found.items() for score, value in scores.items()}


def _ignore(bad: BadLine) -> None:
    """Bad lines were reported when the data were scanned."""


def _stored(task: Task, split: str, made_from: Fingerprint, watcher: Watcher) -> ExampleStore:
    """The examples of a split as numbers on disk, which are used again if they were made from the same."""
    data, run = task.config.data, Path(task.config.run)
    report = Report(split_names(data, split))
    examples = task.checked(usable_examples(data, split, task.sides, report.add), report.add)
    sections = ("data.", "source", "target.", "tokens.")
    parts = {name: part for name, part in made_from.parts.items() if name.startswith(sections)}
    parts |= {"data": made_from.parts[f"{CONTENT}data.{split}"], "tokens": vocabulary(run)}
    store = write_examples(
        run / CACHE if split == "train" else run / CACHE / split, examples, task.sides, data=data, report=report,
        drawn=split == "train", made_from=Fingerprint(parts), say=watcher.message,
    )  # fmt: skip
    if store.report:
        watcher.message(store.report)
    return store


def _start_from(task: Task, watcher: Watcher) -> set[str]:
    """Put weights that were trained before into a new model, as the config's `start` says; their names."""
    own, taken = _every_name(task.model), set[str]()
    for part in ("model", "encoder", "decoder"):
        folder: str | None = getattr(task.config.start, part)
        if folder is None:
            continue
        found = _every_name(load(folder, device="cpu").task.model)
        begins = "" if part == "model" else f"{part}."
        shared = {name: tensor for name, tensor in found.items() if name.startswith(begins)}
        if part == "encoder" and len(task.config.sources) > 1 and not _reads_text(Path(folder)):
            begins = _one_of_several(own, shared, len(task.config.sources), folder)
            shared = {begins + name.removeprefix("encoder."): tensor for name, tensor in shared.items()}
        fitting = [name for name, tensor in shared.items() if name in own and _fits(name, own[name], tensor)]
        odd = [name for name in shared if name in own and name not in fitting]
        new = [name for name in own if name.startswith(begins) and name not in shared]
        lacking = [name for name in new if name.removeprefix(begins).startswith(_begun(task.model, part))]
        # A decoder may have learnt with a source or without; but of another kind it would bring its embedding alone.
        lacks = part != "decoder" or all(name.startswith(f"{begins}embedding.") for name in fitting)
        if odd or not fitting or (lacking and lacks):
            what = f"it has no {lacking[0]}" if lacking else "no part of it does"
            if odd:
                what = f"{odd[0]} is {tuple(shared[odd[0]].shape)}, here {tuple(own[odd[0]].shape)}"
            raise ConfigError(f"start.{part}: {folder} does not fit this config's [model]: {what}")
        for name in fitting:
            own[name][: len(shared[name])].copy_(shared[name][: len(own[name])])
        taken.update(fitting)
        watcher.message(f"start.{part}: {len(fitting)} tensors from {folder}; {len(new)} begin anew")
    if task.config.start.weights is not None:
        taken |= _start_from_published(task, Path(task.config.start.weights), own, watcher)
    return taken


def _adapters(task: Task, watcher: Watcher) -> Adapters | None:
    """The adapters of `training.lora`, over the weights that the config's `start` names: no checkpoint holds those, so
    they are put in here, when a run is resumed too."""
    settings = task.config.training.lora
    if settings is None:
        return None
    taken = _start_from(task, watcher)
    adapters = Adapters(task.model, settings)
    names = {id(weight): name for name, weight in task.model.named_parameters(remove_duplicate=False) if name in taken}
    if new := [name for name, weight in adapters.base.items() if id(weight) not in names]:
        parts = dict.fromkeys([*settings.also, *(name.partition(".")[0] for name in new)])
        raise ConfigError(
            f"training.lora: {new[0]} begins anew, for [start] has none, and would never learn; name its part in "
            f"training.lora.also: [{', '.join(parts)}]"
        )
    watcher.message(
        f"LoRA of rank {settings.rank} in {len(adapters.layers)} layers; {len(adapters.base)} tensors stay as they are"
    )
    return adapters


def _begun(model: nn.Module, part: str) -> tuple[str, ...]:
    """How the names begin of what a trained encoder has to bring along."""
    body = getattr(model, part, None)
    return body.begun if part == "encoder" and isinstance(body, Body) else ("",)


def _one_of_several(own: dict[str, Tensor], found: dict[str, Tensor], sources: int, folder: str) -> str:
    """How the names begin of the first of several encoders that the encoder of one source fits."""
    for number in range(sources):
        begins = f"encoder.encoders.{number}."
        here = {name.removeprefix(begins): tensor for name, tensor in own.items() if name.startswith(begins)}
        there = {name.removeprefix("encoder."): tensor for name, tensor in found.items()}
        if here.keys() == there.keys() and all(_fits(name, here[name], there[name]) for name in here):
            return begins
    raise ConfigError(f"start.encoder: {folder} fits none of the {sources} encoders of this config's [model]")


def _start_from_published(task: Task, path: Path, own: dict[str, Tensor], watcher: Watcher) -> set[str]:
    """Put the weights of a published network into each encoder that has such a part; their names."""
    tensors = read_published(path)
    layout = layout_of(tensors, path)
    found, config = encoder_weights(tensors, layout, path), task.config
    several, clashes, taken = len(config.sources) > 1, list[str](), set[str]()
    for number in range(1 if config.model.share_encoder else len(config.sources)):
        begin = f"encoder.encoders.{number}." if several else "encoder."
        inner = getattr(config.stem(number), "picture", None)  # of frames: a stem inside a stem
        encoder = config.model.encoder_of(number)
        if what := clash(layout, encoder if inner is None else encoder.model_copy(update={"stem": inner})):
            clashes.append(what)
            continue
        taken |= put(found, own, begin, "stem." if inner is None else "stem.picture.", path)
    if not taken:
        raise ConfigError(f"start.weights: {path}: {clashes[0]}")
    watcher.message(
        f"start.weights: {len(taken)} tensors of {layout.name} from {path}; {len(own) - len(taken)} begin anew"
    )
    return taken


def _fits(name: str, here: Tensor, there: Tensor) -> bool:
    """Of learned positions there may be more or fewer: models are made for the longest text that they will meet."""
    positions = name.endswith("positions.table.weight")
    return here.shape[positions:] == there.shape[positions:]


def _every_name(model: nn.Module) -> dict[str, Tensor]:
    """All weights. One that several parts share has a name in each, so that no part is without it."""
    named = (*model.named_parameters(remove_duplicate=False), *statistics(model, every_name=True))
    return {name: tensor.detach() for name, tensor in named}
