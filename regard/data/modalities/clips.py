"""Videos from folders of frames, .npz files and video files, without torch. Only frames that are wanted are held, and
a file that lies in an archive."""

from __future__ import annotations

import io
import math
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import file_digest
from regard.data.modalities.pixels import PIXELS, check_picture, fit_picture, read_picture
from regard.data.readers.members import field_digest, open_field, split_member
from regard.errors import DataError, RegardError, require

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".tga"}
FRAMES = 100_000  # a video of more is refused
TOTAL = 20_000_000_000  # pixels of all frames, of a file that is decoded from its beginning
Opened = Path | io.BytesIO  # a folder, a file, or the content of a member of an archive
WILL_DO = (
    "a folder of pictures, an .npz file with 'frames' (frames, height, width, 3) of bytes, or a video file will do"
)


def read_clip(path: str | Path, side: int, count: int) -> NDArray[np.uint8]:
    """A video as at most `count` evenly spaced frames of `side` x `side` pixels, `(frames, 3 side side)`."""
    with _named(path):
        kind, opened = _opened(path)
        if isinstance(opened, Path) and kind == "folder":
            names = _frames_of(opened)
            found = [read_picture(names[i], side) for i in chosen(len(names), count)]
        else:
            require("PIL")
            pictures = _from_npz if kind == "npz" else _from_file
            found = [fit_picture(one, side) for one in pictures(opened, count)]
        if not found:
            raise ValueError("it has no frames")
        return np.stack([frame.reshape(-1) for frame in found])


def check_clip(path: str | Path) -> None:
    """An error if there is no video to be read, at less cost than reading it: a file's first frame stands for all."""
    with _named(path):
        kind, opened = _opened(path)
        if isinstance(opened, Path) and kind == "folder":
            for frame in _frames_of(opened):
                check_picture(frame)
        elif not _count(kind, opened):
            raise ValueError("it has no frames")
        elif kind == "file":
            next(_from_file(opened, 1))


def count_frames(path: str | Path) -> int:
    """How many frames a video has, of which `read_clip` takes some."""
    with _named(path):
        return _count(*_opened(path))


def _count(kind: str, opened: Opened) -> int:
    if isinstance(opened, Path) and kind == "folder":
        return len(_frames_of(opened))
    if kind == "npz":
        with _npz(opened) as (_, shape):
            return shape[0]
    with _container(opened) as (_, _, total):
        return total


def clip_size(path: str | Path) -> tuple[int, int, int, float]:
    """How many frames a video file has, their width and height, and how many are shown a second; an .npz file, which
    does not say, is taken to have 25. Pictures are not decoded."""
    with _named(path):
        kind, opened = _opened(path)
        if kind == "npz":
            with _npz(opened) as (_, (total, height, width, _)):
                return total, width, height, 25.0
        with _container(opened) as (_, stream, total):
            context = stream.codec_context
            return total, context.width, context.height, float(stream.average_rate or 25)


def chosen(total: int, count: int) -> list[int]:
    """The numbers of at most `count` frames of `total`, evenly spaced, the first and the last among them."""
    if total <= count:
        return list(range(total))
    return [round(i * (total - 1) / max(count - 1, 1)) for i in range(count)]


def clip_digest(path: str | Path) -> str:
    """What tells the content of a video apart."""
    if split_member(str(path)):
        return field_digest(str(path))
    place = Path(path)
    if place.is_dir():
        with suppress(ValueError):  # of which reading it will tell
            return " ".join(f"{frame.name!a} {_file_digest(frame)}" for frame in _frames_of(place))
    return _file_digest(place)


