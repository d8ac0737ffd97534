"""Memory that stays at hand."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from regard import memory
from regard.memory import PRIMITIVES, bound_primitives, give_back, retain_memory
from regard.nn.linear import Packed
from regard.runs.training import prepare
from tests.conftest import whole
from tests.toy import toy_config, write_corpus

glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def held() -> float:
    """MiB that the system has given this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@whole
@glibc
def test_what_is_freed_is_kept_inside_and_given_back_in_the_end() -> None:
    """In a process of its own: other tests leave memory behind."""
    words = (
        "from tests.test_memory import *\n"
        "torch.ones(2**24)\n"  # 64 MiB, and whatever torch sets up for itself
        "before = held()\n"
        "torch.ones(2**24)\n"
        "usual = held()\n"
        "with retain_memory():\n"
        "    torch.ones(2**24)\n"
        "    inside = held()\n"
        "give_back()\n"
        "print(usual - before, inside - before, held() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    usual, inside, after = map(float, done.stdout.split())
    assert inside > 60
    assert usual < 4
    assert after < 4


@glibc
def test_it_lasts_until_all_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[int, int]] = []
    monkeypatch.setattr(memory, "_set", heard.append)

    def elsewhere() -> None:
        with retain_memory():
            assert heard == [memory._KEEP]

    with retain_memory():
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        with retain_memory():
            pass
        assert heard == [memory._KEEP]
    assert heard == [memory._KEEP, memory._USUAL]
    with pytest.raises(ValueError, match="no"), retain_memory():
        raise ValueError("no")
    assert heard == [memory._KEEP, memory._USUAL] * 2


def test_without_glibc_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with retain_memory():
        give_back()
        assert torch.ones(3).sum() == 3


@whole
@pytest.mark.skipif(not Packed.available(torch.bfloat16), reason="this CPU does not multiply in bfloat16")
def test_bfloat16_over_many_numbers_of_rows_takes_little_memory() -> None:
    """As packed batches have them, forward and backward."""
    words = (
        "from tests.test_memory import *\n"
        "if bound:\n"
        "    memory.bound_primitives()\n"
        "layer = torch.nn.Linear(128, 1024)\n"
        "for rows in range(2000, 2250):\n"
        "    with torch.autocast('cpu', torch.bfloat16):\n"
        "        layer(torch.ones(rows, 128)).sum().backward()\n"
        "    before = held() if rows == 2050 else before if rows > 2050 else 0\n"
        "print(held() - before)\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in PRIMITIVES}
    grown = []
    for bound in (True, False):
        command = [sys.executable, "-c", f"bound = {bound}\n{words}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
        grown.append(float(done.stdout))
    assert grown[0] < 100
    assert grown[1] > 2 * grown[0] + 100


def test_training_in_bfloat16_on_a_cpu_bounds_what_onednn_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path)
    for precision, expected in (("float32", [None, None]), ("bfloat16", ["64", "64"])):
        for name in PRIMITIVES:
            monkeypatch.delenv(name, raising=False)
        prepare(toy_config(tmp_path, run=precision, training={"precision": precision, "device": "cpu"}))
        assert [os.environ.get(name) for name in PRIMITIVES] == expected
    monkeypatch.setenv(PRIMITIVES[0], "7")
    bound_primitives()
    assert os.environ[PRIMITIVES[0]] == "7"  # the user's


@whole
@pytest.mark.skipif(not Packed.available(torch.float32), reason="torch lacks oneDNN's layout")
def test_new_numbers_of_rows_take_no_more_memory() -> None:
    """What a layer of a search is given rows by, after it has seen the few numbers that they are filled up to."""
    words = (
        "from regard.ragged import bucket\n"
        "from regard.nn.linear import PARTS\n"
        "from tests.test_memory import *\n"
        "layer = Packed(torch.nn.Linear(64, 64))\n"
        "with torch.inference_mode():\n"
        "    for rows in sorted({bucket(i, PARTS) for i in range(1, 513)}):\n"
        "        layer(torch.ones(rows, 64))\n"
        "    before = held()\n"
        "    for rows in range(1, 513):\n"
        "        layer(torch.ones(rows, 64))\n"
        "print(held() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 16  # it was above 200


@pytest.mark.skipif(not Packed.available(torch.float32), reason="torch lacks oneDNN's layout")
@pytest.mark.parametrize("shape", [(0,), (1,), (33,), (5, 7), (3, 0), (2, 3, 11), (260,)], ids=str)
def test_rows_that_fill_up_change_nothing(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    for bias in (True, False):
        linear, x = torch.nn.Linear(6, 10, bias=bias), torch.randn(*shape, 6)
        with torch.inference_mode():
            torch.testing.assert_close(Packed(linear)(x), linear(x))
            expected = linear(x)[..., 2:5]
            torch.testing.assert_close(Packed(linear).part(x, 2, 5), expected)
