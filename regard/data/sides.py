"""Both sides of the examples of a config: what is given and what is wanted, how they are read, learnt and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regard.data.examples import Example, Form
from regard.data.forms import Casing, formed
from regard.data.modalities.noised import Noised
from regard.data.modalities.several import Several
from regard.data.modalities.text import Text
from regard.data.modalities.words import Words
from regard.data.modality import Modality
from regard.data.side import Field
from regard.data.target import CODEBOOK, LABELS, Target
from regard.data.targets.text import TextTarget
from regard.data.tokenizers.kinds import load_tokenizer, train_tokenizer
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError
from regard.registry import MODALITIES, TARGETS
from regard.section import TokenSettings
from regard.settings import Config

SHARED = "tokens"  # the vocabulary of all text that has none of its own


@dataclass(frozen=True)
class Sides:
    """The source, which may be several, and the target."""

    config: Config
    source: Modality
    target: Target

    @staticmethod
    def of(config: Config) -> Sides:
        """As the settings say; tokens and labels have yet to be learnt or loaded."""
        parts = []
        for number, settings in enumerate(config.sources):
            part: Modality = MODALITIES.get(settings.kind)(settings, config.stem(number))
            if isinstance(part, Text):  # the marks that a model wants around it
                part.several |= not config.target.written or isinstance(settings.column, list)
                part.begins = not config.target.written
                part.ends = part.begins or not config.model.decoder_only
                part.by_word = config.target.of_words
            parts.append(part)
        target: Target = TARGETS.get(config.target.kind)(config.target)
        if isinstance(target, TextTarget):
            target.usual, target.questioned = config.usual_metrics, config.questioned
            if config.denoises:
                parts = [Noised(config.sources[0], config.stem(0), target, config.training.objective)]
        if config.spelled:
            words = Words(config.sources[0], config.stem(0))
            words.of_target, parts = True, [words]
        return Sides(config, parts[0] if len(parts) == 1 else Several(parts), target)

    @cached_property
    def form(self) -> Form:
        """How examples stand in files."""
        return Form.of(self.source, self.target, self.config.data)

    @cached_property
    def judged_form(self) -> Form:
        """How examples stand in files to validate and to evaluate on."""
        return self.target.judged(self.form)

    def form_of(self, split: str) -> Form:
        """How the examples of a split stand in files."""
        return self.form if split == "train" else self.judged_form

    @property
    def texts(self) -> dict[str, Text | TextTarget]:
        """The sides that are text, by name: `source`, `source2` and so on, `target`."""
        names = ["source", *(f"source{i}" for i in range(2, len(self.source.parts) + 1)), "target"]
        sides = dict(zip(names, [*self.source.parts, self.target], strict=True))
        return {name: side for name, side in sides.items() if isinstance(side, Text | TextTarget)}

    @property
    def vocabularies(self) -> dict[str, list[str]]:
        """Which sides each vocabulary is for, by its name: the shared one, and that of each side with its own."""
        found: dict[str, list[str]] = {}
        for name, side in self.texts.items():
            found.setdefault(SHARED if side.settings.own_tokens is None else name, []).append(name)
        return found

    def token_settings(self, vocabulary: str) -> TokenSettings:
        """How the tokens of a vocabulary are made."""
        return self.config.tokens if vocabulary == SHARED else self.texts[vocabulary].settings.own_tokens

    def given(self, example: Example) -> Field:
        """What the source of an example is read from: of one that is made of the words of the target, the target."""
        return example.target if self.source.of_target else example.source

    def find_fault(self, example: Example) -> tuple[str, str] | None:
        """What is wrong with an example before anything is learnt from it: the kind of fault, and what to say."""
        if fault := self.target.find_fault(example.target):
            return fault
        fields = example.source if len(self.source.parts) > 1 else (example.source,)
        for part, field in zip(self.source.parts, fields, strict=True):
            if fault := part.find_fault(field):
                return fault
        return None

    # Tokens and labels

    def use(self, tokenizers: Mapping[str, Tokenizer]) -> None:
        """Take these tokenizers, by vocabulary."""
        for vocabulary, names in self.vocabularies.items():
            for name in names:
                side = self.texts[name]
                given = tokenizers[vocabulary]
                side.tokenizer = formed(given.for_target if name == "target" else given, side.form)
                side.sampling = self.token_settings(vocabulary).sampling

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizer of each vocabulary."""
        return {vocabulary: self.texts[names[0]].tokenizer for vocabulary, names in self.vocabularies.items()}

    def learn(
        self, examples: Callable[[], Iterator[Example]], given: Mapping[str, Tokenizer], say: Callable[[str], None],
        known: Path | None = None,
    ) -> None:  # fmt: skip
        """Learn tokens, labels and codebooks from the training data, save the tokenizers that are `given` and what a
        target has learnt that is saved in the folder `known`."""
        found = dict(given)
        for vocabulary, names in self.vocabularies.items():
            if vocabulary not in found:
                settings = self.token_settings(vocabulary)
                say(f"learning tokens ({settings.kind}{'' if vocabulary == SHARED else f' of the {vocabulary}'})")
                texts = self._texts_of(names, examples())
                found[vocabulary] = train_tokenizer(
                    texts, settings.kind, settings.size, settings.sentinels, compose=False
                )
                if self.config.data.prefixes and "source" in names:
                    found[vocabulary] = Prefixed(found[vocabulary], self.config.data.prefixes)
            elif "source" in names:
                self._check_prefixes(found[vocabulary])
        if isinstance(self.target, TextTarget) and self.target.settings.case == "recase":
            say("counting how words are written (target.case)")
            self.target.casing = Casing.learn(example.target for example in examples())
        self.use(found)
        if known is not None:
            self.target.load(known)
            return
        if not self.config.target.written:
            say(f"collecting what there is to predict ({self.config.target.kind})")
        self.target.learn(examples(), seed=self.config.training.seed, say=say)

    def _check_prefixes(self, given: Tokenizer) -> None:
        """Refuse tokens to start from in which a prefix is not one token."""
        for prefix in self.config.data.prefixes:
            ids, more = given.encode(prefix), given.encode(f"{prefix} a")
            if len(ids) != 1 or more[:1] != ids or ids[0] in (given.marks.unknown, *given.marks.framing):
                known = f" (it has {', '.join(given.prefixes)})" if isinstance(given, Prefixed) else ""
                raise ConfigError(
                    f"data.corpora has the prefix {prefix}, which is no single token of the model to start from{known}"
                    "; leave it out, or train without start"
                )

    def _texts_of(self, names: Iterable[str], examples: Iterator[Example]) -> Iterator[str]:
        """The texts of some sides, in the form that the model reads and writes, without prefixes."""
        several = len(self.source.parts) > 1
        wanted = [(int(name.removeprefix("source") or 1) - 1, name) for name in names if name != "target"]
        forms = {name: side.form for name, side in self.texts.items()}
        prefixes = [f"{corpus.prefix} " if corpus.prefix else "" for corpus in self.config.data.corpora or ()] or [""]
        for example in examples:
            for number, name in wanted:
                text = example.source[number] if several else example.source
                yield forms[name].prepare(text.removeprefix(prefixes[example.corpus]) if number == 0 else text)
            if "target" in names:
                yield forms["target"].prepare(example.target)

    def save(self, folder: Path) -> None:
        """Write what `load` reads."""
        for vocabulary, tokenizer in self.tokenizers.items():
            tokenizer.save(folder, vocabulary)
        if isinstance(self.target, TextTarget) and self.target.casing is not None:
            self.target.casing.save(folder, "target")
        self.target.save(folder)

    def load(self, folder: Path) -> None:
        """Read tokens and labels that were saved."""
        if isinstance(self.target, TextTarget) and self.target.settings.case == "recase":
            self.target.casing = Casing.load(folder, "target")
        self.use({vocabulary: load_tokenizer(folder, vocabulary) for vocabulary in self.vocabularies})
        self.target.load(folder)


FILES = ("source", "source[0-9]*", "target", SHARED, LABELS, CODEBOOK)  # names of what is saved beside the weights
