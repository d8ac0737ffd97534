"""What an imported model writes is what `transformers` writes with it, whatever its settings of generation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.modalities.sounds import wav
from regard.exchange import export, import_model
from regard.exchange.huggingface.generating import search_settings
from regard.exchange.huggingface.given import Given
from regard.search.limits import Hypothesis
from regard.system import System
from regard.tasks.generating import TextGeneration
from tests import published
from tests.conftest import whole

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from tests.test_import import SMALL, TEXTS, bart, drawn, marian, saved, t5  # noqa: E402

PROMPTS = [[9, 30, 31], [], [45, 9, 45, 77, 12]]  # of a language model, without its mark


@dataclass
class Pair:
    """A model there and here, and what it is asked."""

    theirs: Any
    ours: System
    given: Given
    asked: list[tuple[dict[str, Any], Any, list[int]]]  # inputs there; a field and a prefix here

    @staticmethod
    def of(folder: Path, theirs: Any, ours: System, asked: list[tuple[dict[str, Any], Any, list[int]]]) -> Pair:
        return Pair(theirs, ours, Given.read(folder, json.loads((folder / "config.json").read_text())), asked)

    def settings(self, options: dict[str, Any]) -> dict[str, Any]:
        """Settings of generation as those of a search."""
        given = Given(self.given.folder, self.given.config, {**self.given.generation, **options}, self.given.settings)
        marks, longest = self.ours.task.target.marks, self.ours.config.model.max_positions
        assert longest is not None
        found, told = search_settings(given, marks, longest)
        assert not told
        return found

    @property
    def task(self) -> TextGeneration:
        task = self.ours.task
        assert isinstance(task, TextGeneration)
        return task

    def check(self, options: dict[str, Any]) -> set[int]:
        """Both write the same, and score it so; gives the lengths of what they write."""
        task, search = self.task, self.ours.search_settings(**self.settings(options))
        lengths = set()
        for inputs, field, prefix in self.asked:
            found: Hypothesis = task.search(task.source.encode_many([field]), search, prefixes=[prefix])[0][0]
            there = self.theirs.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
            tokens = there["sequences"][0].tolist()
            start, end = [*task.first, *prefix], task.target.marks.end
            tokens = tokens[len(start) :] if tokens[: len(start)] == start else tokens
            assert found.tokens == prefix + (tokens[: tokens.index(end)] if end in tokens else tokens), options
            if options["num_beams"] > 1 and there.get("sequences_scores") is not None:
                assert found.score == pytest.approx(float(there["sequences_scores"][0]), abs=1e-4), options
            lengths.add(len(found.tokens) - len(prefix))
        return lengths


def of_text(make: Callable[[Path], Any]) -> Callable[[Path], Pair]:
    def made(folder: Path) -> Pair:
        one = make(folder)
        asked = [(dict(one.tokenizer(text, return_tensors="pt")), text, list[int]()) for text in TEXTS]
        return Pair.of(folder, one.theirs, one.ours, asked)

    return made


def gpt2(folder: Path) -> Pair:
    """With an end that comes now and then, and prompts of several lengths."""
    published.byte_level(folder, "gpt2")
    config = transformers.GPT2Config(
        vocab_size=330, n_embd=16, n_layer=2, n_head=2, n_positions=40, bos_token_id=0, eos_token_id=0
    )
    model = drawn(transformers.GPT2LMHeadModel(config))
    with torch.no_grad():
        end = model.transformer.wte.weight[0]
        model.transformer.ln_f.bias += 4.5 * end / (end @ end)
    asked = []
    for prompt in PROMPTS:
        ids = torch.tensor([[0, *prompt]])
        asked.append(({"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}, "", prompt))
    return Pair.of(saved(model, folder), model, import_model(folder, folder.with_name("gpt2-here")), asked)


def whisper(folder: Path) -> Pair:
    """With two marks before an output, and tokens that come never or not first."""
    published.byte_level(folder, "gpt2")
    settings = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    settings |= {"num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 40, "vocab_size": 330}
    marks = {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    model = drawn(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**settings, **marks)))
    with torch.no_grad():  # an end that comes now and then: nearly as likely as what a bias makes likely
        model.model.decoder.layer_norm.bias += 3.0 * model.proj_out.weight[0] / model.proj_out.weight[0].norm() ** 2
    saved(
        model, folder, suppress_tokens=[5, 9], begin_suppress_tokens=[0, 20, 21, 24], no_timestamps_token_id=2,
        is_multilingual=False,
    )  # fmt: skip
    extract = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    extract.save_pretrained(folder)
    asked = []
    for i in range(3):
        sound = (9000 * np.sin(np.arange(8000) / (5.0 + 4 * i))).astype(np.int16)
        (folder / f"{i}.wav").write_bytes(wav(sound, 16000))
        features = extract(sound / 32768, sampling_rate=16000, return_tensors="pt").input_features
        asked.append(({"input_features": features}, str(folder / f"{i}.wav"), list[int]()))
    return Pair.of(folder, model, import_model(folder, folder.with_name("whisper-here")), asked)


MAKERS = {"marian": of_text(marian), "bart": of_text(bart), "t5": of_text(t5), "gpt2": gpt2, "whisper": whisper}
Get = Callable[[str], Pair]


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Get:
    room, known = tmp_path_factory.mktemp("there"), dict[str, Pair]()

    def made(name: str) -> Pair:
        if name not in known:
            known[name] = MAKERS[name](room / name)
        return known[name]

    return made


PLAIN: dict[str, Any] = {
    "num_beams": 1, "early_stopping": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0,
    "length_penalty": 1.0, "max_length": 14,
}  # fmt: skip
ONE = [
    PLAIN, {**PLAIN, "repetition_penalty": 1.3}, *({**PLAIN, "num_beams": 3, "early_stopping": stop} for stop in
    (False, True, "never")), {**PLAIN, "num_beams": 3, "repetition_penalty": 1.3}, {**PLAIN, "num_beams": 3,
    "no_repeat_ngram_size": 3}, {**PLAIN, "num_beams": 3, "min_length": 8},
]  # fmt: skip
TOGETHER = [
    {**PLAIN, "num_beams": beams, "early_stopping": stop, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3,
     "min_length": 6, "length_penalty": alpha}
    for beams, stop, alpha in product((1, 4), (False, True, "never"), (2.0, 0.0))
]  # fmt: skip
CASES = [
    pytest.param(name, options, marks=() if name in ("marian", "gpt2") and options in some else whole)
    for name, some in ((name, [ONE[3], TOGETHER[8]]) for name in MAKERS)
    for options in (*ONE, *TOGETHER)
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_what_is_written_is_what_transformers_writes(get: Get, name: str, options: dict[str, Any]) -> None:
    get(name).check(options)


@whole
@pytest.mark.parametrize("name", MAKERS)
def test_some_outputs_end_by_themselves_and_some_at_the_greatest_length(get: Get, name: str) -> None:
    """Otherwise what is compared above says little."""
    lengths = set().union(*(get(name).check({**PLAIN, "num_beams": n, "no_repeat_ngram_size": 2}) for n in (1, 2, 3)))
    assert len(lengths) > 1


@pytest.mark.parametrize("name", ["marian", *(pytest.param(name, marks=whole) for name in ("bart", "t5"))])
def test_an_output_that_is_cut_off_is_the_one_that_transformers_cuts_off(get: Get, name: str) -> None:
    """Without an end that is forced; and with one, which costs nothing there."""
    pair = get(name)
    config = {x: value for x, value in pair.given.config.items() if x != "forced_eos_token_id"}
    generation = {x: value for x, value in pair.given.generation.items() if x != "forced_eos_token_id"}
    free = Pair(pair.theirs, pair.ours, Given(pair.given.folder, config, generation, {}), pair.asked)
    own = pair.theirs.generation_config.forced_eos_token_id
    for stop, length in ((True, 4), (False, 7), ("never", 5)):
        options = {**PLAIN, "num_beams": 3, "early_stopping": stop, "max_length": length}
        pair.check({**options, "forced_eos_token_id": own})
        try:
            pair.theirs.generation_config.forced_eos_token_id = None
            free.check(options)
        finally:
            pair.theirs.generation_config.forced_eos_token_id = own


@pytest.mark.parametrize("name", ["marian", *(pytest.param(name, marks=whole) for name in ("bart", "gpt2"))])
def test_sequences_of_tokens_are_banned_as_by_transformers(get: Get, name: str, tmp_path: Path) -> None:
    """Of two tokens and of three, which would be written otherwise; and they come back."""
    pair = get(name)
    task, plain = pair.task, {**PLAIN, "no_repeat_ngram_size": 2, "min_length": 8}
    search = pair.ours.search_settings(**pair.settings(plain))
    banned = []
    for (_, field, prefix), size in zip(pair.asked, (2, 3, 2), strict=True):
        found = task.search(task.source.encode_many([field]), search, prefixes=[prefix])[0][0].tokens[len(prefix) :]
        banned += [found[i : i + size] for i in range(0, len(found) - size + 1, 2)]
    assert {len(tokens) for tokens in banned} == {2, 3}
    folder = shutil.copytree(pair.given.folder, tmp_path / "there")
    words = [*(pair.given.generation.get("bad_words_ids") or []), *banned]
    (folder / "generation_config.json").write_text(json.dumps({**pair.given.generation, "bad_words_ids": words}))
    ours = import_model(folder, tmp_path / "here")
    other = Pair.of(folder, pair.theirs, ours, pair.asked)
    before = pair.theirs.generation_config.bad_words_ids
    try:
        pair.theirs.generation_config.bad_words_ids = words
        for beams in (1, 3):
            other.check({**plain, "num_beams": beams})
            with pytest.raises(AssertionError):
                pair.check({**plain, "num_beams": beams})
    finally:
        pair.theirs.generation_config.bad_words_ids = before
    export(ours, tmp_path / "out", to="huggingface")
    back = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert [ids for ids in back["bad_words_ids"] if len(ids) > 1] == banned


@pytest.mark.parametrize(
    "options", [{"top_k": 12}, {"top_k": 60, "typical_p": 0.6}, {"top_k": 40, "top_p": 0.8, "epsilon_cutoff": 0.04}]
)
def test_samples_come_from_the_distribution_of_transformers(get: Get, options: dict[str, Any]) -> None:
    """After a prompt, whose tokens the repetition penalty falls on too."""
    pair, rounds = get("gpt2"), 5
    inputs, field, prompt = pair.asked[2]
    options = {"do_sample": True, "repetition_penalty": 1.8, "temperature": 1.5, "max_length": 7, **options}
    there = pair.theirs.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
    wanted = there.scores[0][0].softmax(-1)
    task = pair.task
    search = pair.ours.search_settings(**pair.settings(options), nbest=1000)
    found = task.search(task.source.encode_many([field] * rounds), search, prefixes=[prompt] * rounds)
    draws = torch.tensor([(h.tokens[len(prompt) :] or [0])[0] for some in found for h in some])
    first = draws.bincount(minlength=330) / len(draws)
    assert 5 < (wanted > 0).sum() < 100
    spread = (wanted * (1 - wanted) / len(draws)).sqrt()
    assert bool(((first - wanted).abs() <= 4 * spread).all())


def test_settings_of_generation_come_back(get: Get, tmp_path: Path) -> None:
    pair = get("marian")
    options = {**PLAIN, "num_beams": 3, "early_stopping": True, "repetition_penalty": 1.25, "max_length": 20}
    ours = System(pair.ours.task, tmp_path)
    config = ours.config.model_copy(update={"search": ours.search_settings(**pair.settings(options))})
    task, before = ours.task, ours.config
    try:
        task.config = config
        export(System(task, tmp_path), tmp_path / "out", to="huggingface")
    finally:
        task.config = before
    back = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: back[name] for name in ("num_beams", "early_stopping", "repetition_penalty", "max_length")} == {
        name: options[name] for name in ("num_beams", "early_stopping", "repetition_penalty", "max_length")
    }
    assert back["forced_eos_token_id"] == pair.given.generation["forced_eos_token_id"]
