"""Pictures of every mode, depth and orientation; and damaged, endless and foreign ones."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms

from regard.data.modalities.pixels import check_picture, read_picture
from regard.errors import DataError

SIDE = 8
RAMP = np.arange(64).reshape(SIDE, SIDE) * 4  # 0 to 252
COLOURS: NDArray[np.uint8] = np.stack([RAMP, 255 - RAMP, np.full_like(RAMP, 100)], -1).astype(np.uint8)
GREY: NDArray[np.uint8] = np.repeat(RAMP[..., None], 3, -1).astype(np.uint8)
BASE = Image.fromarray(COLOURS)


def pixels(path: Path) -> NDArray[np.int64]:
    check_picture(path)
    return read_picture(path, SIDE).reshape(SIDE, SIDE, 3).astype(np.int64)


def close(path: Path, wanted: NDArray[Any], most: int = 0) -> None:
    assert np.abs(pixels(path) - wanted.astype(np.int64)).max() <= most


SAVED: dict[str, dict[str, Any]] = {
    "png": {}, "tif": {}, "gif": {}, "bmp": {}, "tga": {}, "webp": {"lossless": True},
    "jpg": {"quality": 100, "subsampling": 0},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"])
def test_modes(tmp_path: Path, mode: str) -> None:
    """In every format that has the mode: in red, green and blue, in grey where there are no colours."""
    image = BASE.convert(mode)
    if mode in ("LA", "RGBA", "PA"):
        image.putalpha(128)  # half see-through: taken as if it were not
    grey = np.asarray(BASE.convert("1" if mode == "1" else "L").convert("RGB"))
    wanted = grey if mode in ("1", "L", "LA") else np.asarray(image.convert("RGB")) if mode in ("P", "PA") else COLOURS
    tried = []
    for ending, options in SAVED.items():
        path = tmp_path / f"x.{ending}"
        try:
            image.save(path, **options)
        except (OSError, KeyError, ValueError):
            continue
        tried.append(ending)
        close(path, wanted, most=30 if ending == "gif" else 4)
    assert "tif" in tried


def test_lab_is_colour(tmp_path: Path) -> None:
    pale = Image.fromarray((COLOURS // 3 + 80).astype(np.uint8))  # which all profiles hold
    to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    lab = ImageCms.applyTransform(pale, to_lab)
    assert lab is not None
    lab.save(tmp_path / "x.tif")
    close(tmp_path / "x.tif", np.asarray(pale), most=4)


def test_depths_beyond_eight_bits_keep_their_range(tmp_path: Path) -> None:
    wide = RAMP * 257
    unit = RAMP / 252
    for name, values, wanted in (
        ("16.png", wide.astype(np.uint16), RAMP), ("16.tif", wide.astype(np.uint16), RAMP),
        ("i8.tif", RAMP.astype(np.int32), RAMP), ("i16.tif", wide.astype(np.int32), RAMP),
        ("i32.tif", (unit * 2**30).astype(np.int32), unit * 255),
        ("signed.tif", RAMP.astype(np.int32) - 100, RAMP - 100),
        ("unit.tif", unit.astype(np.float32), unit * 255), ("f8.tif", RAMP.astype(np.float32), RAMP),
        ("f16.tif", wide.astype(np.float32), RAMP), ("large.tif", (unit * 1e9).astype(np.float32), unit * 255),
        ("black.tif", np.zeros((SIDE, SIDE), np.float32), np.zeros((SIDE, SIDE))),
    ):  # fmt: skip
        Image.fromarray(values).save(tmp_path / name)
        close(tmp_path / name, np.asarray(wanted).clip(0)[..., None].repeat(3, -1), most=1)
    odd = unit.astype(np.float32)
    odd[0, :3] = np.nan, np.inf, -np.inf
    Image.fromarray(odd).save(tmp_path / "odd.tif")
    found = pixels(tmp_path / "odd.tif")
    assert found[0, :3].max() == 0
    assert found[7, 7, 0] == 255
    (tmp_path / "x.pgm").write_bytes(b"P5 8 8 65535\n" + wide.astype(">u2").tobytes())
    close(tmp_path / "x.pgm", GREY)
    (tmp_path / "x12.pgm").write_bytes(b"P5 8 8 4095\n" + (RAMP * 16).astype(">u2").tobytes())
    close(tmp_path / "x12.pgm", GREY, most=1)
    (tmp_path / "x.pfm").write_bytes(b"Pf\n8 8\n-1.0\n" + np.flipud(unit).astype("<f4").tobytes())
    close(tmp_path / "x.pfm", unit[..., None].repeat(3, -1) * 255, most=1)


def test_transparency_is_taken_as_if_it_were_not(tmp_path: Path) -> None:
    for name, image, transparent, wanted in (
        ("p.png", BASE.convert("P"), 0, None), ("ps.png", BASE.convert("P"), bytes(range(256)), None),
        ("l.png", Image.fromarray(RAMP.astype(np.uint8)), 8, GREY), ("rgb.png", BASE, (0, 255, 100), COLOURS),
        ("i.png", Image.fromarray((RAMP * 257).astype(np.uint16)), 514, GREY),
    ):  # fmt: skip
        image.save(tmp_path / name, transparency=transparent)
        close(tmp_path / name, np.asarray(image.convert("RGB")) if wanted is None else wanted)


ORIENTED: dict[int, Any] = {
    1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x, 2).swapaxes(0, 1), 8: lambda x: np.rot90(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("orientation", ORIENTED)
def test_orientations(tmp_path: Path, orientation: int) -> None:
    """EXIF says how the camera was held: 6 is a quarter turn clockwise to stand upright."""
    exif = Image.Exif()
    exif[0x112] = orientation
    for ending in ("png", "tif", "jpg", "webp"):
        BASE.save(tmp_path / f"x.{ending}", exif=exif, **SAVED[ending])
        close(tmp_path / f"x.{ending}", ORIENTED[orientation](COLOURS), most=3)


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tif"])
def test_of_several_frames_the_first(tmp_path: Path, ending: str) -> None:
    other = Image.fromarray(255 - COLOURS)
    BASE.save(tmp_path / f"x.{ending}", save_all=True, append_images=[other], **SAVED[ending])
    with Image.open(tmp_path / f"x.{ending}") as image:
        assert getattr(image, "n_frames", 1) == 2
    close(tmp_path / f"x.{ending}", COLOURS, most=30 if ending == "gif" else 0)


def _header(width: int, height: int) -> bytes:
    """The beginning of a PNG of this size."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(10**5)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    """Truncated, of an absurd size, of another kind, or one that would have a program started; in an archive too."""
    large = Image.effect_noise((64, 64), 50)
    whole = {}
    for ending in ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP"):
        file = io.BytesIO()
        large.convert("RGB").save(file, ending)
        whole[f"cut.{ending.lower()}"] = file.getvalue()[: len(file.getvalue()) // 2]
    foreign = {
        "huge.png": _header(100_000, 100_000), "large.png": _header(12_000, 12_000),
        "text.jpg": b"hello", "empty.png": b"", "x.svg": b"<svg/>",
        "x.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }  # fmt: skip
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, content in (whole | foreign).items():
            (tmp_path / name).write_bytes(content)
            archive.add(tmp_path / name, name)
    for name in whole | foreign:
        for field in (str(tmp_path / name), f"{tmp_path}/x.tar::{name}"):
            for read in (check_picture, lambda field: read_picture(field, SIDE)):
                with pytest.raises(DataError, match="cannot be read as a picture") as caught:
                    read(field)
                assert str(caught.value).startswith(field)
                assert "BytesIO" not in str(caught.value)
                if name in ("huge.png", "large.png"):
                    assert str(caught.value).endswith("make it smaller")
    with pytest.raises(DataError, match="12,000 x 12,000 pixels: that is more than 100,000,000; make it smaller"):
        check_picture(tmp_path / "large.png")
