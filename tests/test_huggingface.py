"""Networks of others: what is computed with their weights here is what `transformers` computes, and weights come back
out to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface import family_of, read_network
from regard.exchange.huggingface.family import Family
from regard.exchange.huggingface.forms import differences
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.published import encoder_weights, layout_of
from regard.models.stems import Elements
from regard.ragged import Ragged
from regard.registry import TARGETS
from regard.settings import Config
from regard.training.checkpoint import set_weights
from tests.conftest import images, whole

transformers = pytest.importorskip("transformers")
NEAR = 2e-5  # of a logit, in float32
SEPARATOR = 4
LENGTHS = [7, 3, 9]


def drawn(model: Any, seed: int = 1) -> Any:
    """With every weight drawn anew, so that no bias is 0 and no norm is 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            static = "embed_positions" in name and not tensor.requires_grad
            if tensor.is_floating_point() and tensor.dim() and not static:
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator) + 0.5 * ("orm" in name))
    return model.eval()


def written(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def here(network: Family, elements: list[Elements] | None = None) -> Any:
    """The network, built and filled here."""
    config = Config.parse({"run": "run", **network.sections()})
    settings: ModelSettings = config.model
    assert settings.max_positions is not None
    given = elements or [Elements(network.vocabulary, separator=SEPARATOR)]
    made = build(settings, given, network.outputs, settings.max_positions, config.target)
    set_weights(made, network.imported(), Path("there"))
    return made.eval()


def comes_back(network: Family, folder: Path, without: Set[str] = frozenset()) -> None:
    """Out and back: the same names and bits, `without` what no output depends on."""
    file, back = load_file(folder / "model.safetensors"), network.exported(network.imported())
    file = {name: tensor for name, tensor in file.items() if name not in without}
    assert back.keys() == file.keys()
    for name, tensor in file.items():
        assert back[name].dtype == tensor.dtype, name
        assert torch.equal(back[name], tensor), name


def ids(vocabulary: int, lengths: list[int] = LENGTHS, seed: int = 1) -> Ragged:
    tokens = torch.randint(5, vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return Ragged.from_lengths(tokens, lengths)


def apart(ours: Ragged, theirs: list[Tensor]) -> float:
    """The largest difference; what theirs has is of each row alone, `(length, outputs)`."""
    found = ours.values.split(ours.lengths.tolist())
    for a, b in zip(found, theirs, strict=True):
        assert a.shape == b.shape
        assert b.std() > 0.05, "a network that says the same of all is no test"
    return max(float((a - b).abs().max()) for a, b in zip(found, theirs, strict=True))


def stepwise(model: Any, source: Any, targets: Ragged) -> float:
    """How far steps are from all at once, on rows of one length."""
    whole = torch.log_softmax(model(source, targets).values, -1).unflatten(0, (targets.rows, -1))
    state, most = model.start(source), 0.0
    for i, tokens in enumerate(targets.values.view(targets.rows, -1).unbind(1)):
        found, state = model.step(tokens, state)
        most = max(most, float((found - whole[:, i]).abs().max()))
    return most


SMALL = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "vocab_size": 30, "max_position_embeddings": 20, "pad_token_id": 1,
    "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
T5_SMALL = {
    "vocab_size": 30, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip


def marian(**more: Any) -> Any:
    return transformers.MarianMTModel(transformers.MarianConfig(**{**SMALL, "scale_embedding": True, **more}))


def bart(**more: Any) -> Any:
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**{**SMALL, **more}))


def mbart(**more: Any) -> Any:
    return transformers.MBartForConditionalGeneration(transformers.MBartConfig(**{**SMALL, **more}))


def t5(**more: Any) -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**{**T5_SMALL, **more}))


SEQ2SEQ: dict[str, Callable[[], Any]] = {
    "marian": lambda: marian(activation_function="swish"),
    "t5": t5,
    "t5-v1.1": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: transformers.MT5ForConditionalGeneration(transformers.MT5Config(**T5_SMALL)),
    "marian-two-vocabularies": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=26),
    "bart": bart,
    "mbart": lambda: mbart(scale_embedding=True),
}
ALL_ONLY = ("marian-two-vocabularies", "bart", "mbart")


