"""A trained model as its user meets it: load it, use it, look into it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import mark, new_folder, read_json, write_json, write_text
from regard.config import dump, parse
from regard.data.candidates import Question
from regard.data.examples import Example, Paths, read_corpus
from regard.data.lines import BadKind, BadLine
from regard.data.modality import Picture
from regard.data.scan import Report, file_names
from regard.data.side import Field
from regard.data.target import Scoring
from regard.data.tokens import Tokenizer, clean
from regard.data_settings import CorpusFiles
from regard.errors import ConfigError, DamagedError, DataError
from regard.evaluation.alignment import Link
from regard.evaluation.metrics import Score
from regard.explain.trace import Explanation
from regard.inspection.attribution import Method, attributed
from regard.inspection.counterfactual import Counterfactual, counterfactual, without_each_word
from regard.inspection.doubt import Doubt, doubts
from regard.inspection.explaining import explained
from regard.inspection.inspect import Inspection, inspect, with_edits
from regard.loading import CONFIG, load_task, together, token_files, vocabulary
from regard.models.model import Model
from regard.nn.edits import Edits
from regard.search_settings import Search
from regard.settings import Config
from regard.tasks.choosing import Choice, Choosing, choose
from regard.tasks.generating import TextGeneration
from regard.tasks.inputs import as_list, as_question, as_texts, check_counts, check_text, with_type
from regard.tasks.judging import check_judge, judge_pictures
from regard.tasks.language_model import LanguageModeling
from regard.tasks.results import Advance, Evaluation, Given, Output, PairScore, Problem, Warn, columns, few_warnings
from regard.tasks.task import Task
from regard.training.checkpoint import WEIGHTS, save_tensors, weights

SCORES = "scores.json"
MODEL = "model"  # the kind of folder that `save` writes
Input = str | Sequence[str]  # one source: a text or the path of a file; of several sources, one for each


class System:
    """A trained model: `generate`, `score`, `explain`, `evaluate`."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder

    def __repr__(self) -> str:
        """One line: where it lies, what it is, how large, and on which device."""
        config = self.config
        sources, encoders = (" + ".join(x.kind for x in several) for several in (config.sources, config.model.encoders))
        return (
            f"System('{self.folder}': {sources} to {config.target.kind}, encoder {encoders}, decoder "
            f"{config.model.decoder.kind}, {self.parameters():,} parameters on {self.task.device})"
        )

    @property
    def model(self) -> Model:
        """The network."""
        return self.task.model

    @property
    def config(self) -> Config:
        """All settings it was made with."""
        return self.task.config

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizer of each vocabulary: `tokens` for all text that shares one, `source` or `target` else."""
        return self.task.sides.tokenizers

    def generate(
        self, texts: Iterable[Input], *, on_problem: Problem | None = None, prefixes: Iterable[str] | None = None,
        phrases: Iterable[Sequence[str]] | None = None, first_line: int = 0, **search: Any,
    ) -> list[str]:  # fmt: skip
        """The best output for each input. Any setting of `Search` may be given: `beam=1`, `sample=True`, …

        An input is a text, or the path of a picture, a recording or a video; of several sources, one for each.
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
        self, texts: Iterable[Input], *, on_problem: Problem | None = None, prefixes: Iterable[str] | None = None,
        phrases: Iterable[Sequence[str]] | None = None, first_line: int = 0, **search: Any,
    ) -> list[list[Output]]:  # fmt: skip
        """The `nbest` outputs for each input, with their scores, best first; see `generate`."""
        texts = self._fields(texts, "texts")
        prefixes = None if prefixes is None else as_texts(prefixes, "prefixes")
        if phrases is not None:
            phrases = [as_texts(some, f"phrases[{i}]") for i, some in enumerate(as_list(phrases, "phrases", "lists"))]
        for name, given in (("prefixes", prefixes), ("phrases", phrases)):
            if given is not None and len(given) != len(texts):
                raise DataError(f"{len(given)} {name} for {len(texts)} inputs; give one for each")
        beside = Given(prefixes, phrases, first_line)
        return self.task.outputs(texts, self.search_settings(**search), on_problem or _warn, given=beside)

    def pictures(
        self, texts: Iterable[Input], *, on_problem: Problem | None = None, first_line: int = 0, **search: Any
    ) -> list[Picture | None]:
        """The picture made from each input, `(height, width, 3)` in bytes, by a model whose target is one.

        An input that cannot be used gets None, and `on_problem` (or a warning) says why; see `generate`.
        """
        self.task.target.pictures([])  # an error, if it makes none
        codes = self.generate(texts, on_problem=on_problem, first_line=first_line, **search)
        drawn = iter(self.task.target.pictures([text for text in codes if text]))
        return [next(drawn) if text else None for text in codes]

    def score(self, sources: Iterable[Input], targets: Iterable[str] | None = None) -> list[PairScore]:
        """`log p(target given source)` of each pair, in all and by token; of a language model, `log p(text)`."""
        given = self._fields(sources, "sources")
        if targets is None:
            return self.task.score([""] * len(given), given)
        wanted = as_texts(targets, "targets")
        check_counts(given, wanted)
        return self.task.score(given, wanted)

    def choose(
        self, questions: Iterable[Question | tuple[str, Sequence[str]]], *, on_problem: Problem | None = None,
        **how: Any,
    ) -> list[Choice | None]:  # fmt: skip
        """The candidate of each question that is most probable after its context: a question is `(context,
        candidates)`. Any field of `Choosing` may be given: `by="byte"`, `shots=[(context, answer)]`, `count=1`, …

        A question that is too long for the model gets None, and `on_problem` (or a warning) says why.
        """
        asked = [
            as_question(q, f"questions: number {i}") for i, q in enumerate(as_list(questions, "questions", "pairs"))
        ]
        return choose(self.task, asked, Choosing(**how), on_problem or _warn)

    def last_words(self, files: Paths, *, warn: Warn = warnings.warn) -> Evaluation:
        """How well a language model tells the last word of each text, given all before it (LAMBADA, Paperno et al.
        2016)."""
        if not isinstance(self.task, LanguageModeling):
            raise ConfigError("last words are told by a language model (source.kind none)")
        corpus = CorpusFiles(0, "", cast(Any, files))
        with few_warnings(warn) as tell:
            return self.task.last_words(self._examples(corpus, warn, strict=False), tell)

    def explain(
        self, source: Input | Example, target: str | None = None, *, methods: Sequence[Method] = (),
        edits: Edits | None = None, **search: Any,
    ) -> Explanation:  # fmt: skip
        """What every layer and head attends to while writing the target (its own best output, if none is given).

        The target is run once more, teacher forced, under `capture`: decoding itself stays on the fast path. A text
        with blanks is run as it is given, with `<mask>` in it. An example from a file brings what it says of which
        words belong where (`Explanation.gold`), if the target is its own.

        `methods`, which are `gradient` and `erasure`, add layers of the same name: how much each target token depends
        on each source piece by gradients, and by leaving the piece out; and say how faithful each layer is
        (`Explanation.faithfulness`, `regard/inspection/attribution.py`). `edits` change attention; see `inspect`.
        """
        example = source if isinstance(source, Example) else None
        source = self._field(source.source if isinstance(source, Example) else source, "source")
        if target is not None and not isinstance(target, str):
            raise TypeError(f"target should be one string, not {with_type(target)}")
        check_text(target or "", "the target")
        x = self.task.item(source)
        task = with_edits(self.task, x, edits) if edits else self.task
        y: Sequence[int]
        if target is None:
            settings = self.search_settings(**{**search, "nbest": 1})
            y = task.outputs([source], settings, _refuse)[0][0].tokens
        else:
            y = task.forced(source, target)
        found = explained(task, source, x, y, () if example is None else self._gold(example, y))
        return attributed(task, x, y, found, methods) if methods else found

    def inspect(
        self, source: Input, *, forced: Sequence[int] = (), alternatives: int = 8, tree: bool = False,
        edits: Edits | None = None, **search: Any,
    ) -> Inspection:  # fmt: skip
        """What the model writes for one input, laid open: `log p` of every token of its `nbest` outputs and the
        likeliest `alternatives` there, what it attends to while it writes the best and, with `tree`, all hypotheses
        that its beam kept or dropped.

        `forced` are tokens that outputs begin with: those of an earlier inspection, say, with an alternative in place
        of the last. `edits` change its attention (Lee et al. 2017): heads that are off, weights that are given.
        """
        return inspect(
            self.task, self._field(source, "source"), self.search_settings(**search), forced=forced,
            alternatives=alternatives, tree=tree, edits=edits,
        )  # fmt: skip

    def counterfactual(
        self, source: Input, variants: Iterable[Input] | None = None, **search: Any
    ) -> list[Counterfactual]:
        """What the model writes for each variant of a source, and how probable what it writes for the source itself is
        then. Without `variants`, a text is read without each of its words in turn."""
        source = self._field(source, "source")
        if variants is None:
            side = self.config.sources[0]
            if not isinstance(source, str) or (side.given and not side.text):
                raise ConfigError("only a text is read without each of its words; say which variants of the source")
            variants = without_each_word(source)
        fields = self._fields(variants, "variants")
        return counterfactual(self.task, source, fields, self.search_settings(**{**search, "nbest": 1}))

    def doubts(
        self, sources: Iterable[Input], targets: Iterable[str] | None = None, *, on_problem: Problem | None = None,
        **search: Any,
    ) -> list[Doubt | None]:  # fmt: skip
        """How doubtful the best output for each source is, or the target that is given for it: by its probability, its
        least probable word, source words that nothing attended to, and repetition (`Doubt`). Of a document, the most
        doubtful sentences are those to read first. A source that cannot be used gets None, and `on_problem` (or a
        warning) says why."""
        given = None if targets is None else as_texts(targets, "targets")
        settings = self.search_settings(**search)
        return doubts(self.task, self._fields(sources, "sources"), settings, on_problem or _warn, given)

    def _gold(self, example: Example, target: Sequence[int]) -> list[Link]:
        """What an example says of which words belong where, if its target reads as this one."""
        if not isinstance(self.task, TextGeneration):
            return []
        truth = self.task.source.gold(example)
        same = clean(self.task.target.decode(target)) == clean(example.target)
        return sorted(truth.possible) if truth is not None and same else []

    def align(self, sources: Iterable[Input], targets: Iterable[str]) -> list[list[tuple[int, int]]]:
        """Links (source word, target word) that the attention makes."""
        sources, targets = self._fields(sources, "sources"), as_texts(targets, "targets")
        if not isinstance(self.task, TextGeneration):
            raise ConfigError("this model does not write a text from a source, so there is nothing to align")
        check_counts(sources, targets)
        return self.task.align(self.task.source.encode_many(sources), self.task.target.encode_many(targets))

    def stream(self, lines: Iterable[str]) -> Iterator[list[float]]:
        """`log p` of each token of a long text, a list for each line, with the language model's state carried on."""
        if not isinstance(self.task, LanguageModeling):
            raise ConfigError("only a language model (source.kind none) reads a text on and on")
        if isinstance(lines, str | bytes):
            raise TypeError(f"lines should be lines of a text, not {with_type(lines)}; give text.splitlines()")
        return self.task.stream(lines)

    def sentence_embeddings(self, texts: Iterable[Input]) -> NDArray[np.float32]:
        """One vector for each input, `(texts, d_model)`: what the encoder makes of the whole."""
        return self.task.sentence_embeddings(self._fields(texts, "texts"))

    def token_embeddings(self, texts: Iterable[Input]) -> list[NDArray[np.float32]]:
        """For each input a vector of each of its positions (`task.source.pieces`), `(positions, d_model)`."""
        return self.task.token_embeddings(self._fields(texts, "texts"))

    def _fields(self, given: Iterable[Field], name: str) -> list[Field]:
        """A list of inputs: strings or, of several sources, tuples of them."""
        if len(self.config.sources) == 1:
            return as_texts(given, name)
        listed = as_list(given, name, f"tuples of {len(self.config.sources)} strings")
        return [self._field(field, f"{name}: number {i}") for i, field in enumerate(listed)]

    def _field(self, field: Input, name: str) -> Field:
        count = len(self.config.sources)
        if count == 1:
            if not isinstance(field, str):
                raise TypeError(f"{name} should be one string, not {with_type(field)}")
            check_text(field, f"the {name}")
            return field
        if isinstance(field, str) or not isinstance(field, Sequence) or len(field) != count:
            raise TypeError(f"{name} should be {count} strings, one for each source, not {with_type(field)}")
        return tuple(as_texts(field, name))

    def evaluate(
        self, files: Paths | None = None, *, warn: Warn = warnings.warn, advance: Advance = lambda count: None,
        scoring: Scoring | None = None, judge: System | None = None, **search: Any,
    ) -> Evaluation:  # fmt: skip
        """All scores of a file of examples, in the form that the model was trained on; `scoring` says more of how.
        Without a file, of the config's test or validation data; of several corpora together, and of each.

        A `judge`, which is a captioner, captions the pictures that this model makes; its captions are held against the
        texts that they were made from (`judge_pictures`).
        """
        if judge is not None:
            self.task.target.pictures([])  # an error, if it makes none
            check_judge(judge.task)
        strict = self.config.data.bad_lines == "error" or (scoring is not None and bool(scoring.references))
        data, settings = self.config.data, self.search_settings(**search)
        corpora = data.split("test") or data.split("valid")
        if files is not None:
            corpora = [CorpusFiles(0, "", cast(Any, files))]
        examples = chain.from_iterable(self._examples(corpus, warn, strict=strict) for corpus in corpora)
        with few_warnings(warn) as tell:
            found = self.task.evaluate(examples, settings, tell, advance, scoring)
        if files is not None and (told := self._unprefixed(found.examples)):
            warn(told)
        if len(corpora) > 1:
            found = replace(found, corpora=self._by_corpus(found, corpora, settings, scoring or Scoring()))
        targets = (text for several in found.references for text in several)
        if new := self.task.target.describe_unseen(targets, " + ".join(file_names(x.files) for x in corpora)):
            warn(new[0])
        if judge is None:
            return found
        judged = judge_pictures(self.task, judge.task, found, judge.folder.name)
        return replace(found, scores={**judged, **found.scores})

    def _unprefixed(self, examples: Sequence[Example]) -> str | None:
        """That examples lack the prefix with which every source was read in training."""
        prefixes, every = self.config.data.prefixes, self.config.data.corpora or []
        if not prefixes or any(corpus.prefix is None for corpus in every) or not self.config.sources[0].given:
            return None
        texts = [part for one in examples for part in (one.source if isinstance(one.source, tuple) else (one.source,))]
        if any(isinstance(text, str) and text.lstrip().startswith(tuple(prefixes)) for text in texts):
            return None
        return (
            f"no source begins with a prefix that this model was trained with ({', '.join(prefixes)}), and none is "
            "added to the examples of a file; write it before each source"
        )

    def _by_corpus(
        self, found: Evaluation, corpora: Sequence[CorpusFiles], settings: Search, scoring: Scoring
    ) -> dict[str, dict[str, Score]]:
        """The scores of each corpus: of what was written for it or, where nothing was, of its examples once more."""
        each = {}
        for corpus in corpora:
            own = [i for i, example in enumerate(found.examples) if example.corpus == corpus.number]
            if not own:
                continue
            if not found.outputs:
                each[corpus.name] = self.task.evaluate([found.examples[i] for i in own], settings, _silent).scores
                continue
            first, more = columns([found.references[i] for i in own])
            outputs = [found.outputs[i] for i in own]
            each[corpus.name] = self.task.target.scores(outputs, first, replace(scoring, references=more))
        return each

    def _examples(self, corpus: CorpusFiles, warn: Warn, *, strict: bool) -> Iterator[Example]:
        """The examples of some files. A line that gives none is raised if `strict`, as it is where the lines of another
        file go with these; else `warn` hears of all of them."""
        data, sides, report = self.config.data, self.task.sides, Report(file_names(corpus.files))
        for example in read_corpus(corpus, sides.judged_form, None if strict else report.add):
            if data.bad_lines == "error" and (fault := sides.find_fault(example)):
                raise BadLine(example.place, cast(BadKind, fault[0]), fault[1])
            report.lines += 1
            yield example
        if report.bad:
            report.lines += report.bad
            report.check(data)
            warn(str(report.describe()))

    def test(self, warn: Warn = warnings.warn) -> Evaluation:
        """Evaluate on the config's test data, and keep the scores in `scores.json`."""
        if not self.config.data.split("test"):
            raise ConfigError("the config names no data.test")
        result = self.evaluate(warn=warn)
        path = self.folder / SCORES
        try:
            known = read_json(path)
        except (FileNotFoundError, DamagedError):
            known = {}
        test = {name: score.to_json() for name, score in result.scores.items()}
        each = {name: {x: score.to_json() for x, score in own.items()} for name, own in result.corpora.items()}
        write_json(path, {**known, "test": test, **({"test of each": each} if each else {})})
        return result

    def search_settings(self, /, **changes: Any) -> Search:
        """The model's own search settings with changes."""
        merged = {**self.config.search.model_dump(), **changes}
        return parse({"search": merged, "model": {"ctc": self.config.model.ctc}}, "the search settings").search

    def parameters(self) -> int:
        """How many numbers were learnt."""
        return sum(parameter.numel() for parameter in self.task.model.parameters())

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write a folder that loads anywhere: config, weights, tokenizers. `force` replaces an earlier model there."""
        with new_folder(Path(folder), MODEL, force=force) as new:
            write_text(new / CONFIG, dump(self.config.model_copy(update={"run": "."})))
            self.task.sides.save(new)
            save_tensors(new / WEIGHTS, weights(self.task.model))
            mark(new, MODEL, tokens=token_files(new))
        return Path(folder)


def load(
    folder: str | Path, *others: str | Path, weights: str | Path | None = None, device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> System:  # fmt: skip
    """Load a trained model from its folder; `weights` may name another file of weights, such as a checkpoint's.

    `settings` changes how a source is read, such as `{"source": {"size": 96}}` for pictures of another size than in
    training; learned positions of patches are then interpolated.

    With `others`, models of any kind over the same tokens, an ensemble of all of them.
    """
    folder = Path(folder)
    task = load_task(folder, weights=None if weights is None else Path(weights), device=device, settings=settings)
    more = [load_task(Path(other), device=device, settings=settings) for other in others]
    for other in others:
        if vocabulary(Path(other)) != vocabulary(folder):
            raise ConfigError(f"an ensemble needs models of one vocabulary; that of {other} is not that of {folder}")
    return System(together([task, *more]), folder)


def _silent(text: str) -> None:
    """What there was to warn of was said before."""


def _warn(index: int, what: str) -> None:
    warnings.warn(f"input {index} {what}; its output is empty", stacklevel=4)


def _refuse(index: int, what: str) -> None:
    raise DataError(f"the source {what}")
