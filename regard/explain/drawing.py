"""What all pictures for print share: a figure to draw on, fonts for any script, the look.

Figures are built on Matplotlib's objects, not on pyplot, so nothing here depends on a display or leaves a figure
behind, and Matplotlib is imported only when a picture is drawn. The same data give the same file, byte for byte.
"""

from __future__ import annotations

import io
import logging
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.artifacts import write_bytes
from regard.errors import ConfigError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#22262e", "#7a8290", "#e4e6ea"
LABEL = 10  # points
DPI = 150
LONGEST_LABEL = 24  # characters; one long web address should not push the drawing off the paper
SOME_MISSING = 5  # characters that no font has, to name
LARGEST_SIDE = 40.0  # inches; a page of text should not exhaust memory
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: the reader's own fonts draw scripts that ours lack
    "svg.hashsalt": "regard",
    "pdf.fonttype": 42,
    "text.usetex": False,
    "axes.unicode_minus": True,
}


@contextmanager
def drawing(path: Path, texts: Iterable[str], look: dict[Any, Any] | None = None) -> Iterator[Figure]:
    """A figure of one inch square, whose axes lie in inches from its upper left corner; written to `path` at the end.

    Its own size does not matter, for the file is cut to what was drawn. `texts` are what the fonts must have; one
    warning says what no installed font has, save in .svg, where text stays text. `look` is further settings of
    Matplotlib.
    """
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"cannot draw '{path.suffix}' ({path}); the ending may be .png, .svg or .pdf")
    require("matplotlib")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[path.suffix]
    families, missing = fonts_for(legible("".join(texts)))
    if missing and path.suffix != ".svg":
        some = ", ".join(sorted(missing)[:SOME_MISSING]) + (" …" if len(missing) > SOME_MISSING else "")
        warnings.warn(
            f"no installed font has {some}, so {path.name} shows boxes there; install one that has, such as Noto Sans "
            f"CJK for Chinese, Japanese and Korean, or write .svg or .html, which are shown with the reader's fonts",
            stacklevel=3,  # where the picture is drawn
        )
    with matplotlib.rc_context({**SETTINGS, "font.family": families, **(look or {})}), _any_script():
        figure = Figure(figsize=(1.0, 1.0), dpi=DPI, facecolor="white")  # texts that are measured are as large as drawn
        FigureCanvasAgg(figure)
        yield figure
        # In memory, for where a file cannot be written to its end, Matplotlib may raise something else again.
        made = io.BytesIO()
        figure.savefig(made, format=path.suffix[1:], dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata=stamp)
        write_bytes(path, made.getvalue())


@contextmanager
def _any_script() -> Iterator[None]:
    """Let a character that no installed font has become an empty box, without Matplotlib's warning for each.

    A picture with a box in a label still shows its attention; in .svg the text is whole in any case.
    """
    fonts = logging.getLogger("matplotlib.font_manager")  # grumbles when a font for a rare script has one weight only
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
            warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")
            yield
    finally:
        fonts.setLevel(level)


def fonts_for(text: str) -> tuple[list[str], set[str]]:
    """The fonts to draw `text` with: Matplotlib's own, then whichever installed ones have what it lacks; and the
    characters that none of them has."""
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {ord(x) for x in text} - font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap().keys()
    for entry in font_manager.fontManager.ttflist if missing else ():
        # Matplotlib falls back to Last Resort, a font of boxes, by itself: it must not stand before a real one.
        if entry.style != "normal" or entry.name in families or entry.name.startswith("Last Resort"):
            continue
        try:
            found = missing & font_manager.get_font(entry.fname).get_charmap().keys()
        except (OSError, RuntimeError):  # a font listed earlier and gone since, or one FreeType cannot read
            continue
        if found:
            families.append(entry.name)
            missing -= found
        if not missing:
            break
    # Joiners and marks of direction are not drawn, so that no font has them does not show.
    return [*families, "sans-serif"], {x for x in map(chr, missing) if unicodedata.category(x) != "Cf"}


def shown(piece: str) -> str:
    """A piece as a label: spaces and SentencePiece's mark as ␣, control characters as escapes, never too long."""
    return shorten("".join("␣" if x in "▁ \u00a0\u3000" else x for x in piece))


def shorten(text: str, longest: int = LONGEST_LABEL) -> str:
    """The text as it can be drawn, or its beginning and an ellipsis."""
    text = legible(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def legible(text: str) -> str:
    """The text, with something in place of each character that cannot be drawn."""
    # No font and no file can hold half of a character, as a byte tokenizer may leave behind.
    whole = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return "".join(repr(x)[1:-1] if unicodedata.category(x) == "Cc" else x for x in whole)


def style(size: float = LABEL, color: str = INK) -> dict[str, Any]:
    """How text is written. A dollar sign is a token here, not the start of a formula."""
    return {"fontsize": size, "color": color, "parse_math": False}


def columns_for(count: int, width: float, height: float) -> int:
    """How many boxes side by side, so that the whole is somewhat wider than high and few places stay empty."""

    def cost(across: int) -> float:
        down = math.ceil(count / across)
        shape = across * width / (down * (height or 1))
        return abs(math.log(max(shape, 1e-9) / 1.5)) + 0.2 * (across * down - count)

    return min(range(1, count + 1), key=cost)
