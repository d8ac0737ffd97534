"""Peers by name, as `--peers` takes them."""

from argparse import ArgumentParser
from collections.abc import Iterable

from benchmarks.peers.base import Peer
from benchmarks.peers.ctranslate import CTranslate2, Engine
from benchmarks.peers.joey import Joey
from benchmarks.peers.marian import Marian
from benchmarks.peers.plain import Torch

_COMPILED = "forward and loss under torch.compile(dynamic=True)"
_EXACT = "load_engine(exact=True); what is cut off, here every output, is scored once more with its EOS"

TRAINING: dict[str, Peer] = {
    "marian": Marian("HF Marian"),
    "marian-compiled": Marian("HF Marian, compiled", _COMPILED, compiled=True),
    "marian-unsorted": Marian("HF Marian, unsorted", by_length=False),
    "marian-unsorted-compiled": Marian("HF Marian, unsorted, compiled", _COMPILED, by_length=False, compiled=True),
    "torch": Torch("plain torch"),
    "torch-compiled": Torch("plain torch, compiled", compiled=True),
    "joeynmt": Joey("JoeyNMT"),
}
DECODING: dict[str, Peer] = {
    "marian": Marian("HF Marian"),
    "marian-static": Marian("HF Marian, static cache", cache="static"),
    "ctranslate2": CTranslate2(),
    "engine": Engine(note="--engine ctranslate2; it writes no EOS either", every_precision=True),
    "engine-exact": Engine("Regard via CTranslate2, exact", _EXACT, exact=True),
}
START_UP: dict[str, Peer] = {"marian": Marian("HF Marian"), "joeynmt": Joey("JoeyNMT")}


def add_peers(parser: ArgumentParser, names: Iterable[str]) -> None:
    """The option --peers; without it a benchmark takes its usual ones."""
    shown = f"{', '.join(names)}; or none"
    parser.add_argument("--peers", nargs="+", choices=[*names, "none"], metavar="PEER", help=shown)
