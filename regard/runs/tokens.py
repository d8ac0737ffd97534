"""The tokens and labels of a run: learnt from its training data, or those of a model that it starts from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from regard.artifacts import mark, read_mark, sync
from regard.data.scan import usable_examples
from regard.data.sides import Sides
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, DamagedError, RegardError
from regard.loading import check_tokenizers, load_sides, token_files, vocabulary
from regard.runs.examples import already_reported
from regard.settings import Config
from regard.training.watcher import Watcher


def with_tokens(config: Config) -> Sides:
    """Both sides; with the tokens of a model to start from, which may have more marks than Regard's own."""
    sides, start = Sides.of(config), config.start
    begun = start.model or start.encoder or start.decoder
    if begun is not None and config.model.max_positions is None:
        with suppress(RegardError):  # what is wrong with that model is said where its tokens are taken
            sides.use(_tokenizers_from(Path(begun), sides))
    return sides


def learn_tokens(sides: Sides, folder: Path, watcher: Watcher) -> None:
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
    mark(folder, **{**known, "tokens": files})


def _learn_anew(sides: Sides, watcher: Watcher) -> None:
    config = sides.config
    start, written = config.start, config.target.written
    begun = [Path(place) for place in (start.model, start.encoder, start.decoder) if place]
    if start.model is not None and not written:  # labels come along too
        sides.load(begun[0])
        return
    given: dict[str, Tokenizer] = {}
    if start.encoder is not None and not reads_text(Path(start.encoder)):
        begun.remove(Path(start.encoder))
    if begun and sides.texts:
        for other in begun[1:] if written else ():
            if vocabulary(begun[0]) != vocabulary(other):
                raise ConfigError(
                    f"start: {begun[0]} and {other} have different vocabularies; train one with start from the other"
                )
        watcher.message(f"tokens are those of {begun[0]}{_unused_kind(config, begun[0])}")
        given = _tokenizers_from(begun[0], sides)

    known = start.model or start.decoder  # whose codes are what it wrote
    sides.learn(
        lambda: usable_examples(config.data, "train", sides, already_reported), given, watcher.message,
        known=None if known is None or not written or config.target.text else Path(known),
    )  # fmt: skip


def _unused_kind(config: Config, folder: Path) -> str:
    """What to say of a kind of tokens that the config names, where those of the model to start from are others."""
    here, there = config.tokens, load_sides(folder).config.tokens.kind
    if "kind" not in here.model_fields_set or here.kind == there:
        return ""
    return f", which are of kind {there}; tokens.kind {here.kind} is not used"


def reads_text(folder: Path) -> bool:
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
