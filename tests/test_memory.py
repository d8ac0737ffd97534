"""Memory that stays at hand."""

from __future__ import annotations

import resource
import subprocess
import sys
from threading import Thread

import pytest
import torch

from regard import memory
from regard.memory import give_back, kept

glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def faults() -> int:
    """Pages that the system has had to find for this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def touch(times: int) -> int:
    """Make and drop a large tensor so many times; how many pages that took."""
    before = faults()
    for _ in range(times):
        torch.ones(2**24)  # 64 MiB, more than what glibc keeps by itself
    return faults() - before


@glibc
def test_what_is_freed_is_there_for_the_next_and_given_back_in_the_end() -> None:
    """In a process of its own: other tests leave memory behind."""
    words = (
        "from tests.test_memory import *\n"
        "touch(1)\n"
        "usual = touch(5)\n"
        "with kept():\n"
        "    touch(20)\n"
        "    inside = touch(5)\n"
        "give_back()\n"
        "print(usual, inside, touch(5))\n"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    usual, inside, after = map(int, done.stdout.split())
    assert inside < usual / 4
    assert after > usual / 2


@glibc
def test_it_lasts_until_all_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[int, int]] = []
    monkeypatch.setattr(memory, "_set", heard.append)

    def elsewhere() -> None:
        with kept():
            assert heard == [memory._KEEP]

    with kept():
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        with kept():
            pass
        assert heard == [memory._KEEP]
    assert heard == [memory._KEEP, memory._USUAL]
    with pytest.raises(ValueError, match="no"), kept():
        raise ValueError("no")
    assert heard == [memory._KEEP, memory._USUAL] * 2


def test_without_glibc_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with kept():
        give_back()
        assert torch.ones(3).sum() == 3
