"""Models in the forms of other programs: CTranslate2, ONNX, Hugging Face's transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from regard.errors import ConfigError, ModelError, shown

if TYPE_CHECKING:
    from regard.exchange.huggingface.exporting import HuggingFaceReport
    from regard.exchange.parity import Report
    from regard.system import System

_Form = Literal["onnx", "ctranslate2", "huggingface"]


def export(
    system: System, folder: str | Path, *, to: _Form, quantization: str | None = None, force: bool = False
) -> Report | HuggingFaceReport:  # fmt: skip
    """Write a model for another program into `folder`, check that it writes the same there, and report how near it is.

    `quantization` is how CTranslate2 stores weights (float32); `force` replaces an earlier export there, nothing else.
    """
    if to not in (known := get_args(_Form)):
        raise ConfigError(f"no export to {shown(to)}; there are: {', '.join(known)}")
    if to == "ctranslate2":
        from regard.exchange import ctranslate2

        return ctranslate2.export(system, folder, quantization, force=force)
    if quantization is not None:
        raise ConfigError("a quantization goes with ctranslate2; other exports are in float32")
    if to == "huggingface":
        from regard.exchange.huggingface import exporting

        return exporting.export(system, folder, force=force)
    from regard.exchange import onnx

    return onnx.export(system, folder, force=force)


def import_model(
    place: str | Path, output: str | Path, *, language: str | None = None, force: bool = False,
    warn: Callable[[str], Any] = warnings.warn,
) -> System:  # fmt: skip
    """Write the model of Hugging Face's `transformers` in a folder, or of a name on its Hub, as a model folder of
    Regard, and load it; or that of JoeyNMT or eole in a folder, or of fairseq or OpenNMT-py in a checkpoint.

    What it needs and Regard lacks is an error that names it; `warn` is called with the settings of generation that
    Regard lacks. `language` is what a Whisper of several languages hears. `force` replaces an earlier model there,
    nothing else.
    """
    from regard.exchange import toolkits
    from regard.exchange.huggingface import importing

    if not str(place).strip():
        raise ModelError("no model is named; a folder, a checkpoint or a name on the Hugging Face Hub will do")
    if toolkits.is_toolkit(Path(place)):
        if language is not None:
            raise ConfigError("a language goes with a Whisper of several languages; leave it out")
        return toolkits.import_model(Path(place), output, force=force)
    return importing.import_model(place, output, language=language, force=force, warn=warn)
