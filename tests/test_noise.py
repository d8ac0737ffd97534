"""Noise of pretraining: what is drawn to be predicted or taken out of texts, and what is put in its place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.layouts import BothWays, Denoised, Masked
from regard.data.modalities.words import Words, WordsSettings
from regard.data.noise import (
    Corruption,
    SpanCorruption,
    choose_spans,
    choose_words,
    infilled,
    parted,
    permuted,
    word_spans,
)
from regard.data.tokenizers.kinds import load_tokenizer, train_tokenizer
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, DataError, ModelError
from regard.training_settings import DenoisingSettings, SpanCorruptionSettings
from tests.conftest import FULL
from tests.published import unigram

MASK = 5
TEXT = [line * 3 for line in ("der hund läuft . ", "die katze schläft ! ", "wer ruft dort ? ", "es regnet heute . ")]


def draws(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# Whole words and spans


def words_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    return word_spans([word for word, length in enumerate(lengths) for _ in range(length)])


def test_the_tokens_of_each_word() -> None:
    assert word_spans([0, 0, 1, -1, 2, 2]) == [(0, 2), (2, 3), (4, 6)]
    assert word_spans([]) == []


def test_whole_words_are_drawn_within_the_budget() -> None:
    words, draw = words_of([1, 3, 2, 1, 2, 4] * 4), draws()
    for _ in range(200):
        chosen = choose_words(words, 6, draw)
        assert set(chosen) <= set(words)
        assert chosen == sorted(chosen)
        assert 1 <= sum(end - start for start, end in chosen) <= 6
    assert choose_words([(0, 9)], 2, draw) == [(0, 9)]  # one word at least
    often = Counter(span for _ in range(2000) for span in choose_words(words_of([1] * 5), 2, draw))
    assert max(often.values()) < 1.15 * min(often.values())


def test_lengths_of_spans_are_those_of_the_paper() -> None:
    """Joshi et al. 2020, 3.1: a geometric distribution, p = 0.2, up to ten words, which gives 3.8 on average."""
    words, draw, found = words_of([2] * 400), draws(), Counter[int]()
    for _ in range(1500):
        (start, end), *_ = choose_spans(words, 20, draw)[:1]
        found[(end - start) // 2] += 1
    odds = [0.2 * 0.8 ** (length - 1) for length in range(1, 11)]
    assert set(found) <= set(range(1, 11))
    assert sum(length * count for length, count in found.items()) / 1500 == pytest.approx(
        sum(length * p for length, p in enumerate(odds, 1)) / sum(odds), abs=0.45
    )
    assert sum(length * p for length, p in enumerate(odds, 1)) / sum(odds) == pytest.approx(3.8, abs=0.01)


def test_spans_are_of_whole_words_within_the_budget_and_apart() -> None:
    draw = draws(2)
    for number in range(300):
        words = words_of(draw.integers(1, 4, size=1 + number % 30).tolist())
        total = words[-1][1]
        budget = max(1, round(0.15 * total))
        chosen = choose_spans(words, budget, draw)
        assert chosen
        assert all(a[1] <= b[0] for a, b in pairwise(chosen))
        assert {start for start, _ in chosen} <= {start for start, _ in words}
        assert {end for _, end in chosen} <= {end for _, end in words}
        hidden = sum(end - start for start, end in chosen)
        assert hidden <= budget or len(chosen) == 1
        assert hidden > budget - 4  # no room is left that a word would fit into
    assert choose_spans([(0, 2), (3, 5)], 4, draws(3)) in ([(0, 2), (3, 5)],)  # a mark between: never one span


@pytest.mark.parametrize("masking", ["words", "spans"])
def test_masked_words_and_spans(masking: str) -> None:
    """All tokens of a word are predicted or none; of a span, all have one fate."""
    tokens = train_tokenizer(TEXT * 5, "bpe", 300)
    layout, draw = Masked(0.3, tokens.size, tokens.marks, masking, tokens.words), draws()
    texts = [tokens.encode(line) for line in TEXT] * 8
    batch = layout([[]] * len(texts), texts, draw)
    fates = Counter[str]()
    for text, places, read, answers in zip(
        texts, batch.inputs.tolist(), batch.source.tolist(), batch.outputs.tolist(), strict=True
    ):
        words = tokens.words(text)
        hidden = {place - 1 for place in places}
        for word in set(words):
            own = {k for k, number in enumerate(words) if number == word}
            assert own <= hidden or not own & hidden
        assert answers == [text[k] for k in sorted(hidden)]
        assert all(read[k + 1] == text[k] for k in range(len(text)) if k not in hidden)
        for k in hidden:
            fates["mask" if read[k + 1] == MASK else "same" if read[k + 1] == text[k] else "other"] += 1
    assert fates["mask"] > 0.6 * sum(fates.values()) > 0
    assert fates["other"] > 0
    again = layout([[]] * len(texts), texts, draws())
    assert again.source.tolist() == batch.source.tolist()
    one = Masked(0.3, tokens.size, tokens.marks, masking, tokens.words, always=True)([[]] * len(texts), texts, draws(4))
    assert all(row[k] == MASK for row, own in zip(one.source.tolist(), one.inputs.tolist(), strict=True) for k in own)


# Denoising


def test_infilling_takes_out_as_many_tokens_as_it_should_with_one_mask_a_span() -> None:
    draw, tokens, spans, gone = draws(), list(range(10, 110)), Counter[int](), 0
    for _ in range(400):
        found = infilled(tokens, 30, 3.0, MASK, draw)
        assert len(found) <= len(tokens)
        kept = [token for token in found if token != MASK]
        assert kept == sorted(kept)
        gone += len(tokens) - len(kept)
        assert all((a, b) != (MASK, MASK) for a, b in pairwise(found))
        bounded = [9, *found, 110]
        for k, token in enumerate(bounded[1:-1], 1):
            if token == MASK:
                spans[bounded[k + 1] - bounded[k - 1] - 1] += 1
    assert gone == 400 * 30
    total = sum(spans.values())
    for length in range(6):  # Lewis et al. 2020, 2.2: Poisson(3); the last span of a text is cut to what is left
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert spans[length] / total == pytest.approx(expected, abs=0.03), length
    assert infilled(tokens, 0, 3.0, MASK, draw) == tokens
    assert MASK in infilled([7], 1, 3.0, MASK, draw)


def test_sentences_are_permuted_whole() -> None:
    tokens, ends = [1, 2, 9, 3, 9, 4, 5], frozenset({9})
    found = {tuple(permuted(tokens, ends, draws(seed))) for seed in range(60)}
    assert found == {
        (1, 2, 9, 3, 9, 4, 5), (1, 2, 9, 4, 5, 3, 9), (3, 9, 1, 2, 9, 4, 5), (3, 9, 4, 5, 1, 2, 9),
        (4, 5, 1, 2, 9, 3, 9), (4, 5, 3, 9, 1, 2, 9),
    }  # fmt: skip


def words() -> Symbols:
    return Symbols("word", ["der", "hund", "läuft", ".", "die", "katze", "schläft", "!", "?"], sentinels=4)


@pytest.mark.parametrize(
    ("settings", "length", "masks"),
    [
        ({"noise": "masking", "noised": 0.5}, 8, 4), ({"noise": "deletion", "noised": 0.5}, 4, 0),
        ({"noise": "deletion", "noised": 0.99}, 1, 0), ({"noise": "none", "permute": True}, 8, 0),
    ],
)  # fmt: skip
def test_masking_and_deletion(settings: dict[str, Any], length: int, masks: int) -> None:
    tokens = words()
    text = tokens.encode("der hund läuft . die katze schläft !")
    source, target = Corruption(DenoisingSettings(**settings), tokens)(text, draws())
    assert target == text
    assert len(source) == length
    assert source.count(MASK) == masks
    if settings["noise"] == "none":
        assert source in (text, text[4:] + text[:4])


def test_span_corruption_is_that_of_t5() -> None:
    """Sentinels in turn, on both sides; what is missing from one stands in the other."""
    tokens = Bytes(sentinels=30)
    noise, draw = SpanCorruption(SpanCorruptionSettings(), tokens), draws()
    sentinels, counts, ends = tokens.marks.sentinels, [], Counter[str]()
    for number in range(2, 200):
        text = draw.integers(tokens.first, tokens.size, size=number).tolist()
        source, target = noise(text, draw)
        used = [token for token in source if token in sentinels]
        assert used == list(sentinels[: len(used)])
        assert [token for token in target if token in sentinels] == list(sentinels[: len(used) + 1])
        assert target[-1] == sentinels[len(used)]
        assert noise.restored(source, target) == text
        ends["first"] += source[0] in sentinels
        ends["last"] += source[-1] in sentinels
        assert all(not {a, b} <= set(sentinels) for a, b in pairwise(source))
        missing = len(text) - sum(token not in sentinels for token in source)
        assert missing == min(max(round(0.15 * number), 1), number - 1)
        assert len(used) == max(1, min(round(missing / 3), missing))
        assert max(len(source), len(target) - 1) <= number
        counts.append(missing / len(used))
    assert 2.3 < np.mean(counts[-100:]) < 3.5
    assert 5 < ends["first"] < 60
    assert 5 < ends["last"] < 60
    assert noise([40], draw) == ([40], [sentinels[0]])  # nothing can be taken out of one token
    few = SpanCorruption(SpanCorruptionSettings(corrupted=0.5, span=1.0), Bytes(sentinels=3))
    source, target = few(list(range(20, 60)), draw)
    assert sum(token in (6, 7, 8) for token in source) == 2  # the last of the sentinels closes
    assert few.restored(source, target) == list(range(20, 60))


def test_a_whole_number_is_parted_all_ways_alike() -> None:
    found = Counter(tuple(parted(5, 3, draws(seed))) for seed in range(3000))
    assert set(found) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert max(found.values()) < 1.25 * min(found.values())
    assert parted(4, 0, draws()) == []


def test_what_cannot_be_denoised_is_told() -> None:
    with pytest.raises(ConfigError, match=r"needs sentinels, and this vocabulary has 0; set tokens\.sentinels to 100"):
        SpanCorruption(SpanCorruptionSettings(), Bytes())
    noise = SpanCorruption(SpanCorruptionSettings(), Bytes(sentinels=3))
    assert [noise.blank(0), noise.blank(1)] == [6, 7]
    with pytest.raises(DataError, match="more than 2 blanks"):
        noise.blank(2)


# Sentinels in vocabularies


@pytest.mark.parametrize("kind", ["bpe", "char", "word", "byte", *["unigram"] * FULL])
def test_sentinels_are_marks_of_a_vocabulary(kind: str, tmp_path: Path) -> None:
    lines = [*TEXT * 20, "a <extra_id_0> b"]
    tokens = train_tokenizer(lines, kind, 340, 7)
    plain = train_tokenizer(lines, kind, 340)
    tokens.save(tmp_path, "tokens")
    for one in (tokens, load_tokenizer(tmp_path, "tokens")):
        assert isinstance(one, Tokenizer)
        assert one.marks.sentinels == tuple(range(6, 13))
        assert [one.marks.names[i] for i in (5, 6, 12)] == ["<mask>", "<extra_id_0>", "<extra_id_6>"]
        ids = one.encode("der hund läuft .")
        assert one.decode([6, *ids, 7]) == "der hund läuft ."
        assert one.words([6, *ids])[0] == -1
        assert one.pieces([8]) == ["<extra_id_2>"]
        assert not set(one.encode("<extra_id_0> <mask>")) & set(range(2, 13))
        assert one.size <= max(340, 13 + 256)
    assert plain.marks.sentinels == ()
    assert plain.words(plain.encode("der hund läuft .")) == tokens.words(tokens.encode("der hund läuft ."))


def test_a_file_with_odd_sentinels_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text('{"kind": "byte", "sentinels": -1}')
    with pytest.raises(ModelError, match="it has -1 sentinels"):
        load_tokenizer(tmp_path, "tokens")


# Layouts


def test_both_ways() -> None:
    """Peters et al. 2018, 3.1: `<s> a b </s>`, each predicted from before it and from after it."""
    side = Words(WordsSettings())
    batch = BothWays(side)(side.encode_many(["ab c", "d"]), [[7, 8], [9]], draws())
    assert batch.inputs.tolist() == [[0, 1, 2, 5, 6, 7], [0, 1, 4, 5]]
    assert batch.outputs.tolist() == [[7, 8, 3, 2, 7, 8], [9, 3, 2, 9]]
    assert batch.source.lengths.tolist() == [4, 3]
    assert batch.tokens == 10


def test_a_denoised_batch_has_the_marks_of_pairs() -> None:
    tokens, side = words(), Words(WordsSettings())
    noise = Corruption(DenoisingSettings(noise="none"), tokens)

    class Plain(Words):
        def pack(self, items: Sequence[Any]) -> Any:
            return list(items)

    batch = Denoised(Plain(side.settings), noise, tokens.marks)([[]], [[10, 11]], draws())
    assert batch.source == [[10, 11]]
    assert batch.inputs.tolist() == [[2, 10, 11]]
    assert batch.outputs.tolist() == [[10, 11, 3]]


def test_the_sentinels_of_an_imported_vocabulary_of_t5(tmp_path: Path) -> None:
    """`<extra_id_0>` is the last of its ids, and the others stand before it; there is no mask."""
    pytest.importorskip("tokenizers")
    from regard.exchange.huggingface.given import Given
    from regard.exchange.huggingface.tokens import read_tokenizers

    folder = unigram(tmp_path / "t5", old=True)
    settings = {"model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    (tokens,) = read_tokenizers(Given.read(folder, settings), 200, 200).values()
    tokens.save(tmp_path, "tokens")
    for one in (tokens, load_tokenizer(tmp_path, "tokens")):
        sentinels = one.marks.sentinels
        assert len(sentinels) == 10
        assert list(sentinels) == list(range(sentinels[0], sentinels[0] - 10, -1))
        assert one.marks.blank == "<mask>"
        text = one.encode("the cat sat on the mat and slept")
        noise = SpanCorruption(SpanCorruptionSettings(), one)
        source, target = noise(text, draws())
        assert set(source) & set(sentinels) == {sentinels[0]}
        assert noise.restored(source, target) == text
    with pytest.raises(ConfigError, match="'denoising' needs a vocabulary with a mark for what is missing"):
        Corruption(DenoisingSettings(), tokens)