@pytest.mark.parametrize("name", [pytest.param(x, marks=whole if x in ALL_ONLY else ()) for x in SEQ2SEQ])
def test_an_encoder_with_a_decoder_computes_the_same(name: str, tmp_path: Path) -> None:
    theirs = drawn(SEQ2SEQ[name]())
    network = read_network(written(theirs, tmp_path))
    model = here(network)
    source, targets = ids(network.vocabulary), ids(network.outputs, [5, 8, 2], seed=2)
    with torch.no_grad():
        pairs = zip(source.tolist(), targets.tolist(), strict=True)
        wanted = [theirs(input_ids=torch.tensor([x]), decoder_input_ids=torch.tensor([y])).logits[0] for x, y in pairs]
        assert apart(model(source, targets), wanted) < NEAR
        assert stepwise(model, source, ids(network.outputs, [6, 6, 6], seed=3)) < NEAR
    comes_back(network, tmp_path)


BERT = {
    "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 20, "num_labels": 3,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 30, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 20,
    "num_labels": 3,
}  # fmt: skip
READERS: dict[str, Callable[[], Any]] = {
    f"{name}{head}": lambda name=name, head=head, config=config, options=options: getattr(  # type: ignore[misc]
        transformers, f"{name}For{head}"
    )(getattr(transformers, f"{config}Config")(**options))
    for name, config, options in (
        ("Bert", "Bert", BERT),
        ("Roberta", "Roberta", {**BERT, "type_vocab_size": 1, "max_position_embeddings": 22}),
        ("XLMRoberta", "XLMRoberta", {**BERT, "type_vocab_size": 1, "max_position_embeddings": 22}),
        ("DistilBert", "DistilBert", DISTILBERT),
    )
    for head in ("MaskedLM", "SequenceClassification", "TokenClassification")
}
BY_DEFAULT = ("BertMaskedLM", "BertSequenceClassification", "DistilBertTokenClassification")


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in BY_DEFAULT else whole) for x in READERS])
def test_an_encoder_under_a_head_computes_the_same(name: str, tmp_path: Path) -> None:
    theirs = drawn(READERS[name]())
    network = read_network(written(theirs, tmp_path))
    model, source = here(network), ids(network.vocabulary)
    source.values[[3, 6, 8, 12]] = SEPARATOR  # also at the end of a row, and at the start of one
    places = [[0]] * source.rows if name.endswith("SequenceClassification") else [list(range(n)) for n in LENGTHS]
    at = Ragged.from_lengths(torch.tensor([place for row in places for place in row]), [len(row) for row in places])
    with torch.no_grad():
        wanted = []
        for row, chosen in zip(source.tolist(), places, strict=True):
            given: dict[str, Tensor] = {"input_ids": torch.tensor([row])}
            if name.startswith("Bert"):
                before = [min(row[:i].count(SEPARATOR), 1) for i in range(len(row))]
                given["token_type_ids"] = torch.tensor([before])
            found = theirs(**given).logits[0]
            wanted.append(found.view(1, -1) if len(chosen) == 1 else found)
        assert apart(model(source, at), wanted) < NEAR
    comes_back(network, tmp_path)
    assert network.labels == ([] if name.endswith("MaskedLM") else ["LABEL_0", "LABEL_1", "LABEL_2"])


GPT = {
    "vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


NONE = Ragged.from_lengths(torch.zeros(0, dtype=torch.long), [0] * 3)


def test_a_decoder_alone_computes_the_same(tmp_path: Path) -> None:
    theirs = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT)))
    network = read_network(written(theirs, tmp_path))
    model, texts = here(network), ids(30)
    with torch.no_grad():
        assert apart(model(NONE, texts), [theirs(torch.tensor([x])).logits[0] for x in texts.tolist()]) < NEAR
        assert stepwise(model, NONE, ids(30, [6, 6, 6], seed=3)) < NEAR
    comes_back(network, tmp_path)


@whole
def test_a_decoder_under_a_head_computes_the_same(tmp_path: Path) -> None:
    config = transformers.GPT2Config(**GPT, num_labels=3, pad_token_id=1)
    theirs = drawn(transformers.GPT2ForSequenceClassification(config))
    network = read_network(written(theirs, tmp_path))
    model, texts = here(network), ids(30)
    one_each = Ragged.from_lengths(torch.zeros(3, dtype=torch.long), [1] * 3)
    with torch.no_grad():
        wanted = [theirs(torch.tensor([row])).logits for row in texts.tolist()]
        assert apart(model(texts, one_each), wanted) < NEAR
    comes_back(network, tmp_path)


