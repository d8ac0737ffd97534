"""Translation models of NMT toolkits, from their own checkpoints: JoeyNMT, eole, fairseq, OpenNMT-py.

    import_model("runs/joey", "models/joey")           # a folder of JoeyNMT or eole
    import_model("checkpoint_best.pt", "models/fair")  # a checkpoint of fairseq or OpenNMT-py

Only tensors, plain values and argparse's options are read from what torch pickled; nothing of it is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ModelError

if TYPE_CHECKING:
    from regard.exchange.toolkits.toolkit import Toolkit
    from regard.system import System


def is_toolkit(place: Path) -> bool:
    """Whether a place looks like a checkpoint of a toolkit, and not like a folder of transformers."""
    from regard.exchange.toolkits import eole

    joeynmt = (place / "config.yaml").exists() and any(place.glob("*.ckpt"))
    return place.is_file() or (place.is_dir() and (joeynmt or eole.is_folder(place)))


def read_toolkit(place: Path) -> Toolkit:
    """The model of a folder of JoeyNMT or eole, or of a checkpoint of fairseq or OpenNMT-py."""
    from regard.exchange.toolkits import eole, fairseq, joeynmt, opennmt
    from regard.exchange.toolkits.toolkit import read_torch

    if place.is_dir():
        return eole.read(place) if eole.is_folder(place) else joeynmt.read(place)
    if place.suffix in (".json", ".safetensors", ".bin", ".model", ".spm"):
        raise ModelError(f"{place} is one file of a model; give the folder that it lies in")
    found = read_torch(place, "fairseq or OpenNMT-py")
    if {"model", "vocab", "opt"} <= found.keys():
        return opennmt.read(found, place)
    if "model" in found and (found.get("cfg") or found.get("args")):
        return fairseq.read(found, place)
    raise ModelError(
        f"{place} is a checkpoint of no toolkit known here: fairseq's have model and cfg or args, OpenNMT-py's model, "
        f"vocab and opt; this one has {', '.join(map(str, found)) or 'nothing'}. Of JoeyNMT and eole, give the folder"
    )


def import_model(place: Path, output: str | Path, *, force: bool = False) -> System:
    """Write such a model as a model folder of Regard, with its own tokens, and load it."""
    from regard.config import parse
    from regard.data.sides import Sides
    from regard.exchange.huggingface.importing import IMPORTED, save

    network = read_toolkit(place)
    sections: dict[str, Any] = {name: dict(section) for name, section in network.sections().items()}
    one = sections["model"]["share_embeddings"]
    tokenizers = {"tokens": network.tokenizers["target"]} if one else network.tokenizers
    room = {"max_length": min(256, sections["model"]["max_positions"] - 2)}
    own = {} if one else {"tokens": IMPORTED}
    sides = Sides.of(
        parse({"run": ".", **sections, "tokens": IMPORTED, "source": {**room, **own}, "target": {**room, **own}})
    )
    sides.use(tokenizers)
    return save(sides, network, place, output, force=force)
