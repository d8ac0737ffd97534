"""Phrases that an output must hold, as words of their own: on tables whose tokens go on words, for tokenizers of all
kinds, and in batches that requests join."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.symbols import Symbols
from regard.data.tokens import Tokenizer
from regard.data.words import Phrase, WordEdges
from regard.errors import ConfigError
from regard.search.beam import beam_search
from regard.search.limits import Limits
from regard.search.phrases import count_phrases, owed_after
from regard.serving.engine import new_engine
from regard.serving.glossary import Glossary
from regard.serving.work import Work
from tests import published
from tests.chain import BOS, EOS, A, B, C, Chain, Steps, allowed, limits, random_chain
from tests.conftest import FULL, gpu
from tests.test_continuous import alone, drive, on, same, system

TEXT = {A: "a", B: "b", C: " "}  # a vocabulary of two letters and a blank
EDGES = WordEdges.of(["", "", "a", "b", " "], EOS)
ALL = 128  # wider than all there is to try within four tokens


def text_of(tokens: Sequence[int]) -> str:
    return "".join(TEXT[token] for token in tokens)


def holds(text: str, phrases: Sequence[str]) -> bool:
    """Whether each phrase is there, between the ends of words."""
    return all(Glossary({phrase: phrase}).phrases(text) for phrase in phrases)


def holds_letters(tokens: Sequence[int], phrases: Sequence[str]) -> bool:
    """Whether each phrase is there, letter by letter, as often as it is asked for and between the ends of words."""
    text = text_of(tokens)
    return all(len(re.findall(_between(phrase), text)) >= phrases.count(phrase) for phrase in phrases)


def _between(phrase: str) -> str:
    return (r"(?<!\w)" if phrase[0] != " " else "") + phrase + (r"(?!\w)" if phrase[-1] != " " else "")


def as_phrases(texts: Sequence[str]) -> list[Phrase]:
    by_text = {text: token for token, text in TEXT.items()}
    assert EDGES is not None
    return [EDGES.phrase(text, [by_text[one] for one in text]) for text in texts]


@pytest.mark.parametrize(
    "wanted", [["a"], ["ab"], ["aa"], ["a", "b"], ["a b"], ["ba", "b"], ["a", "a"], [" a"], ["b "], []]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_full_beam_finds_the_best_that_hold_the_words(wanted: list[str], seed: int) -> None:
    """None is lost for want of room: what is owed is what must be written at least, here."""
    chain, rules = random_chain(1, seed), limits([4])
    sequences = [tokens for tokens in allowed(rules, 0) if holds_letters(tokens, wanted)]
    expected = sorted(sequences, key=lambda tokens: -chain.log_prob(0, tokens))[:5]
    found = beam_search(
        Steps(chain.step),
        chain.start(),
        limits=rules,
        width=ALL,
        nbest=5,
        constraints=[as_phrases(wanted)],
        edges=EDGES,
    )
    assert [x.tokens for x in found[0]] == expected


words = st.lists(st.text("ab", min_size=1, max_size=3), max_size=3)


@given(
    seed=st.integers(0, 10**6), width=st.integers(1, 4), wanted=st.lists(words, min_size=1, max_size=3),
    room=st.integers(0, 4), prefixes=st.lists(st.lists(st.sampled_from([A, B, C]), max_size=3), min_size=3, max_size=3),
)  # fmt: skip
def test_words_always_appear(
    seed: int, width: int, wanted: list[list[str]], room: int, prefixes: list[list[int]]
) -> None:
    """However narrow the beam, after any prefix, and where there is room for nothing else."""
    phrases, prefixes = [as_phrases(some) for some in wanted], prefixes[: len(wanted)]
    longest = [
        len(prefix) + owed_after(prefix, count_phrases(some), EDGES) + room
        for some, prefix in zip(phrases, prefixes, strict=True)
    ]
    chain, rules = random_chain(len(wanted), seed, sharpness=3.0), limits(longest, prefix=prefixes)
    found = beam_search(
        Steps(chain.step), chain.start(), limits=rules, width=width, nbest=width, constraints=phrases, edges=EDGES
    )
    for hypotheses, some, prefix, most in zip(found, wanted, prefixes, longest, strict=True):
        assert hypotheses[0].log_prob > -np.inf
        for x in hypotheses:
            assert x.tokens[: len(prefix)] == prefix
            assert len(x.tokens) <= most
            assert holds_letters(x.tokens, some)


def test_what_is_owed_counts_the_blanks() -> None:
    for texts, prefix, owed in (
        (["ab"], "", 2), (["ab"], "b", 3), (["ab"], "b ", 2), (["ab"], "ab", 0), (["ab"], "aba", 3), (["ab"], "a", 1),
        (["a", "b"], "", 3), (["a", "b"], "a", 2), (["a", "a"], "a a", 0), (["a", "a"], "aa", 4), ([" "], "a", 1),
    ):  # fmt: skip
        (tokens,) = (phrase.tokens for phrase in as_phrases([prefix]))
        assert owed_after(tokens, count_phrases(as_phrases(texts)), EDGES) == owed, (texts, prefix)
    chain = random_chain(1, seed=1)
    with pytest.raises(ConfigError, match=r"^phrases of 3 tokens do not fit into max_length 2$"):
        beam_search(
            Steps(chain.step), chain.start(), limits=limits([2]), constraints=[as_phrases(["a", "b"])], edges=EDGES
        )


# Tokenizers

LINES = [f"the {size} dog sees {n} small birds , naïvely (oh)." for size in ("big", "little", "old") for n in range(60)]
WANTED = [["dog"], ["sm"], ["big dog", "all"], ["ï"], ["bird", "(oh)."], ["s"], ["dog", "dogs"], ["the"], ["birds"]]
Make = Callable[[Path], Tokenizer]


def trained(kind: str) -> Make:
    return lambda _: train_tokenizer(LINES, kind, 400)


def of(kind: str, make: Callable[[Path], Path]) -> Make:
    """A tokenizer as another program has it."""

    def read(folder: Path) -> Tokenizer:
        pytest.importorskip("transformers")
        from regard.exchange.huggingface.given import Given
        from regard.exchange.huggingface.tokens import read_tokenizers

        given = Given.read(make(folder / "there"), {"model_type": kind, "decoder_start_token_id": 0})
        return read_tokenizers(given, 400, 400)["tokens"].for_target

    return read


TOKENIZERS: dict[str, Make] = {
    **{kind: trained(kind) for kind in ("unigram", "bpe", "char", "byte", "word")},
    "prefixed": lambda folder: Prefixed(trained("bpe")(folder), ["<2de>"]),
    "gpt2": of("gpt2", lambda folder: published.byte_level(folder, "gpt2")),
    "bert": of("bert", published.word_piece),
    "t5": of("t5", published.unigram),
    "marian": of("marian", published.marian),
}


def outputs(tokenizer: Tokenizer, wanted: Sequence[str], seed: int, edges: WordEdges | None, **more: Any) -> list[str]:
    """What a beam finds on a table that is fond of going on words."""
    generator, phrases = torch.Generator().manual_seed(seed), tokenizer.phrases(wanted)
    table = 2 * torch.randn(1, tokenizer.size, tokenizer.size, generator=generator)
    if tokenizer.edges is not None:
        table[..., torch.from_numpy(tokenizer.edges.starts)] += 3.0
    marks = tokenizer.marks
    unwritten = [i for i in marks.names if i != marks.end]
    rules = Limits(torch.tensor([more.get("longest", 16)]), BOS, marks.end, tuple(unwritten))
    chain = Chain(table.log_softmax(-1))
    (found,) = beam_search(
        Steps(chain.step), chain.start(), limits=rules, width=4, nbest=4, constraints=[phrases], edges=edges
    )
    assert all(x.log_prob > -np.inf for x in found)
    return [tokenizer.decode(x.tokens) for x in found]


@pytest.mark.parametrize("name", TOKENIZERS if FULL else ["unigram", "byte", "gpt2", "bert"])
def test_an_output_of_any_tokenizer_holds_each_phrase_as_words(tmp_path: Path, name: str) -> None:
    tokenizer = TOKENIZERS[name](tmp_path)
    broken, every = 0, [some for some in WANTED if readable(tokenizer, some)]
    assert len(every) >= 3
    for seed, some in enumerate(every):
        for text in outputs(tokenizer, some, seed, tokenizer.edges):
            assert holds(text, some), (text, some)
        tight = owed_after([], count_phrases(tokenizer.phrases(some)), tokenizer.edges)
        for text in outputs(tokenizer, some, seed, tokenizer.edges, longest=tight):
            assert holds(text, some), (text, some)
        broken += sum(not holds(text, some) for text in outputs(tokenizer, some, seed, None))
    assert (broken > 0) == (tokenizer.edges is not None)  # without edges words are gone on


def readable(tokenizer: Tokenizer, some: Sequence[str]) -> bool:
    return all(
        tokenizer.decode(ids).strip() == text for ids, text in zip(tokenizer.encode_many(some), some, strict=True)
    )


def test_scripts_without_blanks_have_no_words_to_end() -> None:
    tokenizer = train_tokenizer(["我吃苹果 app 了"], "char", 100)
    chinese, latin = tokenizer.phrases(["苹果", "app"])
    assert (chinese.ends, latin.ends) == (False, True)
    assert holds("我吃苹果了", ["苹果"])
    assert holds("用app翻译", ["app"])
    assert not holds("apps", ["app"])
    assert not holds("कि", ["क"])  # a vowel sign goes on a letter
    assert not re.search(r"\s", tokenizer.decode(chinese.tokens))


# In a model


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_requests_with_phrases_of_letters_share_a_batch(device: str, tmp_path: Path) -> None:
    """Each gets what it gets alone, and its phrases as words."""
    letters = Symbols("char", [*"abcdeghilmnoprstz ", *"ABCDEG"])
    model = on(device, system(vocabulary=letters, tokens={"kind": "char"}, search={"max_length": 30}), tmp_path)
    asked = [["eta"], ["a", "beta"], [], ["eta", "eta"], ["z"], ["al pha"]]
    texts, beams = ["alpha beta", "beta", "zeta", "theta", "epsilon", "delta"], [1, 3, 3, 2, 3, 3]
    works = [
        Work(text, model.search_settings(beam=beam, max_ratio=30.0), phrases=tuple(some))
        for text, some, beam in zip(texts, asked, beams, strict=True)
    ]
    for work, heard in zip(works, drive(new_engine(model.task, budget=3000), works), strict=True):
        same(heard.outputs, alone(model, work))
        assert heard.outputs is not None
        assert holds(heard.outputs[0].text, work.phrases), (heard.outputs[0].text, work.phrases)