def _file_digest(path: Path) -> str:
    with suppress(OSError):
        return file_digest(path) if path.is_file() else "missing"  # of a pipe it would wait for
    return "missing"


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Whatever is wrong with a video names it."""
    try:
        yield
    except RegardError:
        raise
    except FileNotFoundError:
        raise DataError(
            f"no video {path}; in a data file its path is relative to that file, elsewhere to where you are"
        ) from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        what = str(error).replace(f": {str(path)!r}", "") or type(error).__name__
        raise DataError(f"{path} cannot be read as a video ({what}); {WILL_DO}") from None


def _opened(path: str | Path) -> tuple[str, Opened]:
    """What kind of video a path names, and what it is read from."""
    opened = open_field(path)
    if isinstance(opened, io.BytesIO):
        return "npz" if opened.getvalue()[:4] == b"PK\3\4" else "file", opened
    mode = opened.stat().st_mode
    if stat.S_ISDIR(mode):
        return "folder", opened
    if not stat.S_ISREG(mode):
        raise ValueError("it is no file")
    return "npz" if opened.suffix.lower() == ".npz" else "file", opened


def _bounded(frames: int, width: int, height: int) -> None:
    if frames > FRAMES or width * height > PIXELS or frames * width * height > TOTAL:
        raise ValueError(
            f"{frames:,} frames of {width:,} x {height:,} pixels are more than {FRAMES:,} frames, {PIXELS:,} pixels of "
            f"a frame or {TOTAL:,} of all; make it smaller"
        )


def _frames_of(folder: Path) -> list[Path]:
    """The pictures in a folder, by name."""
    found = []
    for entry in folder.iterdir():
        if entry.suffix.lower() in SUFFIXES:
            found.append(entry)
        if len(found) > FRAMES:
            raise ValueError(f"it has more than {FRAMES:,} frames; make it shorter")
    if not found:
        raise ValueError("it holds no pictures")
    return sorted(found, key=lambda path: path.name)


# Arrays


@contextmanager
def _npz(opened: Opened) -> Iterator[tuple[IO[bytes], Sequence[int]]]:
    """The array `frames` of an .npz file, at its first byte, and its shape, which is bearable."""
    with zipfile.ZipFile(opened) as archive:
        if "frames.npy" not in archive.namelist():
            raise ValueError("it has no array 'frames'")
        size = archive.getinfo("frames.npy").file_size
        with archive.open("frames.npy") as file:
            version = np.lib.format.read_magic(file)
            read: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, column_first, dtype = read[version](file)
            if dtype != np.uint8 or len(shape) != 4 or shape[-1] != 3 or column_first or min(shape) < 1:
                raise ValueError(f"its 'frames' are {shape} of {dtype}")
            _bounded(shape[0], shape[2], shape[1])
            if size != file.tell() + math.prod(shape):
                raise ValueError(f"its 'frames' should be {shape}, and are cut off")
            yield file, shape


def _from_npz(opened: Opened, count: int) -> Iterator[Image]:
    from PIL import Image

    with _npz(opened) as (file, (total, height, width, _)):
        begin, size = file.tell(), 3 * width * height
        for number in chosen(total, count):
            file.seek(begin + number * size)
            content = file.read(size)
            if len(content) != size:
                raise ValueError(f"frame {number} is cut off")
            yield Image.frombytes("RGB", (width, height), content)


# Video files


@contextmanager
def _container(opened: Opened) -> Iterator[tuple[Any, Any, int]]:
    """An open video file, its first stream of pictures, and how many there are, all of it bearable."""
    av = require("av")
    held = opened.open("rb") if isinstance(opened, Path) else nullcontext(io.BytesIO(opened.getvalue()))
    # Through a file that is open, so that no name is taken for an address; and nothing in it may name another.
    with held as file, av.open(file, options={"protocol_whitelist": "none"}) as container:
        if not container.streams.video:
            raise ValueError("it has no pictures")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise ValueError("its pictures are cut off, or coded in a way that is not known here")
        width, height = stream.codec_context.width, stream.codec_context.height
        _bounded(1, width, height)
        total, end = 0, 0.0
        for packet in container.demux():
            total += packet.stream is stream and packet.size > 0
            _bounded(total, width, height)
            if packet.pts is not None:
                end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        _check_length(container, stream, end)
        container.seek(0)
        yield container, stream, total


def _check_length(container: Any, stream: Any, end: float) -> None:
    """Refuse a file that ends long before its header says. That of some says a little more than there is."""
    rate = float(stream.average_rate or 25)
    said = (container.duration or 0) / 1e6
    if container.format.name == "avi":  # of which `duration` is what is there
        said = stream.frames / rate
    if end < said - min(1.0, 0.1 * said) - 2 / rate:
        raise ValueError(f"it is cut off: it has {end:.1f} of {said:.1f} seconds")


def _from_file(opened: Opened, count: int) -> Iterator[Image]:
    with _container(opened) as (container, stream, total):
        wanted = set(chosen(total, count))
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                _bounded(1, frame.width, frame.height)
                turned = getattr(frame, "rotation", 0)  # by how much to turn it, where a phone was held upright
                yield frame.to_image().rotate(turned, expand=True)
            if number >= max(wanted):
                return
