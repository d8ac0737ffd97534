"""Tokenizers of other programs: the tokens, texts and frames that `transformers` has, saved as data and read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.forms import Formed, TextForm
from regard.data.marks import NATIVE, Frame, Marks, marks_from_json, marks_to_json
from regard.data.modalities.text import Text, TextSettings
from regard.data.tokenizers.kinds import load_tokenizer, train_tokenizer
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.published import BYTE_OF, FileTokens, PieceTokens, Published
from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface.given import Given
from regard.exchange.huggingface.native import tokenizer_of
from regard.exchange.huggingface.tokens import read_tokenizers, write_tokenizer
from tests import published
from tests.conftest import whole

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
ODD = published.odd_strings(1000)
Make = Callable[[Path], Path]


def of(folder: Path, kind: str, size: int) -> dict[str, Published]:
    config = {"model_type": kind, "decoder_start_token_id": 0}
    return read_tokenizers(Given.read(folder, config), size, size)


def theirs_of(folder: Path, name: str) -> Any:
    return published.quietly(getattr(transformers, name).from_pretrained, folder)


def says(folder: Path, **settings: Any) -> Path:
    """A folder whose tokenizer_config.json says more."""
    file = folder / "tokenizer_config.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**before, **settings}), encoding="utf-8")
    return folder


def rinna(folder: Path) -> Path:
    """A SentencePiece model that another network than T5 reads as T5 does, as rinna publishes GPT-2 and RoBERTa."""
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(published.sentencepiece_model())
    return says(folder, tokenizer_class="T5Tokenizer", bos_token="<s>", pad_token="<s>", extra_ids=0)


def old(kind: str) -> Make:
    """Files without a tokenizer.json."""
    return lambda folder: published.byte_level(folder, kind, old=True)


CASES = [
    pytest.param("GPT2Tokenizer", "gpt2", lambda x: published.byte_level(x, "gpt2"), id="gpt2"),
    pytest.param("BertTokenizer", "bert", published.word_piece, id="bert"),
    pytest.param("T5Tokenizer", "t5", published.unigram, id="t5"),
    pytest.param("MarianTokenizer", "marian", published.marian, id="marian"),
    pytest.param(
        "RobertaTokenizer", "roberta", lambda x: published.byte_level(x, "roberta"), id="roberta", marks=whole
    ),
    pytest.param("BartTokenizer", "bart", old("bart"), id="bart-old", marks=whole),
    pytest.param("GPT2Tokenizer", "gpt2", old("gpt2"), id="gpt2-old", marks=whole),
    pytest.param(
        "BertTokenizer", "bert", lambda x: published.word_piece(x, lower=False, old=True), id="bert-old", marks=whole
    ),
    pytest.param("T5Tokenizer", "t5", lambda x: published.unigram(x, old=True), id="t5-old", marks=whole),
    pytest.param("MBartTokenizer", "mbart", lambda x: published.unigram(x, "mbart"), id="mbart", marks=whole),
    pytest.param(
        "MBartTokenizer", "mbart", lambda x: published.unigram(x, "mbart", old=True), id="mbart-old", marks=whole
    ),
    pytest.param(
        "XLMRobertaTokenizer", "xlm-roberta", lambda x: published.unigram(x, "xlm-roberta", old=True), id="xlmr-old",
        marks=whole,
    ),
    pytest.param(
        "MBart50Tokenizer", "mbart", lambda x: says(published.unigram(x, "mbart50", old=True), src_lang="de_DE",
        tokenizer_class="MBart50Tokenizer"), id="mbart50-old",
    ),
    pytest.param("T5Tokenizer", "roberta", rinna, id="roberta-spiece"),
    pytest.param("BertTokenizer", "gpt2", lambda x: says(published.word_piece(x, old=True),
        tokenizer_class="BertTokenizer"), id="gpt2-bert", marks=whole),
    pytest.param("MBart50Tokenizer", "mbart", lambda x: says(published.unigram(x, "mbart50"), src_lang="ro_RO"),
        id="mbart50", marks=whole),
    pytest.param("MBartTokenizer", "mbart", lambda x: says(published.unigram(x, "mbart"), src_lang="de_DE"),
        id="mbart-de", marks=whole),
    pytest.param("T5Tokenizer", "gpt2", rinna, id="gpt2-spiece", marks=whole),
    pytest.param("BertTokenizer", "bert", lambda x: says(published.word_piece(x), do_lower_case=False,
        tokenize_chinese_chars=False), id="bert-cased"),
    pytest.param("BertTokenizer", "bert", lambda x: says(published.word_piece(x), strip_accents=False),
        id="bert-accents", marks=whole),
    pytest.param("GPT2Tokenizer", "gpt2", lambda x: says(published.byte_level(x, "gpt2"), add_prefix_space=True),
        id="gpt2-prefix"),
    pytest.param("MarianTokenizer", "marian", lambda x: says(published.marian(x), clean_up_tokenization_spaces=True),
        id="marian-tidy"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "make"), CASES)
def test_odd_texts_have_the_tokens_that_transformers_gives_them(
    tmp_path: Path, name: str, kind: str, make: Make
) -> None:
    """And come back to the same text; also after the tokenizer was saved and read again."""
    theirs = theirs_of(make(tmp_path / "there"), name)
    size = max(theirs.get_vocab().values()) + 4
    read = of(tmp_path / "there", kind, size)["tokens"]
    read.save(tmp_path, "tokens")
    ours = load_tokenizer(tmp_path, "tokens")
    assert ours.marks == read.marks
    wanted = theirs(ODD, add_special_tokens=False)["input_ids"]
    assert ours.encode_many(ODD) == wanted
    assert [ours.encode(text) for text in ODD[:50]] == wanted[:50]
    assert [ours.decode(ids) for ids in wanted] == theirs.batch_decode(wanted, skip_special_tokens=True)
    assert ours.size == size
    assert all(len(ours.pieces(ids)) == len(ours.words(ids)) == len(ids) for ids in wanted)
    frame = ours.marks.frame(begins=False, ends=False)
    assert frame.around(ours.encode("the dog")) == theirs("the dog")["input_ids"]
    if kind not in ("gpt2", "marian"):  # which may put nothing between, so that nobody could tell
        both = [*ours.encode("the dog"), *frame.between, *ours.encode("Alice")]
        assert frame.around(both) == theirs("the dog", "Alice")["input_ids"]


ADDED: dict[str, tuple[str, Make]] = {
    "marian": ("MarianTokenizer", published.marian),
    "bert": ("BertTokenizer", lambda x: published.word_piece(x, old=True)),
    "gpt2": ("GPT2Tokenizer", old("gpt2")),
    "t5": ("T5Tokenizer", lambda x: published.unigram(x, old=True)),
    "xlm-roberta": ("XLMRobertaTokenizer", lambda x: published.unigram(x, "xlm-roberta", old=True)),
}


@pytest.mark.parametrize("kind", ["marian", "bert", *(pytest.param(x, marks=whole) for x in list(ADDED)[2:])])
def test_tokens_that_were_added_to_older_files_are_found(tmp_path: Path, kind: str) -> None:
    name, make = ADDED[kind]
    folder = make(tmp_path / "there")
    size = len(theirs_of(folder, name))
    (folder / "added_tokens.json").write_text(json.dumps({"Zürich": size + 1, "<new>": size}), encoding="utf-8")
    theirs = theirs_of(folder, name)
    of(folder, kind, size + 2)["tokens"].save(tmp_path, "tokens")
    ours, texts = load_tokenizer(tmp_path, "tokens"), ["the dog <new> Zürich", "a<new>b", *ODD[:200]]
    wanted = theirs(texts, add_special_tokens=False)["input_ids"]
    assert size in wanted[0]
    assert ours.encode_many(texts) == wanted
    assert [ours.decode(ids) for ids in wanted] == theirs.batch_decode(wanted, skip_special_tokens=True)
    if kind == "marian":
        write_tokenizer({"tokens": of(folder, kind, size + 2)["tokens"]}, tmp_path)
        assert json.loads((tmp_path / "added_tokens.json").read_text(encoding="utf-8")) == {
            "<new>": size,
            "Zürich": size + 1,
        }
    with pytest.raises(ModelError, match=r"added_tokens\.json|up to number"):
        of(folder, kind, size)
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": "x"}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"added_tokens\.json has '<new>' as 'x', which is no number"):
        of(folder, kind, size)


def test_tokenizers_that_cannot_be_had_are_refused_by_name(tmp_path: Path) -> None:
    folder = says(published.word_piece(tmp_path / "a", old=True), tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(ModelError, match=r"names a BertJapaneseTokenizer, and there is no tokenizer\.json"):
        of(folder, "bert", 300)
    says(folder, tokenizer_class="GPT2TokenizerFast")
    with pytest.raises(ModelError, match=r"vocab\.txt is there, but a GPT2Tokenizer is made of vocab"):
        of(folder, "bert", 300)
    folder = says(published.byte_level(tmp_path / "b", "gpt2"), split_special_tokens=True)
    with pytest.raises(ModelError, match="has split_special_tokens: true; Regard finds special tokens in texts"):
        of(folder, "gpt2", 400)
    folder = published.unigram(tmp_path / "c", "xlm-roberta")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=r"its vocabulary has no en_XX, the language of sources \(src_lang in"):
        of(folder, "mbart", 400)
    config = {"model_type": "gpt2", "decoder_start_token_id": [2]}
    with pytest.raises(ModelError, match=r"decoder_start_token_id is \[2\], and should be one id"):
        read_tokenizers(Given.read(published.byte_level(tmp_path / "d", "gpt2"), config), 400, 400)


@pytest.mark.parametrize("separate", [False, True])
def test_marian_cuts_what_is_written_with_a_model_of_its_own(tmp_path: Path, separate: bool) -> None:
    folder = published.marian(tmp_path / "there", separate=separate)
    theirs = theirs_of(folder, "MarianTokenizer")
    found = of(folder, "marian", 400)
    source, target = found.get("source", found.get("tokens")), found.get("target", found.get("tokens"))
    assert source is not None
    assert target is not None
    for name, tokenizer in found.items():
        tokenizer.save(tmp_path, name)
    read = {name: load_tokenizer(tmp_path, name) for name in found}
    written = (read.get("target") or read["tokens"]).for_target
    texts = [text for text in ODD if "<pad>" not in text][
        :200
    ]  # where each has its own, theirs takes that of the source
    wanted = [ids[:-1] for ids in theirs(text_target=texts)["input_ids"]]
    assert written.encode_many(texts) == wanted
    assert [written.decode(ids) for ids in wanted] == theirs.batch_decode(wanted, skip_special_tokens=True)
    assert written.encode_many(texts) != source.encode_many(texts)
    assert isinstance(source, PieceTokens)
    assert source.encode(">>de<< the dog")[0] == source.ids[">>de<<"]


def test_pieces_show_what_goes_on_a_word_and_words_are_what_stands_between_blanks(tmp_path: Path) -> None:
    text = "the dog  sees 日本語"
    made = {
        "gpt2": published.byte_level(tmp_path / "gpt2", "gpt2"), "bert": published.word_piece(tmp_path / "bert"),
        "t5": published.unigram(tmp_path / "t5"), "marian": published.marian(tmp_path / "marian"),
    }  # fmt: skip
    for kind, folder in made.items():
        tokenizer = of(folder, kind, 400)["tokens"]
        ids = tokenizer.encode(text)
        numbers, pieces = tokenizer.words(ids), tokenizer.pieces(ids)
        assert pieces[:2] == ["the", "dog"]
        assert numbers[:2] == [0, 1]
        assert max(numbers) == (5 if kind == "bert" else 3)  # BERT's ids do not say that 日本語 is one word
        assert tokenizer.words(tokenizer.marks.frame(begins=True, ends=True).around(ids))[-1] == (
            3 if kind == "gpt2" else -1
        )
        split = tokenizer.encode("the doggedly")
        assert any(piece.startswith("·") for piece in tokenizer.pieces(split))
        assert max(tokenizer.words(split)) == 1
    assert tokenizer.words([]) == []


def test_a_blank_belongs_to_the_word_after_it_and_at_the_end_to_the_last(tmp_path: Path) -> None:
    tokenizer = of(published.byte_level(tmp_path / "there", "gpt2"), "gpt2", 400)["tokens"]
    assert tokenizer.words(tokenizer.encode("the   dog")) == [0, 1, 1, 1]
    assert tokenizer.words(tokenizer.encode("the  ")) == [0, 0, 0]
    assert set(tokenizer.words(tokenizer.encode("  "))) == {-1}
    assert tokenizer.pieces(tokenizer.encode("ĳ")) == ["<0xC4>", "·<0xB3>"]


def test_words_of_word_pieces_are_told_apart_where_something_is_said_of_each(tmp_path: Path) -> None:
    tokenizer = of(published.word_piece(tmp_path / "there"), "bert", 200)["tokens"]
    source = Text(TextSettings())
    source.tokenizer, source.by_word, source.several = tokenizer, True, True
    (item,) = source.encode_many(["Alice doesn't see 日本語 !\tthe dog,"])
    words = source.words(item)
    assert max(words) + 1 == 5 + 2
    assert [words.count(number) for number in range(7)] == [1, 3, 1, 3, 1, 1, 2]
    plain = Text(TextSettings())
    plain.tokenizer, plain.several = tokenizer, True
    (other,) = plain.encode_many(["Alice doesn't see 日本語 !\tthe dog,"])
    assert source.pack([item]).tolist() == plain.pack([other]).tolist()
    assert source.pieces(item)[:6] == ["[CLS]", "alice", "doesn", "·'", "·t", "see"]
    assert (source.dtype, plain.dtype) == ("uint16", "uint16")


def test_frames_are_where_each_vocabulary_has_them(tmp_path: Path) -> None:
    bert = of(published.word_piece(tmp_path / "bert"), "bert", 200)["tokens"].marks
    assert (bert.source, bert.mask, bert.unknown) == (Frame((2,), (3,), (3,)), 4, 1)
    roberta = of(published.byte_level(tmp_path / "roberta", "roberta"), "roberta", 400)["tokens"].marks
    assert roberta.source == Frame((0,), (2, 2), (2,))
    gpt2 = of(published.byte_level(tmp_path / "gpt2", "gpt2"), "gpt2", 400)["tokens"].marks
    assert (gpt2.source, gpt2.end, gpt2.begin, gpt2.unknown) == (Frame((), (0,), ()), 0, 0, None)
    mbart = of(published.unigram(tmp_path / "mbart", "mbart"), "mbart", 400)["tokens"]
    assert mbart.marks.source is not None
    assert [mbart.marks.names[i] for i in mbart.marks.source.after] == ["</s>", "en_XX"]


def test_marks_are_saved_as_data() -> None:
    some = Marks({5: "a"}, end=5, first=(5, 5), counted=1, source=Frame((5,), (5, 5), ()), banned=((5, 6), (7, 8, 9)))
    assert "banned" not in marks_to_json(NATIVE), "a file from before there were any is the same vocabulary"
    for marks in (NATIVE, some):
        assert marks_from_json(json.loads(json.dumps(marks_to_json(marks)))) == marks
    odd: list[dict[str, Any]] = [{"end": "x"}, {"first": [None]}, {"names": []}, {"source": 3}, {"pad": 0.5}]
    odd += [{"banned": 3}, {"banned": [3]}, {"banned": [[3]]}, {"banned": [[3, "x"]]}]
    for damage in odd:
        with pytest.raises((ValueError, TypeError, AttributeError)):
            marks_from_json({**marks_to_json(NATIVE), **damage})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda x: (x / "tokens.tokenizer.json").unlink(), "has no tokenizer"),
        (lambda x: (x / "tokens.tokenizer.json").write_text("{}"), "cannot be read"),
        (lambda x: (x / "tokens.tokenizer.json").write_text("[" * 10_000), "cannot be read"),
        (lambda x: (x / "tokens.json").write_text('{"kind": "tokenizers"}'), "cannot be read"),
        (lambda x: (x / "tokens.json").write_text('{"kind": "tokenizers", "size": -1, "marks": {}}'), "cannot be read"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    of(published.byte_level(tmp_path / "there", "gpt2"), "gpt2", 400)["tokens"].save(tmp_path, "tokens")
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path, "tokens")


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has \d+ tokens up to number \d+, and the network reads 50"):
        of(published.byte_level(tmp_path / "there", "gpt2"), "gpt2", 50)
    with pytest.raises(ModelError, match="none of these is there"):
        of(tmp_path, "bert", 50)
    with pytest.raises(ModelError, match=r"source\.spm is not there"):
        of(tmp_path, "marian", 50)


@pytest.mark.parametrize("kind", ["word", "char", "byte", "unigram"])
def test_tokens_that_were_learnt_here_are_the_same_in_a_tokenizer_json(kind: str) -> None:
    """Save marks that stand in a text as letters, and SentencePiece's own sign for a blank."""
    tokenizer = train_tokenizer(published.TEXTS, kind, 350)
    made = tokenizer_of(tokenizer, NATIVE.frame(begins=True, ends=True))
    assert isinstance(made, FileTokens)
    signs = ("▁", "<pad>", "<unk>", "<s>", "</s>", "<sep>", "<mask>")
    for text in ODD:
        if not any(sign in text for sign in signs):
            ids = tokenizer.encode(text)
            assert made.encode(text) == ids
            if 1 not in ids:  # what is unknown leaves nothing there
                assert made.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["word", "char", "byte", "unigram"])
