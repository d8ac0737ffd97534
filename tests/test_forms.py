"""Text in the form that a model reads and writes, and back: Unicode, jamo, case; in training, use and exports."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data.examples import Example
from regard.data.forms import Casing, Formed, Normalization, TextForm, formed
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokens import clean
from regard.errors import ConfigError, ModelError
from regard.exchange.onnx_runner import Runner
from tests.conftest import FULL
from tests.toy import sides_of, toy_config

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3),
        st.characters(min_codepoint=0x1100, max_codepoint=0x11FF),
        st.sampled_from(" \téÅßﬁ①İıΣς\u0301\u0308"),
    )
)
HAN = "한국어 단어"


@given(TEXTS)
def test_what_is_decomposed_is_composed_again(text: str) -> None:
    for form in (TextForm("nfc"), TextForm("nfd"), TextForm("jamo")):
        assert form.restore(form.prepare(text)) == clean(text)
    for form in (TextForm("nfkc"), TextForm("nfkd")):
        assert form.restore(form.prepare(text)) == clean(unicodedata.normalize("NFKC", text))
    assert TextForm("none").restore(TextForm("none").prepare(text)) == clean(text, compose=False)


@given(TEXTS, st.sampled_from(get_args(Normalization)), st.booleans())
def test_a_text_that_is_prepared_stays_so(text: str, how: Normalization, lower: bool) -> None:
    form = TextForm(how, lower)
    once = form.prepare(text)
    assert form.prepare(once) == once
    if lower:
        assert form.prepare(text) == form.prepare(text.lower())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "byte"])
@pytest.mark.parametrize("how", ["nfd", "jamo", "none"])
def test_tokenizers_keep_the_form(kind: str, how: Normalization) -> None:
    """A vocabulary of jamo spells words of which it has seen the letters alone."""
    form = TextForm(how)
    texts = [HAN, "국한 é e\u0301", "단국", "어한"]
    inner = train_tokenizer([form.prepare(text) for text in texts] * 3, kind, 400, compose=False)
    tokenizer = formed(Prefixed(inner, ["<KO>"]), form)
    for text in texts:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == (text if how == "none" else clean(text))
        assert tokenizer.encode_many([f"<KO> {text}"]) == [[inner.size, *ids]]
        assert len(tokenizer.words(ids)) == len(tokenizer.pieces(ids)) == len(ids)
    if kind == "char" and how == "jamo":
        assert tokenizer.decode(tokenizer.encode("학")) == "학"  # of letters that were met, and a syllable that was not
        assert len(tokenizer.encode(HAN)) == len(unicodedata.normalize("NFD", HAN))
    again = formed(tokenizer, TextForm())
    assert isinstance(again, Prefixed)
    assert again.inner is inner


# Case


GERMAN = [
    "Der Hund von Anna schläft. Er träumt von NASA und eBay.",
    "Heute sieht Anna den Hund der Frau.",
    "Die Frau und der Hund mögen Anna! Aber die NASA nicht.",
]


def test_words_get_their_most_frequent_form_and_sentences_a_capital() -> None:
    casing = Casing.learn(GERMAN)
    assert casing.words["hund"] == "Hund"
    assert "der" not in casing.words  # beginnings of sentences do not count
    assert (casing.first, casing.inner) == (True, True)
    for text in GERMAN:
        assert casing.restore(text.lower()) == text
    assert casing.restore('„der hund" sagt anna. "er bellt."') == '„Der Hund" sagt Anna. "Er bellt."'
    assert Casing.learn(["a b", "c D"]).restore("c d") == "c D"
    assert Casing.learn([]).restore("a b") == "a b"


WORDS = st.sampled_from(["haus", "Haus", "eBay", "am", "See", "x1", "Öl."])


@given(st.lists(st.lists(WORDS, max_size=6).map(" ".join)))
def test_lower_casing_and_recasing_change_case_alone(texts: list[str]) -> None:
    form = TextForm("nfc", True, Casing.learn(texts))
    for text in texts:
        assert form.restore(form.prepare(text)).lower() == clean(text).lower()


def test_casing_is_saved(tmp_path: Path) -> None:
    casing = Casing.learn(GERMAN)
    casing.save(tmp_path, "target")
    assert Casing.load(tmp_path, "target") == casing
    (tmp_path / "target.case.json").write_text('{"words": 3}')
    with pytest.raises(ModelError, match=r"target\.case\.json cannot be read .* the folder is damaged"):
        Casing.load(tmp_path, "target")
    with pytest.raises(ModelError, match=r"has no gone\.case\.json; the folder is not whole"):
        Casing.load(tmp_path, "gone")


# Sides, training, exports


def test_each_side_has_its_own_form_over_one_vocabulary() -> None:
    sides = sides_of({"case": "lower"}, {"normalize": "jamo"}, tokens={"kind": "char"})
    sides.learn(lambda: iter([Example(f"ABC {HAN}", HAN)]), {}, lambda text: None)
    assert sides.source.encode_many(["aBc"]) == sides.source.encode_many(["abc"])
    assert sides.target.encode(HAN) != sides.source.encode_many([HAN])[0]
    assert sides.target.decode(sides.target.encode(HAN)) == HAN
    assert len(sides.target.encode(HAN)) > len(HAN)
    assert isinstance(sides.texts["target"].tokenizer, Formed)
    assert sides.target.scores([HAN], [unicodedata.normalize("NFD", HAN)])["exact"].value == 100


def test_source_and_target_of_different_tokens_read_letters_and_write_sounds() -> None:
    sides = sides_of({"tokens": {"kind": "char"}, "case": "lower"}, {"tokens": {"kind": "word"}})
    sides.learn(lambda: iter([Example("Cat", "K AE1 T"), Example("tact", "T AE1 K T")]), {}, lambda text: None)
    assert len(sides.source.encode_many(["CAT"])[0]) == 3
    assert sides.target.decode(sides.target.encode("T AE1 K")) == "T AE1 K"
    assert len(sides.target.encode("T AE1 K")) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": {"normalize": "nfx"}}, "'normalize' in .*source.* is 'nfx'"),
        ({"source": {"case": "recase"}}, "'case' in .*source.* is 'recase'"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        regard.Config.parse(settings)


def write(folder: Path) -> None:
    words = ["Anna", "hund", "SEHR", "Öl"]
    rows = [f"{words[i % 4].upper()} {words[i * 7 % 3]}\t{words[i % 4]} {words[i * 7 % 3]}\n" for i in range(60)]
    for split in ("train", "valid", "test"):
        (folder / f"{split}.tsv").write_text("".join(rows[: 60 if split == "train" else 12]))


def test_a_model_in_lower_case_writes_capitals(tmp_path: Path) -> None:
    """Trained, loaded, evaluated and exported to ONNX."""
    write(tmp_path)
    sides = {"source": {"case": "lower", "normalize": "nfd"}, "target": {"case": "recase", "normalize": "nfd"}}
    changes = {"tokens": {"kind": "char"}, "model": {"d_model": 32}, "training": {"steps": 60, "validate_every": 30}}
    system = regard.train(toy_config(tmp_path, **sides, **changes))
    sources = ["ANNA anna", "öl HUND"]
    outputs = system.generate(sources)
    assert outputs == system.generate([unicodedata.normalize("NFD", x.title()) for x in sources])
    assert outputs == [unicodedata.normalize("NFC", text) for text in outputs]
    assert any(text != text.lower() for text in outputs)
    loaded = regard.load(tmp_path / "run", device="cpu")
    assert loaded.generate(sources) == outputs
    moved = loaded.save(tmp_path / "moved")
    assert regard.load(moved, device="cpu").generate(sources) == outputs
    scores = loaded.test().scores
    assert scores["chrf"].value > 0
    facts = json.dumps({name: side.form.to_json() for name, side in loaded.task.sides.texts.items()})
    assert TextForm.from_json(json.loads(facts)["target"], moved, "target") == loaded.task.sides.texts["target"].form
    if not FULL:  # tracing takes a minute
        return
    regard.export(loaded, tmp_path / "onnx", to="onnx")
    assert Runner(tmp_path / "onnx").generate(sources) == outputs
    assert json.loads((tmp_path / "onnx" / "runner.json").read_text())["forms"]["target"]["recased"]
