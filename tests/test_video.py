"""Videos: read from folders, arrays and files, bounded and named when they are bad; stems over frames; captions."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image as Picture

import regard
from regard.data.examples import Example, read_files
from regard.data.modalities.clips import check_clip, chosen, clip_digest, clip_size, count_frames, read_clip
from regard.data.modalities.video import FrameBox, Video
from regard.errors import DataError
from regard.models.stems import Elements
from regard.ragged import Ragged
from regard.registry import STEMS
from tests.conftest import FULL, redrawn
from tests.toy import sides_of

SIDE = 8


def frames(count: int, side: int = SIDE, seed: int = 1) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(256, size=(count, side, side, 3), dtype=np.uint8)


def in_folder(place: Path, pictures: NDArray[np.uint8]) -> Path:
    place.mkdir()
    for i, picture in enumerate(pictures):
        Picture.fromarray(picture).save(place / f"{i:03d}.png")
    return place


def in_array(place: Path, pictures: NDArray[Any], **more: Any) -> Path:
    np.savez_compressed(place, frames=pictures, **more)
    return place


def in_file(
    place: Path, pictures: NDArray[np.uint8], codec: str = "ffv1", pixels: str = "bgr0", **options: str
) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(place), "w", options=options) as container:
        stream = container.add_stream(codec, rate=5)
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = pixels
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return place


def video(**settings: Any) -> Video:
    stem = settings.pop("stem", {"kind": "frames", "picture": {"kind": "convolution", "halvings": 2}})
    source = {"kind": "video", "size": SIDE, "frames": 4, **settings}
    made = sides_of(source, model={"encoder": {"kind": "stem", "stem": stem}}).source
    assert isinstance(made, Video)
    return made


# Reading


@pytest.mark.parametrize("kind", ["folder", "array", "file"])
def test_evenly_spaced_frames_are_read_from_every_kind(tmp_path: Path, kind: str) -> None:
    given = frames(9)
    path = {"folder": in_folder, "array": in_array, "file": in_file}[kind](
        tmp_path / {"folder": "clip", "array": "clip.npz", "file": "clip.mkv"}[kind], given
    )
    check_clip(path)
    assert count_frames(path) == 9
    assert chosen(9, 5) == [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(read_clip(path, SIDE, 5), given[[0, 2, 4, 6, 8]].reshape(5, -1))
    np.testing.assert_array_equal(read_clip(path, SIDE, 20), given.reshape(9, -1))
    np.testing.assert_array_equal(read_clip(path, SIDE, 1), given[:1].reshape(1, -1))
    before = clip_digest(path)
    assert before == clip_digest(path)
    assert read_clip(path, 4, 2).shape == (2, 3 * 4 * 4)


@pytest.mark.parametrize("kind", ["array", "file"])
def test_a_video_in_an_archive_is_that_video(tmp_path: Path, kind: str) -> None:
    path = in_array(tmp_path / "a.npz", frames(9)) if kind == "array" else in_file(tmp_path / "a.mkv", frames(9))
    content, name = path.read_bytes(), path.name
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(path, name)
    np.savez(tmp_path / "x.npz", data=np.frombuffer(content, np.uint8), offsets=np.array([0, len(content)]))
    (tmp_path / "x.tsv").write_text(f"x.tar::{name}\ta cat\n")
    (example,) = read_files(str(tmp_path / "x.tsv"), sides_of("video").form)
    for field in (f"{tmp_path}/x.npz::0", example.source):
        check_clip(field)
        assert (count_frames(field), clip_size(field)[:3]) == (9, (9, SIDE, SIDE))
        np.testing.assert_array_equal(read_clip(field, SIDE, 5), read_clip(path, SIDE, 5))
    before = clip_digest(example.source)
    with tarfile.open(tmp_path / "x.tar", "a") as archive:
        archive.add(path, "other")
    assert clip_digest(example.source) not in ("missing", before)
    with pytest.raises(DataError, match=r"x\.tar holds no 'b\.mp4'"):
        check_clip(tmp_path / "x.tar::b.mp4")


def test_a_video_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    first = {"movflags": "faststart"}  # what the header says, before the pictures
    for name, codec, options in (("a.mkv", "mpeg4", {}), ("a.mp4", "mpeg4", first), ("a.avi", "mpeg4", {})):
        path = in_file(tmp_path / name, frames(30, 32), codec, "yuv420p", **options)
        content = path.read_bytes()
        assert count_frames(path) == 30
        path.write_bytes(content[: len(content) * 3 // 4])
        with pytest.raises(DataError, match=rf"{name} cannot be read as a video \(it is cut off: it has .* of 6\.0 s"):
            check_clip(path)
        with pytest.raises(DataError, match="is cut off"):
            read_clip(path, SIDE, 4)


def test_a_video_that_a_phone_took_upright_is_turned(tmp_path: Path) -> None:
    """A matrix in the header of its track says how far."""
    flat = np.zeros((3, 64, 64, 3), np.uint8)
    flat[:, :32, :32] = 255
    content = in_file(tmp_path / "a.mp4", flat, "mpeg4", "yuv420p").read_bytes()
    one = 2**16
    whole = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 2**30)
    at = content.rindex(whole)  # after that of the whole film
    for (a, b, c, d), where in {
        (0, one, -one, 0): (0, 1),
        (-one, 0, 0, -one): (1, 1),
        (0, -one, one, 0): (1, 0),
    }.items():
        turned = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30)
        (tmp_path / "b.mp4").write_bytes(content[:at] + turned + content[at + len(whole) :])
        corners = read_clip(tmp_path / "b.mp4", 2, 1).reshape(2, 2, 3).mean(-1)
        assert corners[where] > 200
        assert corners.sum() < 300


def test_frames_of_a_folder_are_taken_by_name_and_other_files_left_alone(tmp_path: Path) -> None:
    place = in_folder(tmp_path / "clip", frames(3))
    (place / "notes.txt").write_text("not a frame")
    before = clip_digest(place)
    assert count_frames(place) == 3
    Picture.fromarray(frames(1, seed=9)[0]).save(place / "0005.PNG")
    assert clip_digest(place) != before
    np.testing.assert_array_equal(read_clip(place, SIDE, 9)[1], frames(1, seed=9).reshape(-1))  # 000, 0005, 001, 002


def test_frames_that_are_no_files_are_named_and_stop_no_digest(tmp_path: Path) -> None:
    """A folder, a link to itself, a pipe that nobody writes to: none is opened."""
    clips = [in_folder(tmp_path / name, frames(2)) for name in "abc"]
    digests = {clip_digest(clip) for clip in clips}
    (clips[0] / "9.png").mkdir()
    (clips[1] / "9.png").symlink_to("9.png")
    os.mkfifo(clips[2] / "9.png")
    for clip in clips:
        assert clip_digest(clip) not in digests
        with pytest.raises(DataError, match=r"9\.png cannot be read as a picture"):
            check_clip(clip)


def test_what_is_no_video_is_named(tmp_path: Path) -> None:
    whole = in_array(tmp_path / "a.npz", frames(3)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    in_array(tmp_path / "float.npz", frames(3).astype(np.float32))
    in_array(tmp_path / "flat.npz", frames(3)[..., 0])
    np.savez(tmp_path / "other.npz", pictures=frames(3))
    np.savez(tmp_path / "pickled.npz", frames=np.array([{}], dtype=object))
    (tmp_path / "none").mkdir()
    in_folder(tmp_path / "broken", frames(3))
    (tmp_path / "broken" / "001.png").write_bytes(b"\x89PNG and no more")
    (tmp_path / "text.mp4").write_text("no video")
    file = in_file(tmp_path / "whole.mp4", frames(9, 32), "mpeg4", "yuv420p").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(file[: len(file) // 2])
    (tmp_path / "list.m3u8").write_text(f"#EXTM3U\n#EXTINF:9,\n{tmp_path / 'whole.mp4'}\n#EXT-X-ENDLIST\n")
    (tmp_path / "list.ffconcat").write_text("ffconcat version 1.0\nfile whole.mp4\n")
    os.mkfifo(tmp_path / "pipe.mp4")
    for name in ("cut.npz", "float.npz", "flat.npz", "other.npz", "pickled.npz", "none", "text.mp4", "cut.mp4",
                 "list.m3u8", "list.ffconcat", "pipe.mp4", "a\0b", "x" * 300):  # fmt: skip
        for what in (check_clip, lambda path: read_clip(path, SIDE, 4)):
            with pytest.raises(DataError, match="cannot be read as a video") as error:
                what(tmp_path / name)
            assert str(tmp_path / name) in str(error.value)
    with pytest.raises(DataError, match=r"broken/001\.png cannot be read as a picture"):
        check_clip(tmp_path / "broken")
    with pytest.raises(DataError, match=r"no video .*gone\.npz; in a data file its path is relative to that file"):
        read_clip(tmp_path / "gone.npz", SIDE, 4)
    assert clip_digest(tmp_path / "gone.npz") == clip_digest(tmp_path / "none") == "missing"
    source = video()
    fault = source.find_fault(str(tmp_path / "text.mp4"))
    assert fault is not None
    assert fault[0] == "unreadable"
    assert source.find_fault(str(tmp_path / "a.npz")) is None


def claiming(place: Path, shape: tuple[int, ...], content: bytes) -> Path:
    """An .npz whose array is said to be of a shape that it is not."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("frames.npy", header.getvalue() + content)
    return place