def test_sentinels_and_frames_are_in_a_tokenizer_json(kind: str) -> None:
    tokenizer = train_tokenizer(published.TEXTS, kind, 350, 3)
    made = tokenizer_of(tokenizer, tokenizer.marks.frame(begins=True, ends=True))
    assert isinstance(made, FileTokens)
    assert made.marks.sentinels == (6, 7, 8)
    ids, more = (tokenizer.encode(text) for text in ("the dog", "Alice"))
    assert made.encode("the dog") == ids
    both = made.backend.encode("the dog", "Alice")
    assert both.ids == [2, *ids, 4, *more, 3]
    assert both.type_ids == [0] * (len(ids) + 2) + [1] * (len(more) + 1)
    assert made.backend.encode("<extra_id_1>", add_special_tokens=False).ids == [7]


def test_tokens_of_word_pieces_are_told_apart_in_another_form_and_behind_prefixes(tmp_path: Path) -> None:
    plain = of(published.word_piece(tmp_path), "bert", 300)["tokens"]
    text = "the dog, Alice"
    ids = plain.encode_words([text])[0]
    assert max(ids) >= plain.size, "a comma that goes on a word"
    low = Formed(plain, TextForm(lower=True))
    assert (low.encode_words([text])[0], low.offsets(text)) == (ids, plain.offsets(text))
    marked = Prefixed(plain, ["<2de>", "<2fr>"])
    found = marked.encode_words([f"<2fr> {text}"])[0]
    assert [i % marked.size for i in found] == [plain.size + 1, *(i % plain.size for i in ids)]
    assert marked.words(found) == [-1, *plain.words(ids)]
    assert marked.pieces(found) == ["<2fr>", *plain.pieces(ids)]
    assert marked.offsets(f"<2fr> {text}") == [(0, 0), *((a + 6, b + 6) for a, b in plain.offsets(text))]


def test_tokens_without_a_counterpart_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"tokens\.kind bpe has no exact counterpart"):
        tokenizer_of(train_tokenizer(published.TEXTS, "bpe", 350), Frame())
    with pytest.raises(ConfigError, match=r"these tokens have prefixes \(<2de>\)"):
        tokenizer_of(Prefixed(train_tokenizer([], "byte", 350), ["<2de>"]), Frame())
    with pytest.raises(ConfigError, match=r"tokens.kind imported is a vocabulary that came with a model"):
        train_tokenizer(published.TEXTS, "imported", 350)


def test_each_byte_has_a_letter_of_its_own() -> None:
    assert sorted(BYTE_OF.values()) == list(range(256))
    assert BYTE_OF["Ġ"] == ord(" ")
