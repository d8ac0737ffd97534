"""Models of `transformers`, imported: what they write, how they score, what is refused, and the way back."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import regard
from regard.data.marks import NATIVE
from regard.data.modalities.sounds import wav
from regard.errors import ConfigError, ModelError
from regard.exchange import export, import_model
from regard.exchange.huggingface import family_of
from regard.exchange.huggingface.generating import search_settings
from regard.exchange.huggingface.given import Given
from regard.exchange.huggingface.importing import find
from regard.exchange.huggingface.whisper_prompt import NAMES
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.settings import Config
from regard.system import System
from regard.training.watcher import Watcher
from tests import published
from tests.conftest import whole
from tests.test_cli import good, refused

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
TEXTS = ["the dog sees the house", "Alice hears 31 birds .", "tiny"]
SMALL = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40,
}  # fmt: skip
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
LABELS: dict[str, Any] = {
    "num_labels": 3,
    "id2label": {0: "good", 1: "bad", 2: "odd"},
    "label2id": {"good": 0, "bad": 1, "odd": 2},
}


def drawn(model: Any, ends: float = 0.0) -> Any:
    """With weights that say something, and an end that comes now and then."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point() and tensor.dim() and (tensor.requires_grad or "embed_positions" not in name):
                tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator) + 0.5 * ("orm" in name))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, model.config.eos_token_id] += ends
    return model.eval()


def saved(model: Any, folder: Path, **generation: Any) -> Path:
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    published.quietly(model.save_pretrained, folder)
    return folder


def auto(folder: Path) -> Any:
    return published.quietly(transformers.AutoTokenizer.from_pretrained, folder)


class Made:
    """A model there, the same here, and its tokenizer there."""

    def __init__(self, folder: Path, theirs: Any, tokenizer: Any = None) -> None:
        self.folder, self.theirs, self.tokenizer = folder, theirs, tokenizer
        self.place = folder.with_name(f"{folder.name}-here")
        self.ours: System = import_model(folder, self.place)


def marian(folder: Path) -> Made:
    ids = json.loads((published.marian(folder) / "vocab.json").read_text())
    marks = {"pad_token_id": ids["<pad>"], "eos_token_id": ids["</s>"], "decoder_start_token_id": ids["<pad>"]}
    model = drawn(transformers.MarianMTModel(transformers.MarianConfig(vocab_size=len(ids), **SMALL, **marks)), 5.5)
    saved(model, folder, bad_words_ids=[[ids["<pad>"]]], max_length=16, forced_eos_token_id=ids["</s>"], num_beams=4)
    return Made(folder, model, published.quietly(transformers.MarianTokenizer.from_pretrained, folder))


def bart(folder: Path) -> Made:
    tokenizer = auto(published.byte_level(folder, "bart"))
    marks = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = drawn(
        transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=330, **SMALL, **marks)), 6.0
    )
    saved(
        model, folder, forced_bos_token_id=0, forced_eos_token_id=2, max_length=14, no_repeat_ngram_size=2, num_beams=3,
        length_penalty=2.0,
    )  # fmt: skip
    return Made(folder, model, tokenizer)