def test_a_video_that_is_absurdly_large_takes_no_memory(tmp_path: Path) -> None:
    huge = claiming(tmp_path / "huge.npz", (10, 60_000, 60_000, 3), b"\0" * 1000)
    long = claiming(tmp_path / "long.npz", (10**6, 8, 8, 3), b"\0" * 1000)
    lying = claiming(tmp_path / "lying.npz", (1000, 1000, 1000, 3), b"\0" * 1000)
    packed = claiming(tmp_path / "packed.npz", (200, 400, 400, 3), bytes(200 * 400 * 400 * 3))  # 96 MB in 93 KB
    tracemalloc.start()
    for path, message in ((huge, "60,000 x 60,000 pixels are more than"), (long, "1,000,000 frames of"),
                          (lying, "are cut off")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_clip(path, SIDE, 4)
        with pytest.raises(DataError, match=message):
            check_clip(path)
    assert read_clip(packed, SIDE, 2).shape == (2, 192)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


# What vectors stand for


def test_a_video_in_numbers(tmp_path: Path) -> None:
    source = video()
    items = source.encode_many(
        [str(in_array(tmp_path / "a.npz", frames(9))), str(in_array(tmp_path / "b.npz", frames(2)))]
    )
    assert [item.shape for item in items] == [(4, 192), (2, 192)]
    packed = source.pack(items)
    assert (packed.lengths.tolist(), packed.values.shape, packed.values.dtype) == ([4, 2], (6, 192), torch.uint8)
    assert (source.longest, source.most_bytes, source.shape) == (4, 4 * 192, (192,))
    assert source.problem(items[0], 1) is None
    assert source.read("a.npz", tmp_path) == str(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="names no video"):
        source.read(" ", tmp_path)
    made = source.made_up(np.random.default_rng(1), 2, 9)
    assert [one.shape for one in made] == [(4, 192)] * 2


def test_one_vector_a_frame() -> None:
    source, item = video(), frames(3).reshape(3, -1)
    assert (source.pieces(item), source.words(item)) == (["1", "2", "3"], [0, 1, 2])
    assert (source.places(item), source.most_places(99)) == (3, 4)
    canvas = source.canvas(item)
    assert canvas is not None
    assert (canvas.kind, canvas.rows, canvas.columns, canvas.pixels.shape) == ("frames", 1, 3, (SIDE, 3 * SIDE, 3))
    np.testing.assert_array_equal(canvas.pixels[:, SIDE : 2 * SIDE], frames(3)[1])


@pytest.mark.parametrize("class_token", [False, True])
def test_all_cells_of_each_frame(class_token: bool) -> None:
    """Numbered row by row where frames stand side by side; class tokens are no words."""
    picture = {"kind": "patches", "size": 4, "class_token": class_token}
    source, item = video(stem={"kind": "frames", "picture": picture, "pool": "none"}), frames(2).reshape(2, -1)
    own = 4 + class_token
    assert (source.places(item), source.most_places(9)) == (2 * own, 4 * own)
    marks = [-1] * class_token
    assert source.words(item) == [*marks, 0, 1, 4, 5, *marks, 2, 3, 6, 7]
    assert source.pieces(item)[own - 1 : own + 1] == ["1: 2,2", "2: [class]" if class_token else "2: 1,1"]
    canvas = source.canvas(item)
    assert canvas is not None
    assert (canvas.rows, canvas.columns) == (2, 4)


def links(source: Video, path: Path, *boxes: FrameBox) -> set[tuple[int, int]]:
    gold = source.gold(Example(str(path), "a red ball", gold=boxes))
    assert gold is not None
    return set(gold.possible)


def test_boxes_become_frames_and_cells(tmp_path: Path) -> None:
    short, long = in_array(tmp_path / "short.npz", frames(3)), in_array(tmp_path / "long.npz", frames(10))
    source = video()
    assert source.gold(Example(str(short), "a red ball")) is None
    corner = (0.0, 0.0, 0.4, 0.4)
    assert links(source, short, FrameBox(1, 2, 0, *corner), FrameBox(1, 1, 2, *corner)) == {(0, 1), (0, 2), (2, 1)}
    # of ten frames 0, 3, 6 and 9 are taken: of word 0 the box in frame 3 counts, of word 1 the nearest to frame 5
    found = links(source, long, FrameBox(0, 0, 3, *corner), FrameBox(0, 0, 4, *corner), FrameBox(1, 1, 5, *corner))
    assert found == {(1, 0), (2, 1)}
    picture = {"kind": "patches", "size": 4, "class_token": False}
    cells = video(stem={"kind": "frames", "picture": picture, "pool": "none"})
    assert links(cells, short, FrameBox(2, 2, 1, 0.6, 0.0, 1.0, 1.0)) == {(3, 2), (9, 2)}  # right half of frame 1


def test_boxes_are_read_with_their_frame(tmp_path: Path) -> None:
    record = {"source": "a.npz", "target": "a ball", "width": 16, "height": 8, "boxes": [[0, 1, 2, 4, 2, 8, 8]]}
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    form = sides_of("video").form
    (example,) = read_files(str(tmp_path / "x.jsonl"), form)
    assert example.gold == (FrameBox(0, 1, 2, 0.25, 0.25, 0.5, 1.0),)
    for bad in ([[0, 1, 4, 2, 8, 8]], [[0, 1, -1, 4, 2, 8, 8]], [[1, 0, 0, 4, 2, 8, 8]], 3):
        (tmp_path / "x.jsonl").write_text(json.dumps({**record, "boxes": bad}) + "\n")
        with pytest.raises(DataError, match=r"lists \[first word, last word, frame, left, top, right, bottom\] in pix"):
            list(read_files(str(tmp_path / "x.jsonl"), form))


# Stems over frames


PICTURES: dict[str, dict[str, Any]] = {
    "convolution": {"kind": "convolution", "halvings": 2, "channels": 2},
    "patches": {"kind": "patches", "size": 4},
    "resnet": {"kind": "resnet", "small": True, "channels": 2},
}


@pytest.mark.parametrize(
    ("picture", "pool"),
    [("convolution", "mean"), ("convolution", "none"), ("patches", "class"), ("patches", "mean"), ("resnet", "mean")],
)
def test_a_frame_is_read_as_a_picture_is(picture: str, pool: str) -> None:
    settings = STEMS.settings("frames")(picture=PICTURES[picture], pool=pool)
    stem = redrawn(STEMS.get("frames")(settings, Elements(shape=(3 * SIDE**2,)), 8, 0.0))
    inner = stem.picture
    given = torch.from_numpy(frames(5).reshape(5, -1))
    source = Ragged.from_lengths(given, [3, 2])
    found = stem(source)
    cells = settings.cells(SIDE)
    assert found.lengths.tolist() == [3 * cells, 2 * cells]
    assert found.longest == 3 * cells
    for i in range(5):
        alone = inner.vectors(Ragged.from_lengths(given[i].view(SIDE, 3 * SIDE), [SIDE])).values
        expected = {"none": alone, "class": alone[:1], "mean": alone[int(picture == "patches") :].mean(0, keepdim=True)}
        torch.testing.assert_close(found.values[i * cells : (i + 1) * cells], expected[pool])


PRESETS = ("yao2015", "video-label", "video-captioner", "venugopalan2015")


@pytest.mark.parametrize("preset", PRESETS if FULL else PRESETS[:2])
def test_videos_get_captions_and_labels(tmp_path: Path, preset: str) -> None:
    """End to end, of few videos and few updates: what comes out is an output, and scores point at frames."""
    words = ["black to white", "white to black"]
    lines = []
    for i in range(6):
        level = np.linspace(0, 255, 5).astype(np.uint8)[:: 1 if i % 2 == 0 else -1]
        in_array(tmp_path / f"{i}.npz", np.broadcast_to(level[:, None, None, None], (5, SIDE, SIDE, 3)))
        target = str(i % 2) if preset == "video-label" else words[i % 2]
        boxes = [[0, 0, 0, 0, 0, SIDE, SIDE], [2, 2, 4, 0, 0, SIDE, SIDE]]
        lines.append({"source": f"{i}.npz", "target": target, "width": SIDE, "height": SIDE, "boxes": boxes})
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {
        "preset": preset, "run": "run", "data": {"train": "train.jsonl", "valid": "train.jsonl"},
        "source": {"size": SIDE, "frames": 4, "augment": {"crop": 1}},
        "model": {"d_model": 16, "encoder": {"stem": {"kind": "frames", "picture": PICTURES["convolution"]}}},
        "training": {"steps": 2, "validate_every": 2, "tensorboard": False, "device": "cpu"},
        "tokens": {"kind": "word"}, "search": {"beam": 2, "max_length": 6},
    }  # fmt: skip
    system = regard.train(regard.Config.parse(config, tmp_path))
    assert len(system.generate([str(tmp_path / "0.npz"), str(tmp_path / "1.npz")])) == 2
    result = system.evaluate(str(tmp_path / "train.jsonl"))
    assert len(result.outputs) == 6
    if preset == "yao2015":
        assert {"pointing", "bleu4", "rouge_l", "cider"} <= result.scores.keys()
        explanation = system.explain(str(tmp_path / "0.npz"))
        assert len(explanation.source) == 4