@whole
@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
@pytest.mark.parametrize("head", ["QuestionAnswering", "MultipleChoice"])
def test_weights_of_other_heads_come_back(name: str, head: str, tmp_path: Path) -> None:
    options = DISTILBERT if name == "DistilBert" else BERT
    config = getattr(transformers, f"{name}Config")(**{**options, "num_labels": 2})
    folder = written(drawn(getattr(transformers, f"{name}For{head}")(config)), tmp_path)
    network = read_network(folder)
    comes_back(network, folder)
    assert network.sections()["target"] == {"kind": "span" if head == "QuestionAnswering" else "choice"}
    kind = network.sections()["target"]["kind"]
    if kind in TARGETS.kinds:
        here(network)


@whole
def test_an_encoder_with_a_decoder_without_its_output_layer_is_read(tmp_path: Path) -> None:
    """As BART itself is published."""
    theirs = drawn(transformers.BartModel(transformers.BartConfig(**SMALL)))
    network = read_network(written(theirs, tmp_path))
    model, source, targets = here(network), ids(30), ids(30, [5, 8, 2], seed=2)
    with torch.no_grad():
        pairs = zip(source.tolist(), targets.tolist(), strict=True)
        wanted = [
            theirs(input_ids=torch.tensor([x]), decoder_input_ids=torch.tensor([y])).last_hidden_state[0]
            @ theirs.shared.weight.T
            for x, y in pairs
        ]
        assert apart(model(source, targets), wanted) < NEAR


# What checkpoints of other years hold


def test_names_without_a_prefix_and_with_tied_copies_are_read(tmp_path: Path) -> None:
    """As GPT-2 itself is published, and as torch's own files hold all names of a tied tensor."""
    theirs = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT)))
    plain = read_network(written(theirs, tmp_path / "new")).imported()
    old = {name.removeprefix("transformer."): tensor for name, tensor in theirs.state_dict().items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 20, 20)
    (tmp_path / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
    torch.save(old, tmp_path / "pytorch_model.bin")
    left_out: list[str] = []
    found = read_network(tmp_path).imported(left_out)
    assert left_out == ["transformer.h.0.attn.bias"]
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_ties_are_what_the_weights_say_and_not_the_config(tmp_path: Path) -> None:
    """A head that predicts no tokens has none; and an output layer of its own is refused only where there is one."""
    tagger = {"model_type": "bert", "architectures": ["BertForTokenClassification"], **BERT}
    assert family_of({**tagger, "tie_word_embeddings": False}).sections()
    theirs = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT)))
    tensors = load_file(written(theirs, tmp_path) / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert read_network(tmp_path).imported()
    own = {"lm_head.weight": tensors["transformer.wte.weight"] + 1}
    save_file({**tensors, **own}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"has lm_head\.weight and transformer\.wte\.weight, which are tied here"):
        read_network(tmp_path).imported()


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    theirs = drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT)))
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    found, wanted = read_network(tmp_path).imported(), theirs.state_dict()
    assert torch.equal(found["decoder.final.weight"], wanted["transformer.ln_f.weight"])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(ModelError, match="lists files outside"):
        read_network(tmp_path)


# What Regard lacks is refused by name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "berd"}, "model_type 'berd'; did you mean 'bert'"),
        ({"model_type": "bert", "architectures": ["BertForMultipleChoices"]}, "architecture BertForMultipleChoices"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True"),
        ({"model_type": "gpt2", "pruned_heads": {"1": [0]}}, "pruned_heads"),
        ({"model_type": "marian", "normalize_before": True}, "normalize_before: True"),
        ({"model_type": "roberta", "pad_token_id": 0}, "pad_token_id: 0"),
        ({"model_type": "t5", "is_encoder_decoder": False}, "is_encoder_decoder: False"),
        ({"model_type": "gpt2", "quantization_config": {"quant_method": "fp8"}}, "weights that are not quantized"),
    ],
)
def test_options_that_change_the_computation_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        family_of(config)


def test_a_network_without_a_family_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="model_type 'llama'; there are: marian, "):
        read_network(tmp_path)