def t5(folder: Path) -> Made:
    tokenizer = auto(published.unigram(folder))
    config = transformers.T5Config(
        vocab_size=len(tokenizer) + 3, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    model = drawn(transformers.T5ForConditionalGeneration(config))
    with torch.no_grad():  # an end that comes now and then: there is no bias that could make it likely
        model.shared.weight[1] = 0.5 * torch.randn(16, generator=torch.Generator().manual_seed(8))
    saved(model, folder, max_length=12, forced_eos_token_id=1)
    return Made(folder, model, tokenizer)


def mbart(folder: Path) -> Made:
    published.unigram(folder, "mbart")
    tokenizer = published.quietly(transformers.MBartTokenizer.from_pretrained, folder, src_lang="en_XX")
    marks = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    start = tokenizer.convert_tokens_to_ids("ro_RO")
    config = transformers.MBartConfig(vocab_size=len(tokenizer), **SMALL, **marks, decoder_start_token_id=start)
    model = drawn(transformers.MBartForConditionalGeneration(config))
    saved(model, folder, max_length=12, forced_eos_token_id=2)
    return Made(folder, model, tokenizer)


def gpt2(folder: Path) -> Made:
    tokenizer = auto(published.byte_level(folder, "gpt2"))
    config = transformers.GPT2Config(
        vocab_size=330, n_embd=16, n_layer=2, n_head=2, n_positions=40, bos_token_id=0, eos_token_id=0
    )
    model = drawn(transformers.GPT2LMHeadModel(config))
    return Made(saved(model, folder, max_length=20), model, tokenizer)


def bert(folder: Path, name: str = "BertForMaskedLM", **more: Any) -> Made:
    tokenizer = auto(published.word_piece(folder))
    model = drawn(getattr(transformers, name)(transformers.BertConfig(vocab_size=len(tokenizer), **ENCODER, **more)))
    published.quietly(model.save_pretrained, folder)
    return Made(folder, model, tokenizer)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def made(room: Path) -> Callable[[Callable[[Path], Made]], Made]:
    known: dict[str, Made] = {}

    def get(make: Callable[[Path], Made]) -> Made:
        name = make.__name__
        if name not in known:
            known[name] = make(room / name)
        return known[name]

    return get


Get = Callable[[Callable[[Path], Made]], Made]
BOTH = [marian, bart, pytest.param(t5, marks=whole), pytest.param(mbart, marks=whole)]


@pytest.mark.parametrize("make", BOTH)
def test_what_is_written_is_what_transformers_writes(made: Get, make: Callable[[Path], Made]) -> None:
    """Greedily and with a beam, by the settings that came with the model; and so are the scores of texts."""
    one = made(make)
    task, end = one.ours.task, one.ours.task.target.marks.end
    lengths = set()
    for beam in (1, None):
        search: dict[str, Any] = {} if beam is None else {"beam": beam}
        options = {} if beam is None else {"num_beams": beam}
        for text in TEXTS:
            (found,) = one.theirs.generate(**one.tokenizer(text, return_tensors="pt"), **options).tolist()
            ours = one.ours.outputs([text], **search)[0][0]
            assert [*task.first, *ours.tokens, end] == found
            assert ours.text == one.tokenizer.decode(found, skip_special_tokens=True)
            lengths.add(len(found))
    assert one.ours.config.search.beam == (one.theirs.generation_config.num_beams or 1)
    assert make is mbart or min(lengths) < max(lengths), "some should end before they have to"
    (pair,) = one.ours.score(TEXTS[:1], TEXTS[1:2])
    target = torch.tensor([[*task.first, *task.target.encode(TEXTS[1]), end]])
    with torch.no_grad():
        logits = one.theirs(**one.tokenizer(TEXTS[0], return_tensors="pt"), decoder_input_ids=target[:, :-1]).logits[0]
    wanted = logits.log_softmax(-1).gather(1, target[0, 1:, None]).squeeze(1)[len(task.first) - 1 :]
    assert torch.allclose(torch.tensor(pair.tokens), wanted, atol=2e-5)


def test_a_forced_beginning_is_neither_scored_nor_shown(made: Get) -> None:
    ours = made(bart).ours
    assert ours.task.first == (2, 0)
    shown = ours.explain(TEXTS[0], TEXTS[1])
    assert shown.inputs[0] == "<s>"
    assert len(shown.inputs) == len(shown.target) == len(shown.log_probs) == len(ours.task.target.encode(TEXTS[1])) + 1
    for layer in shown.layers:
        sizes = {"encoder": (len(shown.source),) * 2, "decoder": (len(shown.target),) * 2}
        assert layer.weights.shape[1:] == sizes.get(layer.kind, (len(shown.target), len(shown.source)))
        assert layer.weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
    assert shown.source[0] == "<s>"
    assert shown.source[-1] == "</s>"


def test_a_language_model_begins_with_its_one_mark(made: Get) -> None:
    one = made(gpt2)
    for text in TEXTS:
        given = torch.tensor([[0, *one.tokenizer(text)["input_ids"]]])
        (found,) = one.theirs.generate(given, attention_mask=torch.ones_like(given), pad_token_id=0).tolist()
        ours = one.ours.outputs([text])[0][0]
        assert [0, *ours.tokens] == (found[:-1] if found[-1] == 0 else found)
        (pair,) = one.ours.score([text])
        with torch.no_grad():
            log_probs = one.theirs(given).logits[0].log_softmax(-1)
        wanted = log_probs[:-1].gather(1, given[0, 1:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(pair.tokens[:-1]), wanted, atol=2e-5)


def test_masks_are_filled_in_as_by_transformers(made: Get) -> None:
    one = made(bert)
    text = "the dog [MASK] the house ."
    given = one.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = one.theirs(**given).logits[0, 3]
    said = one.ours.outputs([text])[0][0]
    marks = list(one.ours.task.target.marks.names)
    logits[[mark for mark in marks if mark != one.ours.task.target.marks.unknown]] = -float("inf")
    assert said.tokens[2] == logits.argmax()
    assert said.log_prob == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)
    assert one.ours.explain(text).source[0] == "[CLS]"


def test_a_head_says_of_a_pair_what_it_says_there(room: Path) -> None:
    """Which takes the vectors of segments, and marks between."""
    one = bert(room / "classifier", "BertForSequenceClassification", **LABELS)
    with torch.no_grad():
        wanted = one.theirs(**one.tokenizer("the dog", "Alice hears", return_tensors="pt")).logits[0].log_softmax(-1)
    found = one.ours.outputs(["the dog\tAlice hears"], beam=3, nbest=3)[0]
    assert {output.text: output.log_prob for output in found} == pytest.approx(
        {label: float(x) for label, x in zip(("good", "bad", "odd"), wanted, strict=True)}, abs=1e-4
    )

    export(one.ours, room / "classifier-out", to="huggingface")
    again = auto(room / "classifier-out")("the dog", "Alice hears")
    assert dict(again) == dict(one.tokenizer("the dog", "Alice hears")), "segments, where the network reads them"


def test_a_head_of_one_label_predicts_a_number(room: Path) -> None:
    """As `transformers` has regression."""
    one = bert(room / "regression", "BertForSequenceClassification", num_labels=1)
    wanted = one.theirs(**one.tokenizer("the dog", "Alice hears", return_tensors="pt")).logits.item()
    assert one.ours.config.target.kind == "number"
    assert float(one.ours.generate(["the dog\tAlice hears"])[0]) == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(ConfigError, match=r"problem_type: 'multi_label_classification'; .* or predict one number"):
        bert(room / "several", "BertForSequenceClassification", num_labels=1, problem_type="multi_label_classification")
    config = {"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}
    with pytest.raises(ConfigError, match=r"id2label: .* one of several labels"):
        assert not family_of({**config, "id2label": {"0": "a"}}).labels


@pytest.mark.parametrize("make", ["bert", "roberta"])
def test_a_head_for_numbers_that_was_trained_here_is_a_regression_there(make: str, room: Path, tmp_path: Path) -> None:
    """In the units of the data, by whose mean and spread it learnt."""
    if make == "bert":
        place = bert(room / "body").place
    else:
        published.byte_level(room / "roberta-body", "roberta")
        config = transformers.RobertaConfig(
            vocab_size=330, **{**ENCODER, "max_position_embeddings": 42}, type_vocab_size=1, pad_token_id=1
        )
        folder = saved(drawn(transformers.RobertaForMaskedLM(config)), room / "roberta-body")
        place = room / "roberta-body-here"
        import_model(folder, place)
    for split in ("train", "valid"):
        lines = [f"{a}\t{b}\t{len(a) + len(b)}\n" for a in TEXTS for b in TEXTS]
        (tmp_path / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    settings: dict[str, Any] = {
        "run": "run", "start": {"encoder": str(place)}, "data": {"train": "train.tsv", "valid": "valid.tsv"},
        "source": {"kind": "text", "column": [1, 2], "max_length": 36}, "target": {"kind": "number", "column": 3},
        "model": yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))["model"],
        "training": {"steps": 2, "batch_tokens": 100, "validate_every": 2, "device": "cpu", "tensorboard": False},
    }  # fmt: skip
    tuned = regard.train(Config.parse(settings, tmp_path))
    export(tuned, tmp_path / "out", to="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = auto(tmp_path / "out")
    wanted = [theirs(**tokenizer(text, TEXTS[0], return_tensors="pt")).logits.item() for text in TEXTS]
    found = tuned.generate([f"{text}\t{TEXTS[0]}" for text in TEXTS])
    assert [float(x) for x in found] == pytest.approx(wanted, abs=1e-3)
    again = import_model(tmp_path / "out", tmp_path / "again").generate([f"{text}\t{TEXTS[0]}" for text in TEXTS])
    assert [float(x) for x in again] == pytest.approx(wanted, abs=1e-3)


def test_what_transformers_has_no_head_for_is_not_exported(room: Path, tmp_path: Path) -> None:
    place = bert(room / "tagged").place
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text("the dog\tA B\nAlice sees\tB A\n", encoding="utf-8")
    settings: dict[str, Any] = {
        "run": "run", "start": {"encoder": str(place)}, "data": {"train": "train.tsv", "valid": "valid.tsv"},
        "source": {"kind": "text", "max_length": 36}, "target": {"kind": "tags", "crf": True},
        "model": yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))["model"],
        "training": {"steps": 1, "batch_tokens": 100, "validate_every": 1, "device": "cpu", "tensorboard": False},
    }  # fmt: skip
    tuned = regard.train(Config.parse(settings, tmp_path))
    with pytest.raises(ConfigError, match=r"no model with source\.kind text, target\.kind tags, target\.crf, so this"):
        export(tuned, tmp_path / "out", to="huggingface")


