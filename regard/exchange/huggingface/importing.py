"""A model that Hugging Face's `transformers` wrote, as a model folder of Regard.

    import_model("opus-mt-en-de", "models/en-de")      # a folder, or a name on the Hub
    regard.load("models/en-de").generate(["Good morning."])

One error names all that the folder needs and Regard lacks. Nothing in it is run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.config import parse
from regard.data.marks import Marks
from regard.data.sides import Sides
from regard.data.targets.label import Label
from regard.data.tokenizers.published import Published
from regard.errors import MissingExtraError, ModelError, RegardError, require
from regard.exchange.huggingface import read_network
from regard.exchange.huggingface.family import Family
from regard.exchange.huggingface.generating import search_settings
from regard.exchange.huggingface.given import Given, read_json
from regard.exchange.huggingface.tokens import read_tokenizers
from regard.exchange.huggingface.whisper_prompt import hearing
from regard.loading import new_task
from regard.settings import Config
from regard.system import System, load
from regard.training.checkpoint import set_weights

T = TypeVar("T")
WANTED = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors", "pytorch_model*.bin"]  # of a repository
IMPORTED = {"kind": "imported"}  # the section of imported tokens


def import_model(
    place: str | Path, output: str | Path, *, language: str | None = None, force: bool = False,
    warn: Callable[[str], Any] = warnings.warn,
) -> System:  # fmt: skip
    """Write the model in a folder, or of a name on the Hugging Face Hub, as a model folder of Regard, and load it.

    `warn` is called with the settings of generation that Regard lacks. `language` is what a Whisper of several
    languages hears, as a code or by its English name. `force` replaces an earlier model there.
    """
    folder = find(place)
    network, tokenizers, given = read(folder, language)
    config, told = settings(network, tokenizers, given)
    sides = Sides.of(config)
    sides.use(tokenizers)
    if isinstance(sides.target, Label):
        sides.target.labels = network.labels
    made = save(sides, network, folder, output, force=force)
    if told:
        warn(f"{folder} asks for what Regard does not do when it generates, and does without: {', '.join(told)}")
    return made


def save(sides: Sides, network: Family, place: Path, output: str | Path, *, force: bool) -> System:
    """Write a network that was read from `place`, with its tokens, as a model folder, and load that."""
    task = new_task(sides, torch.device("cpu"))
    set_weights(task.model, network.imported(), place)
    System(task, place).save(output, force=force)
    return load(output, device="cpu")


def find(place: str | Path) -> Path:
    """A folder with a model: one that is there, or what the Hub has under this name."""
    if Path(place).is_dir():
        return Path(place)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(place)):
        raise ModelError(
            f"no folder {place}, and it is no name on the Hugging Face Hub, such as Helsinki-NLP/opus-mt-en-de"
        )
    try:
        hub = require("huggingface_hub")
    except MissingExtraError as error:
        raise ModelError(f"no folder {place}; to take it from the Hugging Face Hub, {error}") from None
    try:
        return Path(hub.snapshot_download(str(place), allow_patterns=WANTED))
    except Exception as error:  # of many kinds: no network, no such name, no right to it
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"no folder {place}, and it cannot be had from the Hugging Face Hub ({what})") from None


def read(folder: Path, language: str | None = None) -> tuple[Family, dict[str, Published], Given]:
    """The network, the tokenizers and the settings of a folder. All that is wrong with them is one error."""
    problems: list[RegardError] = []

    def attempt(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except RegardError as error:
            problems.append(error)
            return None

    if odd := next((path for path in sorted(folder.iterdir()) if _is_device(path)), None):
        raise ModelError(f"{odd} is a pipe or a device; a model is read from files")
    config = read_json(folder / "config.json")
    given = attempt(lambda: hearing(Given.read(folder, config), language))
    network = attempt(lambda: read_network(folder))
    tokenizers: dict[str, Published] | None = {}
    if given is not None and config and needs_tokens(config, network):
        sizes = sizes_of(config) if network is None else (network.vocabulary, network.outputs)
        tokenizers = attempt(lambda: read_tokenizers(given, *sizes))
    if problems:
        raise type(problems[0])("\n".join(map(str, problems)))
    assert network is not None, "otherwise there is a problem"
    assert tokenizers is not None, "otherwise there is a problem"
    assert given is not None, "otherwise there is a problem"
    return network, tokenizers, given


def _is_device(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def sizes_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many tokens a network reads and writes, where it could not be read."""
    size = config.get("vocab_size")
    return (size, size) if isinstance(size, int) else (10**7, 10**7)


def needs_tokens(config: Mapping[str, Any], network: Family | None) -> bool:
    """Whether a network reads or writes text."""
    if network is not None:
        return bool(Sides.of(parse({"run": ".", **network.sections()})).vocabularies)
    return config.get("model_type") != "vit"


def settings(network: Family, tokenizers: Mapping[str, Published], given: Given) -> tuple[Config, list[str]]:
    """The config of a model, without paths of data; and the settings of generation that Regard lacks, by name."""
    sections = {name: dict(section) for name, section in network.sections().items()}
    longest = sections["model"]["max_positions"]
    written = tokenizers.get("target", tokenizers.get("tokens"))
    told: list[str] = []
    config = parse({"run": ".", **sections})
    if written is not None:
        read = tokenizers.get("source", written)
        marks: Marks = written.marks
        room = longest - max(len(read.marks.source or ()), len(marks.first), 2)
        sections["tokens"] = IMPORTED
        for side in ("source", "target"):
            section = sections.setdefault(side, {})
            if Sides.of(config).texts.get(side) is not None:
                section["max_length"] = max(1, min(256, room))
                section |= {"tokens": IMPORTED} if side in tokenizers else {}
        if config.target.written and not config.model.encoder_only:
            sections["search"], told = search_settings(given, marks, longest)
    return parse({"run": ".", **sections}), told
