"""A runner for models that were exported to ONNX: NumPy, ONNX Runtime and the tokenizer, no torch.

    python runs/demo-onnx/runner.pyz < input.txt                       # this file, as an export carries it
    Runner("runs/demo-onnx").generate(["forty-two apples"], beam=4)

It is there to be used, and to be read by whoever writes another. `step.onnx` takes a token for each hypothesis and the
state, which is all its other inputs, and gives log-probabilities of the next token and the state after: `next_x` takes
the place of `x`. What has `rows` for its first axis changes places with the hypotheses; what has `sources` stays, once
for all hypotheses of a source, which stand together, as many for each. `encoder.onnx` makes the state before the first
token of padded sources; what it does not give begins as zeros, with no `past`. `runner.json` has the rest.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.forms import TextForm, formed
from regard.data.modalities.pixels import read_picture
from regard.data.tokenizers.kinds import load_tokenizer
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, DataError, MissingExtraError, ModelError, RegardError, require

RUNNER = "runner.json"
SETTINGS = (
    "beam", "length_penalty", "alpha", "no_repeat", "min_length", "max_length", "max_ratio", "stop", "at_limit",
    "unknown", "max_source", "batch_tokens",
)  # fmt: skip  # of a search; each has the meaning of the setting of that name in Regard
Array = NDArray[Any]
State = dict[str, Array]
Item = Sequence[int] | NDArray[np.uint8]  # one source: token ids, or the scanlines of a picture
Given = tuple[Item, list[int]]  # a source, and how its output has to begin


class Found(NamedTuple):
    """One output: its tokens without marks, `log p`, and the score it was ranked by."""

    tokens: list[int]
    log_prob: float
    score: float


class Runner:
    """An exported model: `generate`, or `search` from token ids to token ids."""

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        """`threads` 0 leaves it to ONNX Runtime how many to use."""
        onnxruntime, folder = require("onnxruntime"), Path(folder)
        try:
            self.facts = json.loads((folder / RUNNER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(f"{folder} is no ONNX export: it has no {RUNNER}; `regard export` makes one") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads

        def graph(name: str | None) -> Any:
            providers = ["CPUExecutionProvider"]
            return name and onnxruntime.InferenceSession(str(folder / name), options, providers=providers)

        self.encoder, self.step = graph(self.facts["encoder"]), graph(self.facts["step"])
        self.source, self.marks = self.facts["source"], self.facts["marks"]
        self.of_rows = {entry.name for entry in self.step.get_inputs() if entry.shape[0] == "rows"}
        self.target_tokens = self._tokens(folder, "target", self.facts["target_tokens"]).for_target
        self.source_tokens = self._tokens(folder, "source", self.source.get("tokens", self.facts["target_tokens"]))

    def _tokens(self, folder: Path, side: str, name: str) -> Tokenizer:
        """The tokenizer of a side, of text in the side's form."""
        form = TextForm.from_json(self.facts.get("forms", {}).get(side), folder, side)
        return formed(load_tokenizer(folder, name), form)

    def generate(self, texts: Sequence[str], **search: Any) -> list[str]:
        """The best output for each text; what cannot be used gets an empty one, and a warning says why."""
        given = {}
        for i, text in enumerate(texts):
            try:
                given[i] = self.read(text)
            except DataError as error:
                warnings.warn(f"input {i} cannot be used: {error}; its output is empty", stacklevel=2)
        found = self.outputs(given, **search)
        return [self.target_tokens.decode(found[i][0].tokens) if i in found else "" for i in range(len(texts))]

    def read(self, text: str) -> Given:
        """A text as a source, and how its output has to begin: to a language model, a text is its prompt."""
        match self.source["kind"]:
            case "image":
                return read_picture(text, self.source["side"], self.source.get("resample", "lanczos")), []
            case "text":
                return self.source_tokens.encode(text), []
            case _:
                return [], self.target_tokens.encode(text)

    def outputs(self, given: Mapping[int, Given], **changes: Any) -> dict[int, list[Found]]:
        """What `search` finds for numbered sources, those of like length together; for one that cannot be used there is
        nothing, and a warning says why."""
        search, results = self.settings(**changes), dict[int, list[Found]]()
        problems = {i: self._problem(item, prefix, search) for i, (item, prefix) in given.items()}
        for i, what in problems.items():
            if what:
                warnings.warn(f"input {i} {what}; its output is empty", stacklevel=3)
        usable = sorted((i for i, what in problems.items() if not what), key=lambda i: len(given[i][0]))
        while usable:
            longest = len(given[usable[-1]][0]) or search.max_length
            count = max(1, search.batch_tokens // (search.beam * longest))
            usable, group = usable[:-count], usable[-count:]
            found = self.search(*zip(*(given[i] for i in group), strict=True), **changes)
            results |= zip(group, found, strict=True)
        return results

    def settings(self, **changes: Any) -> SimpleNamespace:
        """The model's own search settings with changes."""
        for name in changes.keys() - set(SETTINGS):
            raise ConfigError(f"this runner knows no search setting '{name}'; there are: {', '.join(SETTINGS)}")
        own = dict(self.facts["search"])
        before = {"stop": "exact" if own.pop("exact", False) else "heuristic", "at_limit": "scored"}  # in older exports
        return SimpleNamespace(**{**before, **own, **changes})

    def search(
        self, items: Sequence[Item], prefixes: Sequence[Sequence[int]] | None = None, **changes: Any
    ) -> list[list[Found]]:
        """Beam search for one batch of sources, as `regard/search/beam.py` does it: outputs of each, best first.

        A search is over when `beam` hypotheses are closed (`stop` "early") and no open one scores better than the worst
        of them now ("heuristic") or could ever ("exact"). A beam of one is greedy search.
        """
        search, end = self.settings(**changes), self.marks["end"]
        prefix = [list(tokens) for tokens in prefixes or [[] for _ in items]]
        for i, (item, tokens) in enumerate(zip(items, prefix, strict=True)):
            if what := self._problem(item, tokens, search):
                raise ConfigError(f"source {i} {what}")
        longest = np.array([self._room(item, search)[0] for item in items])
        state = self.start(items)
        closed: list[list[Found]] = [[] for _ in items]
        live = np.arange(len(items))  # sources whose search goes on
        written = np.full((len(items), 1, 1), self.marks["first"])  # (live, open, length + 1)
        log_prob = np.zeros((len(items), 1), np.float32)  # (live, open)
        while len(live):
            length = written.shape[2] - 1
            given, state = self.advance(written[..., -1].ravel(), state)
            given = given.reshape(*log_prob.shape, -1)  # (live, open, vocabulary)
            self._restrict(given, written, longest[live], [prefix[i] for i in live], search)
            size = given.shape[-1]
            value, place = _top((log_prob[..., None] + given).reshape(len(live), -1), 2 * search.beam)
            parent, token = place // size, place % size
            closes = token == end
            for k, i in enumerate(live.tolist()):
                for j in np.flatnonzero(closes[k, : search.beam] & (value[k, : search.beam] > -math.inf)):
                    total = float(value[k, j])
                    tokens = written[k, parent[k, j], 1:].tolist()
                    closed[i].append(Found(tokens, total, total / _penalty(search, length + 1, longest[i])))
                closed[i] = sorted(closed[i], key=lambda found: -found.score)[: search.beam]

            # Twice as many candidates as there are places: even if half of them close, enough stay open.
            value, best = _top(np.where(closes, -math.inf, value), search.beam)
            parent, token = (np.take_along_axis(x, best, 1) for x in (parent, token))
            last = int(longest.max()) + 1 if search.stop == "exact" else length + 1
            mildest = np.array(
                [_penalty(search, last, longest.max() if search.stop == "exact" else longest[i]) for i in live]
            )
            worst = np.array([closed[i][-1].score if len(closed[i]) == search.beam else -math.inf for i in live])
            over = (value.max(1) / mildest <= worst) | (longest[live] <= length)
            if search.stop == "early":  # what is cut off now ends with what closes now
                over |= (worst > -math.inf) & ((search.at_limit != "cut") | (longest[live] != length + 1))
            for k in np.flatnonzero(over).tolist():
                if not closed[live[k]]:  # the limits left no way on: the best open one
                    tokens = prefix[live[k]] + written[k, 0, 1:].tolist()[len(prefix[live[k]]) :]
                    closed[live[k]] = [Found(tokens, -math.inf, -math.inf)]
            stay = np.flatnonzero(~over)
            rows = (parent + np.arange(len(live))[:, None] * written.shape[1])[stay].ravel()
            written = np.concatenate((np.take_along_axis(written, parent[..., None], 1), token[..., None]), 2)[stay]
            left = stay if over.any() else slice(None)
            state = {name: x[rows if name in self.of_rows else left] for name, x in state.items()}
            log_prob, live = value[stay], live[stay]
        return closed

    # The graphs

    def start(self, items: Sequence[Item]) -> State:
        """The state before the first token, of one row for each source."""
        sizes = {"rows": len(items), "sources": len(items), "source": 0, "past": 0}
        state: State = {
            entry.name: np.zeros([sizes.get(n, n) for n in entry.shape], bool if "bool" in entry.type else np.float32)
            for entry in self.step.get_inputs() if entry.name != "tokens"
        }  # fmt: skip
        if self.encoder is not None:
            text = self.source["kind"] == "text"
            begin = self.source.get("begin", ())
            ends = [np.array([*begin, *item, *self.source["end"]] if text else item) for item in items]
            lengths = np.array([len(item) for item in ends])
            padded = np.zeros((len(ends), max(1, *lengths), *ends[0].shape[1:]), np.int64 if text else np.uint8)
            for row, item in zip(padded, ends, strict=True):
                row[: len(item)] = item
            wanted = {entry.name for entry in self.encoder.get_inputs()}  # a graph takes what it uses
            feed = {name: x for name, x in {"source": padded, "lengths": lengths}.items() if name in wanted}
            names = [output.name for output in self.encoder.get_outputs()]
            state |= zip(names, self.encoder.run(names, feed), strict=True)
        return state

    def advance(self, tokens: Array, state: State) -> tuple[Array, State]:
        """`(rows,)` tokens to `(rows, vocabulary)` log-probabilities of the next, and the state after them."""
        names = [output.name for output in self.step.get_outputs()]
        found = dict(zip(names, self.step.run(names, {"tokens": tokens.astype(np.int64), **state}), strict=True))
        return found.pop("log_probs"), {**state, **{name.removeprefix("next_"): x for name, x in found.items()}}

    # The rules

    def _room(self, item: Item, search: SimpleNamespace) -> tuple[int, str]:
        """The most tokens of an output for this source, and what sets that limit."""
        positions = self.facts["positions"]
        left = positions - 1 - (len(item) if self.facts.get("together") else 0)
        limits = [(search.max_length, f"search.max_length={search.max_length}")]
        if self.source["kind"] == "text":
            ratio = int((len(item) + len(self.source["end"])) * search.max_ratio) + 10
            limits.append((ratio, f"search.max_ratio={search.max_ratio:g}"))
        return min([*limits, (left, f"a model of {positions} positions")], key=lambda limit: limit[0])

    def _problem(self, item: Item, prefix: Sequence[int], search: SimpleNamespace) -> str | None:
        """Why nothing can be written for a source, in the words of `System.generate`; None if it can."""
        count, positions, text = len(item), self.facts["positions"], self.source["kind"] == "text"
        room, limit = self._room(item, search)
        if text and not count:
            return "is empty"
        if text and count > search.max_source:
            return f"has {count} tokens, more than search.max_source={search.max_source}; split it"
        if text and count >= positions:
            return f"has {count} tokens, more than a model of {positions} positions can read"
        if room < 1:
            return f"has {count} tokens, after which {limit} leaves no room for an output; split it"
        if len(prefix) > room:
            begins = "prompt" if self.source["kind"] == "none" else "prefix"
            return f"has a {begins} of {len(prefix)} tokens, more than the {room} that {limit} allows"
        return None

    def _restrict(
        self, given: Array, written: Array, longest: Array, prefix: list[list[int]], search: SimpleNamespace
    ) -> None:
        """Put what may not come next at -inf, in place. Within a prefix only its next token may come, whatever the
        other rules say; after `longest` tokens only the end."""
        length, end = written.shape[2] - 1, self.marks["end"]
        due = {i: tokens[length] for i, tokens in enumerate(prefix) if length < len(tokens)}
        kept = {i: given[i, :, token].copy() for i, token in due.items()}
        banned = [mark for mark in self.marks["forbidden"] if mark != self.marks["unknown"] or not search.unknown]
        given[..., banned] = -math.inf
        for i, j in np.ndindex(written.shape[:2]) if search.no_repeat else ():
            given[i, j, [t for t in _repeats(written[i, j, 1:].tolist(), search.no_repeat) if t != end]] = -math.inf
        if length < search.min_length:
            given[..., end] = -math.inf
        for i in np.flatnonzero(longest <= length).tolist():
            ending = given[i, :, end].copy()
            kept.setdefault(i, ending if search.at_limit == "scored" else np.where(ending > -math.inf, 0.0, ending))
        for i, value in kept.items():
            given[i] = -math.inf
            given[i, :, due.get(i, end)] = value


def _penalty(search: SimpleNamespace, length: int, longest: int) -> float:
    """What `log p` of so many tokens, the closing mark counted, is divided by; what is cut off after the `longest` that
    it may have has no such mark."""
    length = min(length, max(int(longest), 1)) if search.at_limit == "cut" else length
    if search.length_penalty == "none":
        return 1.0
    return float(((5.0 + length) / 6.0 if search.length_penalty == "gnmt" else length) ** search.alpha)


def _top(values: Array, count: int) -> tuple[Array, Array]:
    """The greatest of each row, greatest first, and where they stand."""
    count = min(count, values.shape[1])
    place = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(-np.take_along_axis(values, place, 1), axis=1, kind="stable")
    place = np.take_along_axis(place, order, 1)
    return np.take_along_axis(values, place, 1), place


def _repeats(tokens: list[int], size: int) -> Iterator[int]:
    """The tokens that would make an n-gram of this size come twice."""
    tail = tokens[len(tokens) - size + 1 :]
    for i in range(len(tokens) - size + 1):
        if tokens[i : i + size - 1] == tail:
            yield tokens[i + size - 1]


def main() -> None:
    """Lines of standard input to outputs, with the folder that is named, or else the one this program lies in."""
    program, *named = sys.argv
    if len(named) > 1 or not (named or zipfile.is_zipfile(program)):
        sys.exit("usage: python runner.pyz [FOLDER] < input.txt")
    warnings.showwarning = lambda message, *_: print(f"runner: {message}", file=sys.stderr)
    try:
        runner = Runner(named[0] if named else Path(program).parent)
        outputs = runner.generate([line.rstrip("\n") for line in sys.stdin])
    except MissingExtraError as error:
        sys.exit(f"runner: {str(error).partition(';')[0]}; pip install onnxruntime numpy sentencepiece pillow")
    except RegardError as error:
        sys.exit(f"runner: {error}")
    print("".join(f"{output}\n" for output in outputs), end="")


if __name__ == "__main__":
    main()