SAME: dict[Any, str] = {
    marian: "AutoModelForSeq2SeqLM",
    bart: "AutoModelForSeq2SeqLM",
    gpt2: "AutoModelForCausalLM",
    bert: "AutoModelForMaskedLM",
}


@pytest.mark.parametrize("make", [marian, bart, gpt2, bert])
def test_out_and_back_are_the_same_bits(made: Get, make: Callable[[Path], Made], tmp_path: Path) -> None:
    one = made(make)
    export(one.ours, tmp_path / "out", to="huggingface")
    back = getattr(transformers, SAME[make]).from_pretrained(tmp_path / "out")
    there, here = one.theirs.state_dict(), back.state_dict()
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)
    tokenizer = auto(tmp_path / "out")
    texts = published.odd_strings(150)
    assert tokenizer(texts)["input_ids"] == one.tokenizer(texts)["input_ids"]
    import_model(tmp_path / "out", tmp_path / "again")
    for name in ("model.safetensors", "config.yaml"):
        assert (tmp_path / "again" / name).read_bytes() == (one.place / name).read_bytes()


def test_the_language_of_a_source_goes_out_and_comes_back(made: Get, tmp_path: Path) -> None:
    there = shutil.copytree(made(mbart).folder, tmp_path / "there")
    changed(there / "tokenizer_config.json", src_lang="de_DE")
    ours = import_model(there, tmp_path / "here")
    export(ours, tmp_path / "out", to="huggingface")
    again = import_model(tmp_path / "out", tmp_path / "again")
    wanted = transformers.MBartTokenizer.from_pretrained(there)("the dog")["input_ids"]
    for system in (ours, again):
        marks = system.tokenizers["tokens"].marks
        assert marks.frame(begins=False, ends=False).around(system.tokenizers["tokens"].encode("the dog")) == wanted
    assert auto(tmp_path / "out")("the dog")["input_ids"] == wanted


OTHERS: list[Any] = [
    ("vit", "ViTForImageClassification", "ViTConfig", {**ENCODER, "image_size": 16, "patch_size": 8, **LABELS}),
    ("roberta", "RobertaForMaskedLM", "RobertaConfig", {
        **ENCODER, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "vocab_size": 330}),
    ("distilbert", "DistilBertForTokenClassification", "DistilBertConfig", {
        "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40, "vocab_size": 200,
        **LABELS}),
    ("t5", "T5ForConditionalGeneration", "T5Config", {
        "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 300, "eos_token_id": 1,
        "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
        "pad_token_id": 0}),
    ("bert", "BertForQuestionAnswering", "BertConfig", {**ENCODER, "vocab_size": 200}),
    ("bert", "BertForMultipleChoice", "BertConfig", {**ENCODER, "vocab_size": 200}),
    ("gpt2", "GPT2ForSequenceClassification", "GPT2Config", {
        "vocab_size": 330, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "bos_token_id": 0,
        "eos_token_id": 0, "pad_token_id": 0, **LABELS}),
    ("whisper", "WhisperForConditionalGeneration", "WhisperConfig", {
        **{name: value for name, value in SMALL.items() if name != "max_position_embeddings"}, "vocab_size": 330,
        "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 40, "decoder_start_token_id": 0,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "suppress_tokens": None,
        "begin_suppress_tokens": None}),
]  # fmt: skip


def test_whisper_reads_more_than_it_writes_and_its_keys_need_no_bias(tmp_path: Path) -> None:
    """A window of sound has more vectors than there are positions of text; what training made of a bias of keys, which
    changes no attention, is left out of an export."""
    settings = {**OTHERS[-1][3], "max_source_positions": 50, "max_target_positions": 20}
    theirs = drawn(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**settings)))
    published.quietly(theirs.save_pretrained, published.byte_level(tmp_path / "there", "gpt2"))
    ours = import_model(tmp_path / "there", tmp_path / "here")
    (tmp_path / "a.wav").write_bytes(wav((9000 * np.sin(np.arange(8000) / 9.0)).astype(np.int16), 16000))
    before = ours.score([str(tmp_path / "a.wav")], ["the dog"])[0].tokens
    with torch.no_grad():
        for name, tensor in ours.task.model.named_parameters():
            if name.endswith("attention.inputs.bias"):
                tensor[16:32] += 0.1
    assert ours.score([str(tmp_path / "a.wav")], ["the dog"])[0].tokens == pytest.approx(before, abs=1e-5)
    export(ours, tmp_path / "out", to="huggingface")
    back = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, back[name]) for name, tensor in theirs.state_dict().items())


SIGNS = ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|yue|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
         "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip


