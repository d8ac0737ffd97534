"""Sentences as points: the projection is that of principal components, and its picture can be read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.explain.space import arrange, project, space_plot
from tests.conftest import whole

SENTENCES = [f"sentence number {i} says that the {'cat' if i % 2 else 'dog'} sat on mat {i} ." for i in range(12)]


def vectors(count: int = 12, d_model: int = 7) -> NDArray[np.float64]:
    random = np.random.default_rng(3)
    return random.normal(size=(count, d_model)) * np.geomspace(4, 0.1, d_model) + 5.0


def texts(path: Path) -> set[str]:
    return {x.text or "" for x in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize("d_model", [2, 7, 30])
def test_the_projection_is_on_the_first_eigenvectors_of_the_covariance(d_model: int) -> None:
    given = vectors(12, d_model)
    values, columns = np.linalg.eigh(np.cov(given.T))  # in ascending order
    axes = columns[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    points, share = project(given)
    np.testing.assert_allclose(points, (given - given.mean(axis=0)) @ axes, atol=1e-9)
    np.testing.assert_allclose(share, values[::-1][:2] / values.sum(), atol=1e-12)


def test_the_order_of_the_sentences_and_the_place_of_the_origin_do_not_matter() -> None:
    given, order = vectors(), np.random.default_rng(0).permutation(12)
    points, share = project(given)
    np.testing.assert_allclose(project(given[order])[0], points[order], atol=1e-9)
    np.testing.assert_allclose(project(given - 100.0)[0], points, atol=1e-9)
    assert np.array_equal(project(given)[0], points)
    # An axis keeps its direction however the vectors are scaled, and points away from where its mirror image does.
    np.testing.assert_allclose(project(-given)[0], -points, atol=1e-9)
    assert 1 > share[0] > share[1] > 0


def test_vectors_that_differ_in_one_way_or_none() -> None:
    line = np.outer(np.arange(4.0), [0.0, 2.0, 0.0])
    points, share = project(line)
    np.testing.assert_allclose(points, [[-3, 0], [-1, 0], [1, 0], [3, 0]], atol=1e-9)
    np.testing.assert_allclose(share, [1, 0], atol=1e-12)
    np.testing.assert_allclose(project(line[:, 1:2])[0], points, atol=1e-9)
    points, share = project(np.ones((3, 5), dtype=np.float16))
    assert not points.any()
    assert not share.any()


@whole
def test_labels_are_near_their_dots_and_apart() -> None:
    random = np.random.default_rng(1)
    room, count = np.array([12.0, 9.0]), 40
    dots = random.choice([2.0, 9.0], size=(count, 2)) * [1, 0.7] + random.normal(size=(count, 2)) * 0.5  # four clusters
    sizes = np.stack([random.uniform(0.8, 1.5, count), random.uniform(0.12, 0.36, count)], axis=-1)
    places = arrange(dots, sizes, room)
    assert (places - sizes / 2 >= -1e-9).all()
    assert (places + sizes / 2 <= room + 1e-9).all()
    for i in range(count):
        for j in range(i):
            assert (np.abs(places[i] - places[j]) >= (sizes[i] + sizes[j]) / 2).any(), f"labels {i} and {j} overlap"
        assert (np.abs(places[i] - dots) >= sizes[i] / 2).any(axis=1).all(), f"label {i} covers a dot"
    away = np.hypot(*(np.clip(dots, places - sizes / 2, places + sizes / 2) - dots).T)
    assert np.median(away) < 0.5
    alone = arrange(dots[:1], sizes[:1], room)
    assert np.hypot(*(np.clip(dots[:1], alone - sizes[:1] / 2, alone + sizes[:1] / 2) - dots[:1]).T) < 0.2


def test_the_picture_says_what_is_what(tmp_path: Path) -> None:
    path = tmp_path / "new" / "space.svg"
    labels = ["$x_1$ </s>", "猫は", "\x00", "", "a b " * 90, *SENTENCES[5:]]
    groups = [f"group {i % 9}" for i in range(12)]
    assert space_plot(vectors(), labels, groups, path) == path
    written = texts(path)
    share = project(vectors())[1]
    assert f"first principal component ({share[0]:.0%} of the variance)" in written
    assert f"second principal component ({share[1]:.0%} of the variance)" in written
    assert {*groups, "$x_1$ </s>", "猫は", r"\x00"} <= written
    assert any(x.endswith("…") for x in written)
    assert max(map(len, written)) < 50
    again = tmp_path / "again.svg"
    space_plot(vectors(), labels, groups, again)
    assert again.read_bytes() == path.read_bytes()
    space_plot(vectors(), labels, None, again)
    assert not texts(again) & set(groups)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_other_kinds_of_picture(suffix: str, head: bytes, tmp_path: Path) -> None:
    path = space_plot(vectors(3), ["a", "b", "c"], None, str(tmp_path / f"a{suffix}"))
    assert path.read_bytes().startswith(head)


def test_the_points_as_data(tmp_path: Path) -> None:
    groups = ["x", "y"] * 6
    data = json.loads(space_plot(vectors(), SENTENCES, groups, tmp_path / "a.json").read_text(encoding="utf-8"))
    points, share = project(vectors())
    assert data.keys() == {"labels", "groups", "points", "shares"}
    assert (data["labels"], data["groups"]) == (SENTENCES, groups)
    np.testing.assert_allclose(data["points"], points, atol=1e-6)
    np.testing.assert_allclose(data["shares"], share)


def test_what_cannot_be_drawn_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(ConfigError, match="at least 3 sentences, not 2"):
        space_plot(vectors(2), ["a", "b"], None, folder / "a.png")
    with pytest.raises(ConfigError, match=r"'\.bmp'.*\.png, \.svg, \.pdf or \.json"):
        space_plot(vectors(), SENTENCES, None, folder / "a.bmp")
    with pytest.raises(ConfigError, match="12 sentences but 11 labels"):
        space_plot(vectors(), SENTENCES[1:], None, folder / "a.png")
    with pytest.raises(ConfigError, match="12 sentences but 1 groups"):
        space_plot(vectors(), SENTENCES, ["x"], folder / "a.png")
    with pytest.raises(ConfigError, match="not finite"):
        space_plot(np.full((3, 2), np.nan), ["a", "b", "c"], None, folder / "a.png")
    assert not folder.exists()