def test_activations_that_are_not_here_are_refused() -> None:
    with pytest.raises(ConfigError, match="activation_function: 'laplace'; Regard has relu, gelu"):
        family_of({"model_type": "gpt2", "activation_function": "laplace", **GPT}).sections()
    with pytest.raises(ConfigError, match="feed_forward_proj: 'gated-tanh'"):
        family_of({"model_type": "t5", **T5_SMALL, "feed_forward_proj": "gated-tanh"}).sections()
    saved = {"model_type": "t5", **T5_SMALL, "feed_forward_proj": "gated-gelu"}
    for name, value in (("dense_act_fn", "gelu"), ("is_gated_act", False)):
        with pytest.raises(ConfigError, match=f"{name}: {value!r}; feed_forward_proj gated-gelu says otherwise"):
            family_of({**saved, name: value}).sections()
    assert family_of({**saved, "dense_act_fn": "gelu_new", "is_gated_act": True}).sections()


def test_nulls_and_numbers_of_8_bits_are_told(tmp_path: Path) -> None:
    for config in (
        {"model_type": "gpt2", **GPT, "n_positions": None},
        {"model_type": "t5", **T5_SMALL, "n_positions": None},
    ):
        with pytest.raises(ConfigError, match="n_positions: null, and should have a number there"):
            family_of(config).sections()
    with pytest.raises(ConfigError, match="max_position_embeddings: null"):
        family_of({"model_type": "bert", **BERT, "max_position_embeddings": None}).sections()
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT))
    tensors = load_file(written(theirs, tmp_path) / "model.safetensors")
    name = "transformer.h.0.attn.c_attn.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"inputs\.weight as torch\.float8_e4m3fn, and Regard computes with no 8-bit"):
        here(read_network(tmp_path))


def test_an_option_that_whisper_writes_and_does_not_obey_changes_nothing() -> None:
    options = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    network = family_of({"model_type": "whisper", **options, "scale_embedding": True})
    assert network.sections()["model"]["scale_embeddings"] is False


def test_other_networks_under_a_known_name_are_told(tmp_path: Path) -> None:
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT))
    tensors = load_file(written(theirs, tmp_path) / "model.safetensors")
    save_file({**tensors, "transformer.h.0.gate.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"has transformer\.h\.0\.gate\.weight, which GPT2LMHeadModel has not"):
        read_network(tmp_path).imported()
    del tensors["transformer.h.1.ln_1.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks transformer\.h\.1\.ln_1\.bias"):
        read_network(tmp_path).imported()
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json in"):
        read_network(tmp_path)


# Pictures and sound

VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "image_size": 16,
    "patch_size": 4, "num_labels": 3,
}  # fmt: skip


def pixels(pictures: Ragged, side: int) -> Tensor:
    """What a network of theirs is given of pictures: `(rows, colours, height, width)` from -1 to 1."""
    return pictures.values.view(-1, side, side, 3).permute(0, 3, 1, 2) / 127.5 - 1.0


@whole
def test_a_classifier_of_pictures_computes_the_same(tmp_path: Path) -> None:
    theirs = drawn(transformers.ViTForImageClassification(transformers.ViTConfig(**VIT)))
    network = read_network(written(theirs, tmp_path))
    model, source = here(network, [Elements(shape=(48,))]), images(3, 16)
    one_each = Ragged.from_lengths(torch.zeros(3, dtype=torch.long), [1] * 3)
    with torch.no_grad():
        wanted = theirs(pixels(source, 16)).logits
        assert apart(model(source, one_each), list(wanted[:, None])) < NEAR
    comes_back(network, tmp_path)
    names = theirs.state_dict()  # as they are called in memory
    assert family_of(network.config, names).imported().keys() == network.imported().keys()
    published = load_file(tmp_path / "model.safetensors")
    alone = encoder_weights(published, layout_of(published, tmp_path), tmp_path)
    assert all(torch.equal(network.imported()[f"encoder.{name}"], tensor) for name, tensor in alone.items())


@whole
@pytest.mark.parametrize("width", [16, 24])
def test_a_captioner_computes_the_same(width: int, tmp_path: Path) -> None:
    encoder = transformers.ViTModel(transformers.ViTConfig(**{**VIT, "hidden_size": width}))
    config = transformers.GPT2Config(**GPT, add_cross_attention=True, is_decoder=True)
    decoder = transformers.GPT2LMHeadModel(config)
    theirs = drawn(transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder))
    folder = written(theirs, tmp_path)
    network = read_network(folder)
    model, source, targets = here(network, [Elements(shape=(48,))]), images(3, 16), ids(30, [5, 8, 2], seed=2)
    with torch.no_grad():
        shown = pixels(source, 16)
        wanted = [
            theirs(pixel_values=shown[i : i + 1], decoder_input_ids=torch.tensor([row])).logits[0]
            for i, row in enumerate(targets.tolist())
        ]
        assert apart(model(source, targets), wanted) < NEAR
        assert stepwise(model, source, ids(30, [6, 6, 6], seed=3)) < NEAR
    pooled = {name for name in load_file(folder / "model.safetensors") if name.startswith("encoder.pooler.")}
    assert load_file(folder / "model.safetensors").keys() - network.exported(network.imported()).keys() == pooled
    comes_back(network, folder, without=pooled)