def whisper(folder: Path, **generation: Any) -> tuple[Any, dict[str, int]]:
    """A Whisper that hears three languages, its tokenizer beside it; and the ids of its marks."""
    published.byte_level(folder, "gpt2", old=True)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder, extra_special_tokens=SIGNS)
    tokenizer.save_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SIGNS}
    marks = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    marks["decoder_start_token_id"] = ids["<|startoftranscript|>"]
    sizes = {**OTHERS[-1][3], "num_mel_bins": 80, "max_source_positions": 50, "vocab_size": len(tokenizer)}
    model = drawn(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**{**sizes, **marks})))
    said = {
        "no_timestamps_token_id": ids["<|notimestamps|>"], "return_timestamps": False, "max_length": 12, **marks,
        "suppress_tokens": [5], "begin_suppress_tokens": [6], "prev_sot_token_id": ids["<|startofprev|>"],
    }  # fmt: skip
    published.quietly(model.save_pretrained, folder)
    transformers.WhisperFeatureExtractor(chunk_length=1).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({**said, **generation}))
    return model, ids


def several(ids: dict[str, int]) -> dict[str, Any]:
    """What `generation_config.json` says of a Whisper of several languages."""
    return {
        "is_multilingual": True, "lang_to_id": {name: ids[name] for name in SIGNS[1:4]},
        "task_to_id": {name: ids[f"<|{name}|>"] for name in ("translate", "transcribe")},
    }  # fmt: skip


def heard(folder: Path, sound: Path, **more: Any) -> tuple[list[int], str]:
    """What `transformers` writes after its marks, as tokens and as text."""
    processor = published.quietly(transformers.AutoProcessor.from_pretrained, folder)
    samples = np.frombuffer(sound.read_bytes()[44:], np.int16) / 32768
    frames = processor(samples, sampling_rate=16000, return_tensors="pt").input_features
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    begun: list[list[int]] = []
    forward = model.forward

    def seen(*given: Any, **named: Any) -> Any:
        begun.append(named["decoder_input_ids"][0].tolist())
        return forward(*given, **named)

    model.forward = seen
    found = published.quietly(model.generate, frames, **more)
    written = [i for i in found[0].tolist() if i not in begun[0]]
    return begun[0], processor.decode(written, skip_special_tokens=True)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    (tmp_path / "a.wav").write_bytes(wav((9000 * np.sin(np.arange(8000) / 9.0)).astype(np.int16), 16000))
    return tmp_path / "a.wav"


def test_whisper_of_one_language_says_once_that_there_are_no_times(tmp_path: Path, sound: Path) -> None:
    """As the models of English are published: forced, and as the option."""
    _, ids = whisper(tmp_path / "there")
    path = tmp_path / "there" / "generation_config.json"
    changed(path, is_multilingual=False, forced_decoder_ids=[[1, ids["<|notimestamps|>"]]])
    ours = import_model(tmp_path / "there", tmp_path / "here")
    begun, text = heard(tmp_path / "there", sound)
    assert list(ours.task.first) == begun == [ids["<|startoftranscript|>"], ids["<|notimestamps|>"]]
    assert ours.generate([str(sound)]) == [text]


def test_whisper_hears_a_language_that_is_named_and_goes_out_as_it_came(tmp_path: Path, sound: Path) -> None:
    _, ids = whisper(tmp_path / "there")
    changed(tmp_path / "there" / "generation_config.json", **several(ids))
    warned: list[str] = []
    english = import_model(tmp_path / "there", tmp_path / "en", warn=warned.append)
    assert "a language that is detected (it is taken to be English" in warned[0]
    assert english.task.first[1] == ids["<|en|>"]
    assert "audio to text" in good("import", tmp_path / "there", "-o", tmp_path / "here", "--language", "German")
    ours = regard.load(tmp_path / "here", device="cpu")
    begun, text = heard(tmp_path / "there", sound, language="german", task="transcribe")
    assert list(ours.task.first) == begun
    assert ours.generate([str(sound)]) == [text]
    export(ours, tmp_path / "out", to="huggingface")
    assert heard(tmp_path / "out", sound) == (begun, text), "with nothing said of language or task"
    before, after = (
        published.quietly(transformers.AutoProcessor.from_pretrained, tmp_path / x) for x in ("there", "out")
    )
    assert type(after.tokenizer).__name__ == "WhisperTokenizer"
    texts = published.odd_strings(150)
    assert after.tokenizer(texts)["input_ids"] == before.tokenizer(texts)["input_ids"]
    import_model(tmp_path / "out", tmp_path / "again", warn=warned.append)
    assert len(warned) == 1
    for name in ("model.safetensors", "config.yaml", "tokens.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    for language, mark in (("DE", "<|de|>"), ("<|yue|>", "<|yue|>"), ("cantonese", "<|yue|>")):
        again = import_model(tmp_path / "there", tmp_path / "named", language=language, force=True)
        assert again.task.first[1] == ids[mark]
    with pytest.raises(ModelError, match="it knows no language french; there are de, en, yue, also by English names"):
        import_model(tmp_path / "there", tmp_path / "x", language="French")
    changed(tmp_path / "there" / "generation_config.json", task_to_id={})
    with pytest.raises(ModelError, match=r"generation_config\.json has no task transcribe in task_to_id"):
        import_model(tmp_path / "there", tmp_path / "x")


def test_languages_have_the_names_that_whisper_knows() -> None:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    assert {name: NAMES.get(name) for name in TO_LANGUAGE_CODE} == TO_LANGUAGE_CODE


def test_a_language_goes_with_a_whisper_of_several(made: Get, tmp_path: Path) -> None:
    assert "a language goes with a Whisper of several languages" in refused(
        "import", made(gpt2).folder, "-o", tmp_path / "x", "--language", "de"
    )
    with pytest.raises(ModelError, match="no model is named; a folder, a checkpoint or a name on the"):
        import_model("", tmp_path / "x")


@whole
@pytest.mark.parametrize(("kind", "name", "config", "settings"), OTHERS, ids=[case[1] for case in OTHERS])
def test_others_come_back_too(tmp_path: Path, kind: str, name: str, config: str, settings: dict[str, Any]) -> None:
    folder = tmp_path / "there"
    makers = {"roberta": "roberta", "whisper": "gpt2", "gpt2": "gpt2"}
    if kind in makers:
        published.byte_level(folder, makers[kind])
    elif kind in ("distilbert", "bert"):
        published.word_piece(folder)
    elif kind == "t5":
        published.unigram(folder)
    theirs = drawn(getattr(transformers, name)(getattr(transformers, config)(**settings)))
    published.quietly(theirs.save_pretrained, folder)
    ours = import_model(folder, tmp_path / "here")
    export(ours, tmp_path / "out", to="huggingface")
    back = getattr(transformers, name).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, back[name]) for name, tensor in theirs.state_dict().items())


