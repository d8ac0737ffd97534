"""Models in the forms of other programs: CTranslate2, ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.exchange.parity import Report
    from regard.system import System


def export(
    system: System, folder: str | Path, *, to: Literal["onnx", "ctranslate2"], quantization: str | None = None,
    force: bool = False,
) -> Report:  # fmt: skip
    """Write a model for another program into `folder`, check that it writes the same there, and report how near it is.

    `quantization` is how CTranslate2 stores weights (float32); `force` replaces an earlier export there, nothing else.
    """
    if to == "ctranslate2":
        from regard.exchange import ctranslate2

        return ctranslate2.export(system, folder, quantization, force=force)
    if quantization is not None:
        raise ConfigError("a quantization goes with ctranslate2; ONNX graphs are in float32")
    from regard.exchange import onnx

    return onnx.export(system, folder, force=force)
