"""Pictures from files, without torch: training, `regard generate` and exported models read them alike."""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.readers.members import open_field
from regard.errors import DataError, require

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow opens by itself; for others it starts a program that the picture can give orders to.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA")
Filter = Literal["lanczos", "bilinear", "bicubic"]
PIXELS = 100_000_000  # more are refused before they are decoded


def read_picture(path: str | Path, side: int, resample: Filter = "lanczos") -> NDArray[np.uint8]:
    """A picture as `side` scanlines of `side` pixels, `(side, 3 side)`, the way up that its EXIF data say."""
    require("PIL")
    from PIL import ImageOps

    with _opened(path) as image:
        image.load()
        with suppress(Exception):  # of EXIF data that cannot be read, which say nothing
            ImageOps.exif_transpose(image, in_place=True)
        return fit_picture(_in_colour(image), side, resample)


def fit_picture(picture: Image, side: int, resample: Filter = "lanczos") -> NDArray[np.uint8]:
    """An open picture in red, green and blue as `side` scanlines of `side` pixels, `(side, 3 side)`."""
    from PIL.Image import Resampling

    if picture.size != (side, side):
        picture = picture.resize((side, side), Resampling[resample.upper()])
    return np.asarray(picture, dtype=np.uint8).reshape(side, -1)


def picture_size(path: str | Path) -> tuple[int, int]:
    """Width and height of a picture, by its header alone."""
    with _opened(path) as image:
        return image.width, image.height


def check_picture(path: str | Path) -> None:
    """An error if a file is no whole picture, at less cost than reading it."""
    with _opened(path) as image:
        if image.format == "PNG":
            image.verify()  # goes over the check sums of all chunks, the last included
        else:
            image.draft("RGB", (1, 1))  # a JPEG is decoded at an eighth of its size, any other as it is
            image.load()


@contextmanager
def _opened(path: str | Path) -> Iterator[Image]:
    """A picture whose size is bearable; whatever is wrong with it, here or while it is read, names the file."""
    require("PIL")
    from PIL import Image

    try:
        opened = open_field(path)
        if isinstance(opened, Path) and not stat.S_ISREG(opened.stat().st_mode):
            raise DataError(f"{path} cannot be read as a picture (it is no file); PNG and JPEG will do")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes that are checked here
            with Image.open(opened, formats=FORMATS) as image:
                if image.width * image.height > PIXELS:
                    size = f"{image.width:,} x {image.height:,} pixels"
                    raise DataError(
                        f"{path} cannot be read as a picture of {size}: that is more than {PIXELS:,}; make it smaller"
                    )
                yield image
    except DataError:
        raise
    except Image.DecompressionBombError:  # of a size that Pillow itself refuses
        raise DataError(f"{path} cannot be read as a picture of more than {PIXELS:,} pixels; make it smaller") from None
    except FileNotFoundError:
        raise DataError(
            f"no picture {path}; in a data file its path is relative to that file, elsewhere to where you are"
        ) from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        what = re.sub(" <_io[^>]*>", "", str(error).replace(f" {os.fspath(path)!r}", "")) or type(error).__name__
        raise DataError(f"{path} cannot be read as a picture ({what}); PNG and JPEG will do") from None


def _in_colour(image: Image) -> Image:
    """In red, green and blue of 8 bits each; what is see-through is taken as if it were not."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # of 16 bits, which `convert` would cut off at 255 instead of scaling
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        return Image.fromarray(_scaled(np.asarray(image, dtype=np.float32), whole=image.mode == "I")).convert("RGB")
    image.info.pop("transparency", None)
    return image.convert("RGB")


def _scaled(values: NDArray[np.float32], *, whole: bool) -> NDArray[np.uint8]:
    """Values whose range no file tells, as 8 bits: it is taken to be the least of 1 (unless they are `whole` numbers),
    255 and 65,535 that holds them, or else up to the largest. What is below 0 or no number is 0."""
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(0.0)
    largest = float(values.max(initial=0.0))
    top = next((x for x in (() if whole else (1.0,)) + (255.0, 65535.0) if largest <= x), largest)
    return (values * (255.0 / top)).round().astype(np.uint8)
