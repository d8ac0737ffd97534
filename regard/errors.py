"""Every error that Regard raises on purpose.

The command line prints the message of any of these without a traceback and leaves with status 2. A message names the
thing, its value or place, and what would do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Optional libraries, by the name they are imported under: what needs which package, and the extra that installs it.
EXTRAS = {
    "PIL": ("pictures need pillow", "pictures"),
    "av": ("video files (PyAV) need av", "video"),
    "babel": ("the corpora need Babel", "corpora"),
    "ctranslate2": ("CTranslate2 exports need ctranslate2", "export"),
    "espeakng_loader": ("the spoken corpus needs espeakng-loader", "corpora"),
    "jiwer": ("word and character error rates need jiwer", "speech"),
    "matplotlib": ("figures need matplotlib", "plots"),
    "num2words": ("the corpora need num2words", "corpora"),
    "onnx": ("ONNX exports need onnx", "export"),
    "onnxruntime": ("ONNX exports need onnxruntime", "export"),
    "onnxscript": ("ONNX exports need onnxscript", "export"),
    "rouge_score": ("ROUGE of summaries needs rouge-score", "summaries"),
    "soundfile": ("recordings need soundfile", "speech"),
    "tokenizers": ("vocabularies of other programs need tokenizers", "import"),
    "fastapi": ("the server needs fastapi", "serve"),
    "uvicorn": ("the server needs uvicorn", "serve"),
    "prometheus_client": ("the server needs prometheus-client", "serve"),
    "python_multipart": ("the server needs python-multipart", "serve"),
    "py3langid": ("telling languages apart needs py3langid", "serve"),
    "huggingface_hub": ("models by name need huggingface_hub", "import"),
    "tensorboard": ("TensorBoard logs need tensorboard", "tensorboard"),
}


class RegardError(Exception):
    """The base of all errors that tell the user something."""


class ConfigError(RegardError):
    """A setting is unknown, of the wrong kind, or clashes with another."""


class DataError(RegardError):
    """A line or a file cannot be read as what it should be."""


class ModelError(RegardError):
    """A model folder is missing a part, or is not one of ours."""


class DamagedError(ModelError):
    """A file is not what was written: cut off, or changed since."""


class OutputError(RegardError):
    """Something is already where the result should go, or is in use by another process."""


class TrainingError(RegardError):
    """Training cannot go on, such as a loss that is no number."""


class MissingExtraError(RegardError):
    """An optional library is not installed; the message names the command that installs it."""


def shown(value: object, longest: int = 100) -> str:
    """A value as Python writes it, cut to so many characters, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists in lists
        text = f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest]}…"


def require(*modules: str) -> Any:
    """Import optional libraries and return the first, or raise an error that names the command which installs them."""
    found, missing = [], dict[str, str]()
    for module in modules:
        try:
            found.append(import_module(module))
        except ModuleNotFoundError as error:
            if error.name != module:  # it is there, and something that it needs is not
                raise
            needs, extra = EXTRAS[module]
            missing[needs] = extra
    if missing:
        extras = ",".join(dict.fromkeys(missing.values()))
        raise MissingExtraError(f"{', '.join(missing)}; pip install 'regard[{extras}]'")
    return found[0]
