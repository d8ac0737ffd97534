"""Memory that stays at hand."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from regard import memory
from regard.memory import give_back, kept

glibc = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def held() -> float:
    """MiB that the system has given this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@glibc
def test_what_is_freed_is_kept_inside_and_given_back_in_the_end() -> None:
    """In a process of its own: other tests leave memory behind."""
    words = (
        "from tests.test_memory import *\n"
        "torch.ones(2**24)\n"  # 64 MiB, and whatever torch sets up for itself
        "before = held()\n"
        "torch.ones(2**24)\n"
        "usual = held()\n"
        "with kept():\n"
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