@whole
def test_whisper_computes_the_same_from_samples_on(tmp_path: Path) -> None:
    options = {
        **SMALL, "max_source_positions": 50, "max_target_positions": 20, "num_mel_bins": 80,
        "begin_suppress_tokens": None,
    }  # fmt: skip
    del options["max_position_embeddings"]
    theirs = drawn(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**options)))
    network = read_network(written(theirs, tmp_path))
    model, targets = here(network, [Elements(shape=(160,))]), ids(30, [5, 8, 2], seed=2)
    lengths, draw = [41, 100, 7], torch.Generator().manual_seed(1)
    samples = torch.randint(-9999, 9999, (sum(lengths), 160), generator=draw, dtype=torch.int16)
    source = Ragged.from_lengths(samples, lengths)
    extract = transformers.WhisperFeatureExtractor(chunk_length=1)  # of 100 frames
    sounds = [row.flatten().numpy() / 32768 for row in source.values.split(lengths)]
    frames = extract(sounds, sampling_rate=16000, return_tensors="pt").input_features
    assert frames.shape == (3, 80, 100)
    with torch.no_grad():
        wanted = [
            theirs(input_features=frames[i : i + 1], decoder_input_ids=torch.tensor([row])).logits[0]
            for i, row in enumerate(targets.tolist())
        ]
        assert apart(model(source, targets), wanted) < NEAR
        assert stepwise(model, source, ids(30, [6, 6, 6], seed=3)) < NEAR
    comes_back(network, tmp_path)


# Networks of the published sizes: each has as many numbers as its authors say, and where Regard has more or fewer, why

SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": ({"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}, 124_439_808),
    "t5": (
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128}, 60_506_624,
    ),
    "bert": (
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
        109_514_298,
    ),
    "roberta": (
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
        124_697_433,
    ),
    "distilbert": (
        {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522,
         "max_position_embeddings": 512},
        66_985_530,
    ),
    "whisper": (  # of the tiny one, with a bias of keys in 12 layers of attention
        {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
         "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "vocab_size": 51865},
        37_760_640 + 12 * 384,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_networks_of_published_sizes_have_as_many_parameters(name: str) -> None:
    given, parameters = SIZES[name]
    network = family_of({"model_type": name, **given})
    config = Config.parse({"run": "run", **network.sections()})
    elements = [Elements(shape=(160,))] if name == "whisper" else [Elements(network.vocabulary)]
    with torch.device("meta"):
        model = build(config.model, elements, network.outputs, config.model.max_positions or 0, config.target)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert {move.ours for move in network.moves()} == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("gpt2", {"model_type": "gpt2", **SIZES["gpt2"][0]}),
        ("radford2023", {"model_type": "whisper", **SIZES["whisper"][0]}),
        (
            "t5-gated",
            {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
             "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ),
        (
            "bart",
            {"model_type": "bart", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
             "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
        ),
    ],
)  # fmt: skip
def test_presets_are_the_networks_of_the_published_weights(preset: str, given: dict[str, Any]) -> None:
    theirs, ours = ({"run": "run", **family_of(given).sections()}, {"run": "run", "preset": preset})
    left = {"max_positions": None, "dropout": 0.1}
    one, other = (Config.parse(settings).model.model_copy(update=left) for settings in (theirs, ours))
    assert one == other


def test_what_training_alone_does_keeps_no_model_from_transformers() -> None:
    family = family_of({"model_type": "gpt2", **SIZES["gpt2"][0]})
    model = family.sections()["model"]
    for more, found in (
        ({"stochastic_depth": 0.1}, []),
        ({"heads": 6}, ["model.decoder.heads is 6, not 12"]),
    ):
        decoder = {**model["decoder"], **more}
        settings = {"run": "run", **family.sections(), "model": {**model, "dropout": 0.3, "decoder": decoder}}
        assert list(differences(Config.parse(settings), family)) == found
