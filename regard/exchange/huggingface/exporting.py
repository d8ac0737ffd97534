"""Export to Hugging Face's `transformers`: a folder that `AutoModel…from_pretrained` loads, with the same logits.

A model has to have the form of one that is known there (`forms.py`), as one that was imported has, or one that was
trained with such settings. What was written is read again, and has to be the same bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.artifacts import new_folder, write_text
from regard.data.marks import Frame
from regard.data.targets.label import Label
from regard.data.targets.number import Number
from regard.errors import ConfigError, ModelError
from regard.exchange.huggingface import PREPROCESSOR, read_network
from regard.exchange.huggingface.forms import form_of, with_marks
from regard.exchange.huggingface.generating import generation_settings
from regard.exchange.huggingface.given import SETTINGS
from regard.exchange.huggingface.native import tokenizer_of
from regard.exchange.huggingface.tokens import write_tokenizer
from regard.exchange.huggingface.vit import FILTERS
from regard.exchange.huggingface.whisper_prompt import knows_whisper
from regard.models.vision import DEVIATIONS, MEANS
from regard.settings import Config
from regard.system import System
from regard.training.checkpoint import weights

KIND = "Hugging Face export"


@dataclass(frozen=True)
class HuggingFaceReport:
    """What was written for `transformers`."""

    folder: str
    bytes: int
    architecture: str
    tensors: int

    def __str__(self) -> str:
        return f"{self.folder}: {self.architecture}, {self.tensors} tensors, {self.bytes / 2**20:.1f} MiB"


def export(system: System, folder: str | Path, *, force: bool = False) -> HuggingFaceReport:
    """Write a model as `transformers` does. `force` replaces an older export, and nothing else."""
    config, target = system.config, system.task.target
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in weights(system.task.model).items()}
    config, own = _halved(config, own)
    if isinstance(target, Number):  # the head predicts numbers in units of the training data
        weight, bias = "head.linear.weight", "head.linear.bias"
        own |= {weight: own[weight] * target.spread, bias: own[bias] * target.spread + target.mean}
    for name, side in system.task.sides.texts.items():
        if not side.form.plain or side.form.casing is not None:
            raise ConfigError(
                f"{name}.normalize and {name}.case are Regard's own, and transformers would read and write otherwise; "
                "ONNX and CTranslate2 exports take them"
            )
    frame = _frame(system)
    tokenizers = {name: tokenizer_of(made, frame) for name, made in system.tokenizers.items()}
    labels = list(target.labels) if isinstance(target, Label) else []
    preprocessor = _preprocessor(config)
    written = tokenizers.get("target", tokenizers.get("tokens"))
    sizes = (system.task.source.vocabulary or (written.size if written else 0), target.size)
    family = form_of(config, sizes, labels, preprocessor)
    own = family.neutral(own)
    tensors = family.exported(own)
    settings = dict(family.config)
    with new_folder(Path(folder), KIND, force=force) as new:
        if written is not None:
            settings = with_marks(settings, written.marks)
            facts = {"model_max_length": config.model.max_positions, **_inputs(config)}
            if settings["model_type"] == "whisper" and knows_whisper(written):
                facts |= {"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor"}
            _write(new / SETTINGS, {**write_tokenizer(tokenizers, new), **facts})
            if config.target.written and not config.model.encoder_only:
                longest = config.model.max_positions or 0
                generation = generation_settings(config.search, written.marks, settings["model_type"], longest)
                _write(new / "generation_config.json", generation)
        if preprocessor:
            _write(new / PREPROCESSOR, preprocessor)
        _write(new / "config.json", {**settings, "dtype": "float32"})
        _save(new / "model.safetensors", tensors)
        back = read_network(new).imported()
        odd = [name for name in own if name not in back or not torch.equal(own[name], back[name])]
        if odd or back.keys() - own.keys():
            what = (odd or sorted(back.keys() - own.keys()))[0]
            raise ModelError(f"{what} does not come back from what was written for transformers; that is thrown away")
        size = sum(path.stat().st_size for path in new.iterdir())
    return HuggingFaceReport(str(folder), size, family.architecture, len(tensors))


def _frame(system: System) -> Frame:
    """The marks around a text that this model reads, or, where it reads none, before one that it goes on with."""
    task = system.task
    frame = getattr(task.source, "frame", None)
    if isinstance(frame, Frame):
        return frame
    return task.target.marks.frame(begins=True, ends=True) if system.config.model.encoder_only else Frame(task.first)


def _inputs(config: Config) -> dict[str, Any]:
    """What a tokenizer gives a network: segments too, where it reads them; a plain one gives none by itself."""
    segments = any(getattr(part.stem, "segments", 0) > 1 for part in config.model.encoders)
    names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return {"model_input_names": names}


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def _preprocessor(config: Config) -> dict[str, Any]:
    """`preprocessor_config.json`, of what reads pictures or sound."""
    side = config.sources[0]
    if side.kind == "image":
        colours = getattr(config.model.encoders[0].stem, "colours", "centred")
        means, spread = (MEANS, DEVIATIONS) if colours == "imagenet" else ((0.5,) * 3, (0.5,) * 3)
        size: int = getattr(side, "size", 224)
        return {
            "image_processor_type": "ViTImageProcessor", "do_normalize": True, "do_rescale": True, "do_resize": True,
            "image_mean": list(means), "image_std": list(spread), "size": {"height": size, "width": size},
            "resample": FILTERS[getattr(side, "resample", "bilinear")], "rescale_factor": 1 / 255,
        }  # fmt: skip
    if side.kind == "audio":
        stem = config.model.encoders[0].stem
        return {
            "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000, "hop_length": 160,
            "n_fft": 400,
            "feature_size": getattr(stem, "mels", 80), "chunk_length": getattr(stem, "frames", 3000) // 100,
            "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False,
        }  # fmt: skip
    return {}


# Sines and cosines side by side, as halves

RESIDUAL = {  # the axis of a weight that is d_model wide, by how its name ends
    "embedding.table.weight": 1, "segments.weight": 1, "attention.inputs.weight": 1, "attention.output.weight": 0,
    "attention.output.bias": 0, "inner.weight": 1, "gate.weight": 1, "outer.weight": 0, "outer.bias": 0,
    "norm.weight": 0, "norm.bias": 0, "final.weight": 0, "final.bias": 0, "head.linear.weight": 1,
}  # fmt: skip


def _halved(config: Config, own: dict[str, Tensor]) -> tuple[Config, dict[str, Tensor]]:
    """A model with sinusoidal positions as one with all sines before all cosines: the same numbers in another order."""
    parts = (*config.model.encoders, config.model.decoder)
    if any(getattr(part, "positions", "") != "sinusoidal" for part in parts):
        return config, own
    order = torch.arange(config.model.d_model).view(-1, 2).mT.flatten()
    moved = {}
    for name, tensor in own.items():
        axis = next((axis for ending, axis in RESIDUAL.items() if name.endswith(ending)), None)
        moved[name] = tensor if axis is None else tensor.index_select(axis, order)
    encoder, decoder = (
        part.model_copy(update={"positions": "sinusoidal_halves"})
        for part in (config.model.encoders[0], config.model.decoder)
    )
    model = config.model.model_copy(update={"encoder": encoder, "decoder": decoder})
    return config.model_copy(update={"model": model}), moved
