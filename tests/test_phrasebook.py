"""The phrasebook corpus: reproducible, split apart, as long as asked, and true to three grammars."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from regard.data.synthetic import english, german, lexicon, phrasebook, turkish
from regard.data.synthetic.grammar import Grammar
from regard.data.synthetic.phrasebook import Pair, pairs
from regard.data.synthetic.suffixes import lower, noun_form, stem_of, verb_form
from regard.data.synthetic.syntax import CLAUSE_KEYS, NP_KEYS, Key, Sentence, Token
from regard.errors import OutputError

STOPS = frozenset(".?!")
PUNCTUATION = frozenset(".,?!")
FUNCTION_WORDS = frozenset(
    (
        *("the", "a", "an", "of", "to", "that", "who", "whom", "which", "did", "do", "does", "let", "us", "and"),
        *(
            "am",
            "is",
            "are",
            "was",
            "were",
            "be",
            "been",
            "has",
            "have",
            "had",
            "will",
            "in",
            "on",
            "at",
            "for",
            "past",
        ),
    )
)


@cache
def sample(language: str) -> tuple[Pair, ...]:
    return tuple(pairs(2500, language=language))


def trees(count: int, seed: str = "trees") -> Iterator[Sentence]:
    draw = random.Random(seed).random
    grammar = Grammar(draw)
    return (grammar.sentence(5 + int(draw() * 16)) for _ in range(count))


def english_words(pair: Pair) -> int:
    return sum(token not in PUNCTUATION for token in pair.source.split())


def text(tokens: list[Token]) -> str:
    return " ".join(token[0] for token in tokens)


def test_same_arguments_same_bytes() -> None:
    digest = hashlib.sha256()
    for language, words in product(("de", "tr"), ((5, 20), (40, 60))):
        for pair in pairs(100, language=language, words=words):
            digest.update(f"{pair.source}\t{pair.target}\t{pair.alignment}\n".encode())
    # A change here means that every corpus made before is another one: say so in the changelog.
    assert digest.hexdigest() == "9c4314455392c5735e315363d3c6a9b65e1b3d2838e455f4c730a5d42a024166"


def test_a_larger_corpus_continues_a_smaller_one_and_seeds_differ() -> None:
    first = list(pairs(30))
    assert first == list(pairs(60))[:30]
    assert first != list(pairs(30, seed=2))


def test_both_languages_have_the_same_sources() -> None:
    assert [pair.source for pair in sample("de")] == [pair.source for pair in sample("tr")]


def test_splits_share_no_source_whatever_the_seed_and_lengths() -> None:
    # So short that two draws of 1500 would surely have many in common.
    found = {}
    for split in ("train", "valid", "test"):
        drawn = [
            pair.source
            for seed, words in ((1, (3, 4)), (2, (3, 5)))
            for pair in pairs(400, split=split, words=words, seed=seed)
        ]
        found[split] = set(drawn)
    assert len({pair.source for pair in pairs(1500, words=(3, 4))}) == 1500
    assert not found["train"] & found["valid"]
    assert not found["train"] & found["test"]
    assert not found["valid"] & found["test"]


@pytest.mark.parametrize("words", [(3, 3), (5, 20), (13, 13), (40, 60), (60, 80)])
def test_lengths_are_in_range_and_spread(words: tuple[int, int]) -> None:
    low, high = words
    lengths = Counter(english_words(pair) for pair in pairs(600, words=words))
    assert min(lengths) >= low
    assert max(lengths) <= high
    assert len(lengths) == high - low + 1
    fair = 600 / len(lengths)
    assert all(fair / 3 < count < fair * 3 for count in lengths.values())


def test_the_target_is_a_function_of_the_source() -> None:
    known: dict[str, Pair] = {}
    repeated = 0
    for seed in range(4):
        for pair in pairs(3000, language="tr", words=(3, 5), seed=seed):
            repeated += pair.source in known
            assert known.setdefault(pair.source, pair) == pair
    assert repeated > 500


def test_thousands_of_structures() -> None:
    kinds = {form: "N" for noun in lexicon.NOUN_LIST for form in (noun.singular, noun.plural)}
    kinds |= {adjective.english: "A" for adjective in lexicon.ADJECTIVE_LIST}
    kinds |= {name.english: "M" for name in (*lexicon.PEOPLE, *lexicon.COUNTRIES)}
    for verb in lexicon.VERB_LIST:
        base, past, participle = verb.english
        kinds |= {
            base: "V",
            past: "Vd",
            participle: "Vn",
            english.third_person(base): "Vs",
            english.progressive(base): "Vg",
        }
    shapes = set()
    for pair in pairs(5000):
        tokens = pair.source.split()
        tokens[0] = tokens[0] if tokens[0] in kinds else tokens[0][0].lower() + tokens[0][1:]
        shapes.add(" ".join(kinds.get(token, token) for token in tokens))
    assert len(shapes) > 4000


@pytest.mark.parametrize("language", ["de", "tr"])
def test_links_are_sorted_and_inside_the_sentences(language: str) -> None:
    for pair in sample(language):
        rows, columns = len(pair.source.split()), len(pair.target.split())
        assert list(pair.sure) == sorted(set(pair.sure))
        assert list(pair.possible) == sorted(set(pair.possible))
        assert not set(pair.sure) & set(pair.possible)
        assert all(0 <= i < rows and 0 <= j < columns for i, j in (*pair.sure, *pair.possible))


@pytest.mark.parametrize("language", ["de", "tr"])
def test_every_content_word_has_a_sure_link(language: str) -> None:
    # Turkish says "yüz" for one hundred and "bu palto iki euro" for what a coat costs.
    unsure = FUNCTION_WORDS | PUNCTUATION | ({"one", "cost", "costs"} if language == "tr" else set())
    for pair in sample(language):
        linked = {i for i, _ in pair.sure}
        for i, token in enumerate(pair.source.split()):
            if token.lower() not in unsure:
                assert i in linked, (token, pair)


@pytest.mark.parametrize("language", ["de", "tr"])
def test_nouns_are_linked_to_their_translations(language: str) -> None:
    nouns = {form: noun for noun in lexicon.NOUN_LIST for form in (noun.singular, noun.plural)}
    checked = 0
    for pair in sample(language):
        source, target = pair.source.split(), pair.target.split()
        for i, j in pair.sure:
            noun = nouns.get(source[i])
            if noun is None:
                continue
            checked += 1
            if language == "de":
                assert target[j] in noun.german, pair
            else:
                assert lower(target[j]).startswith((lower(noun.turkish), noun.soft)), pair
    assert checked > 4000


def test_german_subordinate_clauses_end_with_their_verb() -> None:
    checked = 0
    for tree in trees(1500):
        tokens = german.sentence(tree)
        for clause in [part.subordinate for part in tree.parts if part.subordinate is not None]:
            if clause.also is None:
                verb = {clause.key + offset for offset in (Key.VERB, Key.AUXILIARY, Key.MODAL, Key.PASSIVE)}
                last = max(j for j, token in enumerate(tokens) if verb & set(token[1]))
                assert tokens[last + 1][0] in PUNCTUATION, text(tokens)
                checked += 1
    assert checked > 200


def test_german_main_clauses_have_the_verb_second() -> None:
    checked = 0
    for tree in trees(2500):
        part = tree.parts[0]
        front = part.main.front
        if not part.first and front is not None:
            tokens = german.sentence(tree)
            subject = part.main.subject
            assert subject is not None
            verb = {part.main.key + offset for offset in (Key.VERB, Key.AUXILIARY, Key.MODAL, Key.PASSIVE)}
            finite = min(j for j, token in enumerate(tokens) if verb & set(token[1]))
            # Nothing of the subject stands before the finite verb, and all that does is one phrase.
            inside = range(subject.key, subject.key + NP_KEYS)
            assert all(key not in inside for token in tokens[:finite] for key in token[1])
            checked += 1
    assert checked > 200


def test_turkish_sentences_end_with_their_predicate() -> None:
    for tree in trees(1000):
        tokens = turkish.sentence(tree)
        main = tree.parts[-1].main
        last = main.also or main
        particle = re.fullmatch(r"m[ıiuü](y?[ıiuü][mz]|s[ıiuü]n|yd[ıiuü](m|n|k|lar|ler)?)?", tokens[-2][0])
        predicate = tokens[-3 if particle else -2]
        keys = range(last.key, last.key + CLAUSE_KEYS)
        place = last.complement is not None and last.verb is lexicon.BE
        assert place or any(key in keys for key in (*predicate[1], *predicate[2])), text(tokens)


def test_german_finite_verbs_agree_with_pronouns() -> None:
    endings = {"Du": r".*t", "Wir": r"(sind|.*n)", "Ich": r"(?!.*st$).*"}
    seen = Counter[str]()
    for pair in sample("de"):
        first, second, *_ = pair.target.split()
        if first in endings:
            assert re.fullmatch(endings[first], second), pair
            seen[first] += 1
    assert min(seen.values()) > 20


@pytest.mark.parametrize(
    ("word", "plural", "possessor", "case", "form"),
    [
        ("kitap kitab", False, -1, "acc", "kitabı"),
        ("köpek köpeğ", False, 2, "dat", "köpeğine"),
        ("su suy", False, -1, "gen", "suyun"),
        ("şehir şehr", False, -1, "loc", "şehirde"),
        ("arkadaş arkadaş", False, 0, "ins", "arkadaşımla"),
        ("otobüs otobüs", True, 3, "abl", "otobüslerimizden"),
    ],
)
def test_turkish_nouns(word: str, plural: bool, possessor: int, case: str, form: str) -> None:
    stem, soft = word.split()
    assert noun_form(stem, soft, plural, possessor, case) == form


@pytest.mark.parametrize(
    ("stem", "ending", "form"),
    [
        ("git", "Iyor", "gidiyor"),
        ("söyle", "Iyor", "söylüyor"),
        ("ye", "(y)AcAk", "yiyecek"),
        ("gör", "Ir", "görür"),
        ("yaz", "Ir", "yazar"),
        (stem_of("uyu", False, False, True), "Iyor", "uyumuyor"),
        (stem_of("aç", True, True, False), "Ir", "açılabilir"),
    ],
)
def test_turkish_verbs(stem: str, ending: str, form: str) -> None:
    assert verb_form(stem, ending) == form


def test_alignment_astext() -> None:
    assert Pair("a b", "c d", ((0, 1), (1, 0)), ((0, 0),)).alignment == "0p0 0-1 1-0"


def test_write(tmp_path: Path) -> None:
    told: list[int] = []
    paths = phrasebook.write(tmp_path / "made", language="tr", train=700, valid=20, test=10, progress=told.append)
    assert {split: path.name for split, path in paths.items()} == {split: f"{split}.tsv" for split in phrasebook.SPLITS}
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["test.tsv", "train.tsv", "valid.tsv"]
    assert told == [500, 730]
    lines = paths["test"].read_text(encoding="utf-8").splitlines()
    wanted = pairs(10, language="tr", split="test")
    assert lines == [f"{pair.source}\t{pair.target}\t{pair.alignment}" for pair in wanted]
    texts = phrasebook.write(
        tmp_path / "made", language="tr", train=3, valid=2, test=10, ending="txt", line=lambda pair: pair.source
    )
    assert texts["test"].read_text(encoding="utf-8").splitlines() == [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize("split", ["train", "test"])
def test_nothing_that_is_there_is_replaced(split: str, tmp_path: Path) -> None:
    (tmp_path / f"{split}.tsv").write_text("mine")
    with pytest.raises(OutputError, match=rf"{split}\.tsv exists; give another folder"):
        phrasebook.write(tmp_path, train=3, valid=2, test=1)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(f"{split}.tsv", "mine")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"language": "fr"}, "unknown language 'fr'; the phrasebook has 'de' and 'tr'"),
        ({"split": "dev"}, "unknown split 'dev'; the phrasebook has 'train' and 'valid' and 'test'"),
        ({"words": (20, 5)}, r"words \(20, 5\) is an empty range; try \(5, 20\)"),
        ({"words": (2, 9)}, r"words \(2, 9\) start below the shortest sentence; try \(3, 9\)"),
        ({"size": -1}, r"size \(-1\) of train is negative"),
    ],
)
def test_errors_say_what_would_do(wrong: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"size": 1} | wrong
    with pytest.raises(ValueError, match=message):
        pairs(**arguments)  # type: ignore[arg-type]


def test_asking_for_more_sentences_than_there_are_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrasebook, "_PATIENCE", 3)
    with pytest.raises(ValueError, match=r"size \(1000000\) of test is too large: of 3 to 3 words"):
        list(pairs(10**6, split="test", words=(3, 3)))
