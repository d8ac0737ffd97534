"""Which network of Hugging Face's a model of Regard is, by its settings: the `config.json` of one that computes alike.

Each form writes the `config.json` that its family would read as these settings; that it does is checked by reading it
(`Family.sections`), so that what a family says of itself is said in one place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from regard.data.marks import Marks
from regard.errors import ConfigError
from regard.exchange.huggingface import family_of
from regard.exchange.huggingface.family import ACTIVATIONS, Family
from regard.fingerprint import settings_of
from regard.model_settings import ModelSettings
from regard.settings import Config

NAMES = {here: there for there, here in reversed(ACTIVATIONS.items())}  # of activations
FREE = ("dropout", "stochastic_depth", "max_positions")  # what may differ; the last, where no weight hangs on it


def _encoder_decoder(config: Config, sizes: tuple[int, int]) -> Iterator[dict[str, Any]]:
    model: Any = config.model
    encoder, decoder = model.encoder, model.decoder
    shared = {
        "d_model": model.d_model, "dropout": model.dropout, "scale_embedding": model.scale_embeddings,
        "max_position_embeddings": model.max_positions, "activation_function": NAMES[encoder.activation],
        "vocab_size": sizes[0], "tie_word_embeddings": True,
        **{
            f"{side}_{name}": value
            for side, part in (("encoder", encoder), ("decoder", decoder))
            for name, value in (("layers", part.layers), ("attention_heads", part.heads), ("ffn_dim", part.d_ff))
        },
    }  # fmt: skip
    yield {
        **shared, "model_type": "marian", "architectures": ["MarianMTModel"], "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": model.share_embeddings, "decoder_vocab_size": sizes[1],
    }  # fmt: skip
    yield {**shared, "model_type": "bart", "architectures": ["BartForConditionalGeneration"]}
    yield {**shared, "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"]}
    gates = {
        (False, "relu"): "relu",
        (False, "gelu"): "gelu",
        (True, "gelu_tanh"): "gated-gelu",
        (True, "silu"): "gated-silu",
    }
    yield {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": model.d_model,
        "dropout_rate": model.dropout, "n_positions": model.max_positions, "num_layers": encoder.layers,
        "num_decoder_layers": decoder.layers, "num_heads": encoder.heads, "d_ff": encoder.d_ff,
        "d_kv": encoder.d_head or model.d_model // encoder.heads, "layer_norm_epsilon": encoder.norm_epsilon,
        "relative_attention_num_buckets": encoder.buckets, "relative_attention_max_distance": encoder.bucket_distance,
        "feed_forward_proj": gates.get((encoder.gated, encoder.activation), "relu"), "vocab_size": sizes[0],
        "tie_word_embeddings": model.tie_output, "scale_decoder_outputs": decoder.scale_output,
    }  # fmt: skip


def _gpt2(model: Any, size: int) -> dict[str, Any]:
    decoder = model.decoder
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": model.d_model, "n_layer": decoder.layers,
        "n_head": decoder.heads, "n_inner": decoder.d_ff, "n_positions": model.max_positions, "vocab_size": size,
        "activation_function": NAMES[decoder.activation], "layer_norm_epsilon": decoder.norm_epsilon,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
    }  # fmt: skip


def _encoder(config: Config, sizes: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """An encoder that reads text, under one of the heads that there are."""
    model: Any = config.model
    encoder = model.encoder
    head = {
        "text": "MaskedLM", "label": "SequenceClassification", "number": "SequenceClassification",
        "tags": "TokenClassification", "span": "QuestionAnswering", "choice": "MultipleChoice",
    }.get(config.target.kind)  # fmt: skip
    if head is None:
        return
    common = {
        "hidden_size": model.d_model, "num_hidden_layers": encoder.layers, "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.d_ff, "hidden_act": NAMES[encoder.activation], "vocab_size": sizes[0],
        "hidden_dropout_prob": model.dropout, "layer_norm_eps": encoder.norm_epsilon,
        "type_vocab_size": getattr(encoder.stem, "segments", 0),
        "max_position_embeddings": (model.max_positions or 0) + encoder.first_position,
    }  # fmt: skip
    yield {**common, "model_type": "bert", "architectures": [f"BertFor{head}"]}
    yield {**common, "model_type": "roberta", "architectures": [f"RobertaFor{head}"], "pad_token_id": 1}
    yield {
        "model_type": "distilbert", "architectures": [f"DistilBertFor{head}"], "dim": model.d_model,
        "n_layers": encoder.layers, "n_heads": encoder.heads, "hidden_dim": encoder.d_ff, "vocab_size": sizes[0],
        "dropout": model.dropout, "activation": NAMES[encoder.activation],
        "max_position_embeddings": model.max_positions,
    }  # fmt: skip


def _vit(config: Config, d_model: int) -> dict[str, Any]:
    model: Any = config.model
    encoder, side = model.encoder, config.sources[0]
    return {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": d_model,
        "num_hidden_layers": encoder.layers, "num_attention_heads": encoder.heads, "intermediate_size": encoder.d_ff,
        "hidden_act": NAMES[encoder.activation], "layer_norm_eps": encoder.norm_epsilon,
        "hidden_dropout_prob": model.dropout, "attention_probs_dropout_prob": model.dropout,
        "image_size": getattr(side, "size", 224), "patch_size": getattr(encoder.stem, "size", 16),
    }  # fmt: skip


def _whisper(config: Config, sizes: tuple[int, int]) -> dict[str, Any]:
    model: Any = config.model
    encoder, decoder = model.encoder, model.decoder
    return {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": model.d_model,
        "dropout": model.dropout, "vocab_size": sizes[1], "activation_function": NAMES[encoder.activation],
        "num_mel_bins": getattr(encoder.stem, "mels", 80),
        "max_source_positions": getattr(encoder.stem, "frames", 3000) // 2, "max_target_positions": model.max_positions,
        **{
            f"{side}_{name}": value
            for side, part in (("encoder", encoder), ("decoder", decoder))
            for name, value in (("layers", part.layers), ("attention_heads", part.heads), ("ffn_dim", part.d_ff))
        },
    }  # fmt: skip


def _captioner(config: Config, sizes: tuple[int, int]) -> dict[str, Any]:
    model: Any = config.model
    encoder = {**_vit(config, getattr(model.encoder, "width", None) or model.d_model), "architectures": ["ViTModel"]}
    decoder = {**_gpt2(model, sizes[1]), "add_cross_attention": True, "is_decoder": True}
    return {
        "model_type": "vision-encoder-decoder", "architectures": ["VisionEncoderDecoderModel"], "encoder": encoder,
        "decoder": decoder, "is_encoder_decoder": True, "tie_word_embeddings": False,
    }  # fmt: skip


def candidates(config: Config, sizes: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """What a model might be there, going by what it reads and writes. It reads and predicts so many tokens."""
    model, kinds = config.model, [side.kind for side in config.sources]
    transformer = [part.kind for part in (*model.encoders, model.decoder)]
    if len(kinds) > 1 or model.ctc or model.output != "full" or config.target.chained or _pools(config):
        return
    match kinds[0], transformer:
        case (("text" | "none"), ["transformer", "transformer"]) if config.target.text:  # with none it undoes noise
            yield from _encoder_decoder(config, sizes)
        case "none", ["none", "transformer"]:
            yield _gpt2(model, sizes[1])
        case "text", ["none", "transformer"] if config.target.kind == "label":
            yield {**_gpt2(model, sizes[0]), "architectures": ["GPT2ForSequenceClassification"]}
        case (("none" | "text"), ["transformer", "none"]):
            yield from _encoder(config, sizes)
        case "image", ["transformer", "none"] if config.target.kind == "label":
            yield _vit(config, model.d_model)
        case "image", ["transformer", "transformer"] if config.target.text:
            yield _captioner(config, sizes)
        case "audio", ["transformer", "transformer"] if config.target.text:
            yield _whisper(config, sizes)


def _pools(config: Config) -> bool:
    """Whether a head stands on another vector than is usual."""
    return config.target.pool is not None and not config.target.vectors


def form_of(config: Config, sizes: tuple[int, int], labels: list[str], preprocessor: Mapping[str, Any]) -> Family:
    """The family of a model, made from a `config.json` that says what its settings say."""
    nearest: tuple[str, list[str]] | None = None
    for candidate in candidates(config, sizes):
        if config.target.kind == "number":
            candidate |= {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
        if labels:
            candidate["id2label"] = dict(enumerate(labels))
            candidate["label2id"] = {label: i for i, label in enumerate(labels)}
        try:
            family = family_of(_plain(candidate), {}, preprocessor)
            odd = list(differences(config, family))
        except ConfigError as error:
            odd = [str(error)]
        if not odd:
            return family
        if nearest is None or len(odd) < len(nearest[1]):
            nearest = candidate["model_type"], odd
    if nearest is None:
        model, target = config.model, config.target
        kinds = [f"source.kind {'/'.join(side.kind for side in config.sources)}", f"target.kind {target.kind}"]
        kinds += ["target.crf"] if target.chained else []
        kinds += [f"target.pooling {target.pool}"] if _pools(config) else []
        kinds += ["model.ctc"] if model.ctc else []
        kinds += [f"model.output {model.output}"] if model.output != "full" else []
        raise ConfigError(f"transformers has no model with {', '.join(kinds)}, so this one is not exported")
    kind, odd = nearest
    raise ConfigError(f"this is no model that transformers has; the nearest is {kind}, and there: {'; '.join(odd)}")


def _plain(candidate: dict[str, Any]) -> dict[str, Any]:
    """As it is read from a file, where numbers that are keys are text."""
    found: dict[str, Any] = json.loads(json.dumps(candidate))
    return found


def differences(config: Config, family: Family) -> Iterator[str]:
    """The settings of a network that a family has otherwise."""
    theirs = ModelSettings.model_validate(family.sections()["model"])
    learned = any(
        getattr(part, "positions", "") == "learned" for part in (*config.model.encoders, config.model.decoder)
    )
    skip = FREE[:-1] if learned else FREE
    here, there = settings_of(config.model), settings_of(theirs)
    for name in sorted({*here, *there}):
        if name.split(".")[-1] not in skip and here.get(name) != there.get(name) and not _same_stem(name, here, there):
            yield f"model.{name} is {here.get(name)}, not {there.get(name)}"


def _same_stem(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """A stem that is not named is that of tokens, without segments."""
    if ".stem" not in name:
        return False
    both = here.get(name), there.get(name)
    usual = {"stem.kind": "tokens", "stem.segments": 0}.get(name.split(".", 1)[1])
    return set(both) <= {None, usual}


def with_marks(config: dict[str, Any], marks: Marks) -> dict[str, Any]:
    """`config.json` with the ids of marks."""
    first = marks.first[0] if marks.first else None
    found = {"bos_token_id": marks.begin, "eos_token_id": marks.end, "pad_token_id": marks.pad}
    if config["model_type"] in ("marian", "bart", "mbart", "t5", "whisper", "vision-encoder-decoder"):
        found |= {"decoder_start_token_id": first, "is_encoder_decoder": True}
    if config["model_type"] == "marian" and marks.pad is None:
        found["pad_token_id"] = first
    return {**config, **{name: value for name, value in found.items() if value is not None}}
