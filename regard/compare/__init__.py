"""Several models on the same data under the same budget: trained, measured, tested, drawn and described.

    from regard.compare import Budget, compare, write_page

    results = compare({"small": small, "large": large}, "runs/compare", Budget(tokens=1_000_000))
    write_page(results, "compare.md")

Names are imported when first used, so that torch is loaded only to train.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.compare.page import write_page as write_page
    from regard.compare.results import Results as Results
    from regard.compare.runner import Budget as Budget
    from regard.compare.runner import compare as compare

_HOMES = {"Budget": "runner", "Results": "results", "compare": "runner", "write_page": "page"}
__all__ = ["Budget", "Results", "compare", "write_page"]


if not TYPE_CHECKING:  # a type checker, which would take any name then, has all of them above

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"regard.compare.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'regard.compare' has no attribute '{name}'")