class Heard(Watcher):
    """What a run says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_an_imported_model_is_trained_on_with_its_own_tokens(made: Get, tmp_path: Path) -> None:
    one = made(bart)
    lines = [f"{text}\t{text[::-1]}\n" for text in ("the dog", "a tree", "tiny birds", "Alice")]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    base = yaml.safe_load((one.place / "config.yaml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = {name: base[name] for name in ("source", "target", "tokens", "model", "search")}
    settings |= {
        "run": "run", "start": {"model": str(one.place)}, "data": {"train": "train.tsv", "valid": "valid.tsv"},
        "training": {"steps": 2, "batch_tokens": 100, "validate_every": 2, "device": "cpu", "tensorboard": False},
    }  # fmt: skip
    watcher = Heard()
    settings["tokens"] = {"kind": "bpe"}
    tuned = regard.train(Config.parse(settings, tmp_path), watcher)
    assert (
        f"tokens are those of {one.place}, which are of kind imported; tokens.kind bpe is not used" in watcher.messages
    )
    assert tuned.tokenizers["tokens"].marks == one.ours.tokenizers["tokens"].marks
    assert regard.load(tmp_path / "run", device="cpu").generate(["the dog"]) == tuned.generate(["the dog"])
    report = export(tuned, tmp_path / "out", to="huggingface")
    assert "BartForConditionalGeneration" in str(report)
    # Positions follow from the marks of the tokens that a run starts from, if the config leaves them open.
    settings["model"] = {**settings["model"], "max_positions": None}
    settings["source"] = settings["target"] = {"kind": "text", "max_length": 38}
    settings |= {"search": {"max_length": 20, "max_source": 38}, "run": "other", "tokens": {}}
    assert regard.train(Config.parse(settings, tmp_path)).task.longest == 40


def test_a_token_of_an_imported_vocabulary_is_the_prefix_of_a_corpus(made: Get, tmp_path: Path) -> None:
    """Such as the language codes of multilingual Marian models."""
    one = made(marian)
    for name in ("one", "other"):
        (tmp_path / f"{name}.tsv").write_text("the dog\tAlice\nAlice\tthe dog\n", encoding="utf-8")
    base = yaml.safe_load((one.place / "config.yaml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = {name: base[name] for name in ("source", "target", "tokens", "model", "search")}
    settings |= {
        "run": "run", "start": {"model": str(one.place)},
        "training": {"steps": 1, "batch_tokens": 100, "validate_every": 1, "device": "cpu", "tensorboard": False},
    }  # fmt: skip
    first: dict[str, Any] = {"name": "one", "train": "one.tsv", "valid": "one.tsv", "prefix": ">>de<<"}
    settings["data"] = {"corpora": [first, {"name": "other", "train": "other.tsv"}]}
    tuned = regard.train(Config.parse(settings, tmp_path))
    ids = tuned.tokenizers["tokens"].encode(">>de<< the dog")
    assert ids == [2, *tuned.tokenizers["tokens"].encode("the dog")]
    for prefix in ("<2de>", "</s>", "Alices"):
        first["prefix"] = prefix
        with pytest.raises(ConfigError, match=rf"{prefix}, which is no single token of the model to start from; leave"):
            regard.train(Config.parse({**settings, "run": "other"}, tmp_path))


def test_a_model_that_was_trained_here_goes_out_as_marian(tmp_path: Path) -> None:
    """With sines and cosines in their order, and tokens that are learnt."""
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text(
            "".join(f"{x}\t{x[::-1]}\n" for x in published.TEXTS[::4]), encoding="utf-8"
        )
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32, "norm": "post"}
    settings = {
        "run": "run", "tokens": {"kind": "char"}, "model": {"d_model": 16, "encoder": part, "decoder": part},
        "training": {"steps": 8, "batch_tokens": 300, "validate_every": 8, "device": "cpu", "tensorboard": False},
        "search": {"max_length": 12, "beam": 2},
    }  # fmt: skip
    ours = regard.train(Config.parse(settings, tmp_path))
    export(ours, tmp_path / "out", to="huggingface")
    theirs, tokenizer = transformers.MarianMTModel.from_pretrained(tmp_path / "out"), auto(tmp_path / "out")
    text = published.TEXTS[1]
    given = {"input_ids": torch.tensor([tokenizer(text)["input_ids"]])}
    target = torch.tensor([[2, *ours.task.target.encode("the dog"), 3]])
    with torch.no_grad():
        logits = theirs.eval()(**given, decoder_input_ids=target[:, :-1]).logits[0]
    wanted = logits.log_softmax(-1).gather(1, target[0, 1:, None]).squeeze(1)
    assert torch.allclose(torch.tensor(ours.score([text], ["the dog"])[0].tokens), wanted, atol=2e-5)
    (found,) = theirs.generate(**given).tolist()
    assert found == [2, *ours.outputs([text])[0][0].tokens, 3]


def test_a_model_that_undoes_noise_goes_out_as_bart(tmp_path: Path) -> None:
    """Which was trained on plain text, and reads a text with masks in."""
    (tmp_path / "text.txt").write_text("\n".join(published.TEXTS[::4]) + "\n", encoding="utf-8")
    part = {
        "kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32, "norm": "post", "positions": "learned",
        "embedding_norm": True, "activation": "gelu", "norm_epsilon": 1e-5, "first_position": 2,
    }  # fmt: skip
    settings: dict[str, Any] = {
        "run": "run", "tokens": {"kind": "char"}, "source": {"kind": "none"}, "target": {"max_length": 60},
        "data": {"train": "text.txt", "valid": "text.txt"}, "search": {"max_length": 20},
        "model": {"d_model": 16, "share_embeddings": True, "scale_embeddings": False, "encoder": part, "decoder": part},
        "training": {"steps": 4, "batch_tokens": 300, "validate_every": 4, "device": "cpu", "tensorboard": False,
                     "objective": {"kind": "denoising"}},
    }  # fmt: skip
    ours = regard.train(Config.parse(settings, tmp_path))
    assert "BartForConditionalGeneration" in str(export(ours, tmp_path / "out", to="huggingface"))
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    text = "the dog <mask> the big house"
    given = auto(tmp_path / "out")(text, return_tensors="pt")
    target = [2, *ours.task.target.encode("the cat"), 3]
    read = ours.task.source.pack(ours.task.source.encode_many([text]))
    assert given["input_ids"][0].tolist() == read.values.tolist()
    with torch.no_grad():
        model: Any = ours.task.model.eval()
        logits = model(read, Ragged.from_lengths(torch.tensor(target[:-1]), [len(target) - 1])).values
        wanted = theirs(**given, decoder_input_ids=torch.tensor([target[:-1]])).logits[0]
    assert torch.allclose(logits, wanted, atol=2e-5)
    part |= {"norm": "pre", "embedding_norm": False}
    other = regard.train(Config.parse({**settings, "run": "other"}, tmp_path))
    with pytest.raises(ConfigError, match=r"embedding_norm is False, not True"):
        export(other, tmp_path / "other-out", to="huggingface")


def test_a_classifier_that_was_trained_here_reads_the_same_marks_there(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("the dog\tgood\na tree\tbad\n" * 2)
    encoder = {
        "kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16, "norm": "post", "positions": "learned",
        "embedding_norm": True, "activation": "gelu", "norm_epsilon": 1e-12, "stem": {"kind": "tokens", "segments": 2},
    }  # fmt: skip
    settings = {
        "run": "run", "tokens": {"kind": "char"}, "data": {"train": "train.tsv", "valid": "train.tsv"},
        "source": {"max_length": 30}, "target": {"kind": "label"},
        "training": {"steps": 2, "batch_tokens": 100, "device": "cpu", "tensorboard": False},
        "model": {"d_model": 8, "scale_embeddings": False, "encoder": encoder, "decoder": {"kind": "none"}},
    }  # fmt: skip
    ours = regard.train(Config.parse(settings, tmp_path))
    export(ours, tmp_path / "out", to="huggingface")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    for text in ("the dog", "a dog\tthe tree"):
        with torch.no_grad():
            wanted = theirs(**auto(tmp_path / "out")(*text.split("\t"), return_tensors="pt")).logits[0].log_softmax(-1)
        found = {output.text: output.log_prob for output in ours.outputs([text], beam=2, nbest=2)[0]}
        assert found == pytest.approx({theirs.config.id2label[i]: float(x) for i, x in enumerate(wanted)}, abs=1e-5)
    settings |= {"run": "lower", "source": {"max_length": 30, "case": "lower"}}
    with pytest.raises(ConfigError, match=r"source.normalize and source.case are Regard's own"):
        export(regard.train(Config.parse(settings, tmp_path)), tmp_path / "other", to="huggingface")


def test_a_model_without_a_counterpart_is_refused_with_what_differs(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a b\tb a\n" * 4)
    (tmp_path / "valid.tsv").write_text("a b\tb a\n")
    settings: dict[str, Any] = {
        "run": "run", "tokens": {"kind": "char"}, "training": {"steps": 1, "device": "cpu", "tensorboard": False},
        "model": {"d_model": 8, "encoder": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 8},
                  "decoder": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 8, "positions": "rotary"}},
    }  # fmt: skip
    ours = regard.train(Config.parse(settings, tmp_path))
    with pytest.raises(ConfigError, match=r"the nearest is \w+, and there: .*model.decoder.positions is rotary, not"):
        export(ours, tmp_path / "out", to="huggingface")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="a quantization goes with ctranslate2"):
        export(ours, tmp_path / "out", to="huggingface", quantization="int8")


# The command line, names, settings


def test_commands_import_use_and_export(made: Get, tmp_path: Path) -> None:
    there = made(marian).folder
    assert "text to text" in good("import", there, "-o", tmp_path / "model")
    assert good("generate", tmp_path / "model", text="the dog\n").strip()
    data = yaml.safe_load((tmp_path / "model" / "config.yaml").read_text(encoding="utf-8"))["data"]
    assert (data["train"], data["valid"]) == ("train.tsv", "valid.tsv"), "not those of where it was imported"
    assert "exists; give another name" in refused("import", there, "-o", tmp_path / "model")
    assert json.loads(good("import", there, "-o", tmp_path / "model", "--force", "--json"))["parameters"] > 1000
    assert "MarianMTModel" in good("export", tmp_path / "model", "--to", "huggingface", "-o", tmp_path / "out")
    assert (tmp_path / "out" / "source.spm").exists()
    assert "no name on the Hugging Face Hub" in refused("import", tmp_path / "no where", "-o", tmp_path / "x")


def test_a_name_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelError, match=r"no folder nobody/nothing, and it cannot be had from the Hugging Face Hub|needs"
    ):
        find("nobody/nothing")


def test_settings_of_generation_become_those_of_search_or_are_told(tmp_path: Path) -> None:
    generation = {
        "num_beams": 6, "length_penalty": 0.6, "no_repeat_ngram_size": 3, "min_length": 5, "max_length": 100,
        "early_stopping": True, "repetition_penalty": 1.3, "eos_token_id": [3, 9], "bad_words_ids": [[7, 8], [0]],
        "forced_eos_token_id": 3, "transformers_version": "5", "use_cache": True, "typical_p": 1.0,
    }  # fmt: skip
    found, told = search_settings(Given(tmp_path, {}, generation, {}), NATIVE, 64)
    assert (found["beam"], found["alpha"], found["length_penalty"], found["no_repeat"]) == (6, 0.6, "average", 3)
    assert (found["min_length"], found["max_length"], found["unknown"]) == (4, 63, True)
    assert (found["stop"], found["repetition_penalty"], found["at_limit"]) == ("early", 1.3, "forced")
    assert told == ["eos_token_id [9]"]
    sampled, told = search_settings(
        Given(tmp_path, {"do_sample": True, "top_p": 0.9, "max_new_tokens": 9}, {}, {}), NATIVE, 64
    )
    both = Given(tmp_path, {"num_beams": 5, "no_repeat_ngram_size": 3}, {"max_new_tokens": 9}, {})
    assert search_settings(both, NATIVE, 64)[0]["beam"] == 1, "of config.json transformers takes nothing then"
    assert (sampled["sample"], sampled["top_p"], sampled["top_k"], sampled["max_length"]) == (True, 0.9, 50, 9)
    assert not told
    never = {"early_stopping": "never", "length_penalty": 0.0, "num_beams": 2}
    exact, _ = search_settings(Given(tmp_path, {}, never, {}), NATIVE, 64)
    assert (exact["stop"], exact["length_penalty"], exact["at_limit"]) == ("exact", "none", "cut")
    odds: tuple[Any, ...] = ("late", [], {"at": 1})
    for odd in odds:
        with pytest.raises(ConfigError, match=r"early_stopping: .*; it is true, false or 'never'"):
            search_settings(Given(tmp_path, {}, {"early_stopping": odd}, {}), NATIVE, 64)


@pytest.mark.parametrize(
    ("more", "lost"),
    [
        ({"penalty_alpha": 0.6}, "repetition_penalty 1.2 with penalty_alpha"),
        ({"do_sample": True}, "num_beams 4 with do_sample"),
    ],
)
def test_ways_to_generate_that_exclude_each_other_become_a_search_of_one(
    tmp_path: Path, more: dict[str, Any], lost: str
) -> None:
    generation = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "repetition_penalty": 1.2, **more}
    found, told = search_settings(Given(tmp_path, {}, generation, {}), NATIVE, 64)
    assert Search(**found).groups == 1
    assert told == [lost]


def test_what_generation_asks_for_and_is_not_there_is_warned_of(made: Get, tmp_path: Path) -> None:
    shutil.copytree(made(gpt2).folder, tmp_path / "there")
    path = tmp_path / "there" / "generation_config.json"
    more = {"encoder_repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 3, "typical_p": 0.9}
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    heard: list[str] = []
    import_model(tmp_path / "there", tmp_path / "here", warn=heard.append)
    assert len(heard) == 1
    assert heard[0].endswith("does without: encoder_repetition_penalty 1.2, encoder_no_repeat_ngram_size 3")


def test_exports_refuse_what_their_searches_cannot_keep_to(made: Get, tmp_path: Path) -> None:
    """Sequences that are banned, and tokens that may not come first."""
    for name, value in (("bad_words_ids", [[5, 6]]), ("begin_suppress_tokens", [5])):
        folder = shutil.copytree(made(marian).folder, tmp_path / name)
        path = folder / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
        ours = import_model(folder, tmp_path / f"{name}-here")
        for to in ("onnx", "ctranslate2"):
            with pytest.raises(ConfigError, match=r"may not begin with .* \(begin_suppress_tokens, bad_words_ids\)"):
                export(ours, tmp_path / "out", to=to)


# Damaged and hostile folders


class Hostile:
    """What a pickled file would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_code_in_a_pickled_file_does_not_run(made: Get, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(made(gpt2).folder, there)
    (there / "model.safetensors").unlink()
    (there / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Hostile(tmp_path / "ran")}))
    with pytest.raises(ModelError, match=r"pytorch_model.bin cannot be read as weights"):
        import_model(there, tmp_path / "here")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "here").exists()


def test_code_that_a_config_names_is_not_asked_for(made: Get, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(made(gpt2).folder, there)
    config = json.loads((there / "config.json").read_text())
    (there / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "evil.Model"}}))
    (there / "evil.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    import_model(there, tmp_path / "here")
    assert not (tmp_path / "ran").exists()


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def changed(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def reshaped(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), name: torch.zeros(5)}, file)


def listed(folder: Path, part: Any) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": part}}))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (lambda x: (x / "config.json").unlink(), ["no config.json in"]),
        (lambda x: (x / "config.json").write_text("[1]"), ["should hold settings by name"]),
        (lambda x: (x / "model.safetensors").unlink(), ["no weights in"]),
        (lambda x: cut(x / "model.safetensors", 0.7), ["model.safetensors cannot be read as weights"]),
        (lambda x: cut(x / "model.safetensors", 0.0), ["model.safetensors cannot be read as weights"]),
        (lambda x: cut(x / "tokenizer.json", 0.5), ["the tokenizer in", "cannot be read"]),
        (lambda x: (x / "tokenizer.json").unlink(), ["the tokenizer in", "none of these is there"]),
        (lambda x: changed(x / "config.json", n_embd=32), ["expected (330, 32)"]),
        (lambda x: changed(x / "config.json", n_layer=9), ["the checkpoint lacks"]),
        (lambda x: changed(x / "config.json", model_type="llama"), ["model_type 'llama'"]),
        (lambda x: changed(x / "config.json", vocab_size=7), ["the network reads 7"]),
        (lambda x: changed(x / "config.json", vocab_size="x"), ["vocab_size: 'x'; it should be a whole number"]),
        (lambda x: changed(x / "config.json", n_embd=None), ["config.json does not say n_embd"]),
        (lambda x: changed(x / "config.json", model_type=["gpt2"]), ["model_type ['gpt2']"]),
        (lambda x: changed(x / "config.json", architectures=5), ["the architecture 5"]),
        (lambda x: changed(x / "config.json", activation_function=["relu"]), ["activation_function: ['relu']"]),
        (
            lambda x: changed(x / "generation_config.json", max_length="x"),
            ["max_length: 'x', which should be"],
        ),
        (lambda x: changed(x / "generation_config.json", eos_token_id=10**6), ["it has a mark 1000000"]),
        (lambda x: changed(x / "generation_config.json", suppress_tokens=[10**6]), ["it has a mark 1000000"]),
        (lambda x: changed(x / "generation_config.json", decoder_start_token_id=[2]), ["is [2], and should be one id"]),
        (lambda x: changed(x / "generation_config.json", bad_words_ids=5), ["bad_words_ids is 5, and should be lists"]),
        (lambda x: reshaped(x, "transformer.h.0.mlp.c_fc.weight"), ["c_fc.weight is (5,), which is no shape that"]),
        (lambda x: listed(x, 5), ["cannot be read as an index of weights"]),
        (lambda x: listed(x, "../there/tokenizer.json"), ["lists files outside of"]),
        (lambda x: listed(x, "other.safetensors"), ["lists other.safetensors, and", "has no such file"]),
        (lambda x: os.mkfifo(x / "merges.txt"), ["merges.txt is a pipe or a device"]),
        (
            lambda x: changed(x / "config.json", scale_attn_by_inverse_layer_idx=True),
            ["scale_attn_by_inverse_layer_idx"],
        ),
    ],
)
def test_damaged_folders_are_told(
    made: Get, tmp_path: Path, damage: Callable[[Path], Any], messages: list[str]
) -> None:
    there = tmp_path / "there"
    shutil.copytree(made(gpt2).folder, there)
    damage(there)
    with pytest.raises((ModelError, ConfigError)) as caught:
        import_model(there, tmp_path / "here")
    for message in messages:
        assert message in str(caught.value)
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b"], "it should number labels from 0 on"),
        ({"0": "a", "1": "a", "2": "a (0)"}, "each another"),
        ({"0": "", "1": "a"}, "it should number labels"),
        ({"0": "a", "x": "b"}, "it should number labels"),
        ({"0": "a\nb", "1": "c"}, "labels are written in a line each"),
        ({"0": "B PER", "1": "O"}, "tags are written with blanks between them"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(labels: Any, message: str) -> None:
    config = {"model_type": "bert", "architectures": ["BertForTokenClassification"], "id2label": labels}
    with pytest.raises(ConfigError, match=message):
        family_of(config)


def test_labels_of_one_name_are_told_apart_by_their_numbers() -> None:
    config = {"model_type": "vit", **ENCODER, "id2label": {"0": "crane", "1": "stork", "2": "crane"}}
    assert family_of(config).labels == ["crane (0)", "stork", "crane (2)"]


def test_ids_that_a_network_has_not_are_refused_in_a_list_of_pieces(made: Get, tmp_path: Path) -> None:
    damages: list[tuple[str, dict[str, Any], str]] = [
        ("vocab.json", {"odd": 10**6}, "vocab.json has 'odd' as 1000000, and the network has"),
        ("vocab.json", {"</s>": "0"}, "vocab.json has '</s>' as '0'"),
        ("tokenizer_config.json", {"separate_vocabs": True}, "target_vocab.json is not there"),
        ("tokenizer_config.json", {"eos_token": "<end>"}, "its vocabulary has no <end>"),
    ]
    for i, (file, given, message) in enumerate(damages):
        there = shutil.copytree(made(marian).folder, tmp_path / str(i))
        changed(there / file, **given)
        with pytest.raises(ModelError, match=message):
            import_model(there, tmp_path / "here")
    (there / "tokenizer_config.json").unlink()
    (there / "source.spm").write_bytes(b"")
    with pytest.raises(ModelError, match=r"source.spm or target.spm is empty"):
        import_model(there, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_pictures_of_another_size_are_resampled_as_there(tmp_path: Path) -> None:
    settings = {**OTHERS[0][3], "num_hidden_layers": 1}
    theirs = drawn(transformers.ViTForImageClassification(transformers.ViTConfig(**settings)))
    published.quietly(theirs.save_pretrained, tmp_path / "there")
    picture = PIL.Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8))
    picture.save(tmp_path / "a.png")
    for number, name in ((2, "bilinear"), (3, "bicubic")):
        given = {"size": {"height": 16, "width": 16}, "resample": number}
        (tmp_path / "there" / "preprocessor_config.json").write_text(json.dumps(given))
        ours = import_model(tmp_path / "there", tmp_path / name)
        pixels = np.asarray(picture.resize((16, 16), number), np.float32) / 127.5 - 1
        with torch.no_grad():
            wanted = theirs(pixel_values=torch.tensor(pixels).permute(2, 0, 1)[None]).logits[0].log_softmax(-1)
        found = {output.text: output.log_prob for output in ours.outputs([str(tmp_path / "a.png")], beam=3, nbest=3)[0]}
        assert found == pytest.approx({LABELS["id2label"][i]: float(x) for i, x in enumerate(wanted)}, abs=1e-4)
        export(ours, tmp_path / f"{name}-out", to="huggingface")
        assert json.loads((tmp_path / f"{name}-out" / "preprocessor_config.json").read_text())["resample"] == number
    with pytest.raises(ConfigError, match=r"resample: 0; Regard has 1 \(lanczos\), 2 \(bilinear\)"):
        family_of({"model_type": "vit", "image_size": 16, "patch_size": 8, **ENCODER}, {}, {"resample": 0}).sections()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_rescale": False}, "do_rescale: False"),
        ({"size": {"height": 32, "width": 32}}, "size: .* config.json has image_size 16"),
        ({"image_mean": 0.1}, "image_mean: 0.1; Regard centres"),
        ({"do_resize": False}, "do_resize: False; Regard resizes pictures"),
        ({"size": {"shortest_edge": 16}}, "size: .*shortest_edge.* brings height and width to a size and cuts nothing"),
        ({"do_center_crop": True, "crop_size": {"height": 8, "width": 8}}, "crop_size: .* has image_size 16"),
        ({"image_processor_type": "CLIPImageProcessor", "size": 16}, "image_processor_type: 'CLIPImageProcessor'"),
    ],
)
def test_pictures_that_would_be_read_otherwise_are_refused(given: dict[str, Any], message: str) -> None:
    network = family_of({"model_type": "vit", "image_size": 16, "patch_size": 8, **ENCODER}, {}, given)
    with pytest.raises(ConfigError, match=message):
        network.sections()
    cut = {"size": {"height": 16, "width": 16}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    assert family_of(network.config, {}, {"image_processor_type": "DeiTImageProcessor", **cut}).sections()
    with pytest.raises(ConfigError, match="patch_size: 0; it should be a number of pixels"):
        family_of({"model_type": "vit", "patch_size": 0, **ENCODER}).sections()


def test_all_that_is_wrong_is_said_at_once(made: Get, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(made(gpt2).folder, there)
    changed(there / "config.json", add_cross_attention=True)
    (there / "tokenizer.json").unlink()
    with pytest.raises(ConfigError) as caught:
        import_model(there, tmp_path / "here")
    assert "add_cross_attention" in str(caught.value)
    assert "none of these is there" in str(caught.value)
