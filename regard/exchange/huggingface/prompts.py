"""What generation begins with and never writes, as the settings of a published model say."""

from __future__ import annotations

from typing import Any

from regard.data.marks import Marks
from regard.exchange.huggingface.given import Given
from regard.exchange.huggingface.whisper_prompt import whisper_prompt


def first_of(*given: Any) -> int | None:
    """The first that is an id; of a list of ids, its first."""
    for found in given:
        found = found[0] if isinstance(found, list) and found else found
        if isinstance(found, int):
            return found
    return None


def mark_of(given: Given, name: str) -> int | None:
    """A setting of generation that is one token."""
    found = given.option(name)
    if found is not None and type(found) is not int:
        raise ValueError(f"{name} is {found!r}, and should be one id")
    return found


def decoder_start(given: Given, backend: Any, begin: int | None, end: int) -> tuple[tuple[int, ...], int]:
    """What the input of a decoder begins with, and how much of it counts in the length of an output."""
    start, forced = mark_of(given, "decoder_start_token_id"), mark_of(given, "forced_bos_token_id")
    if start is None and isinstance(given.config.get("decoder"), dict):
        start = given.config["decoder"].get("decoder_start_token_id")
    if given.kind == "whisper":
        if start is None:
            raise ValueError("neither generation_config.json nor config.json says decoder_start_token_id")
        return (start, *whisper_prompt(given)), 0
    if given.kind == "mbart" and start is None:
        target = given.settings.get("tgt_lang")
        start = None if target is None else backend.token_to_id(target)
    if start is None:
        forces = forced is not None and given.kind != "gpt2"
        return (end if forces or begin is None else begin,), 0
    return ((start,), 0) if forced is None else ((start, forced), 1)


def barred(given: Given) -> dict[str, Any]:
    """What generation never writes, or not first: single tokens and sequences of them, by their names in `Marks`."""
    words = given.option("bad_words_ids") or []
    if not isinstance(words, list) or not all(map(_are_ids, words)):
        raise ValueError(f"bad_words_ids is {words!r}, and should be lists of ids")
    single = {ids[0] for ids in words if len(ids) == 1}
    return {
        "unwritten": tuple(sorted({*single, *_listed(given, "suppress_tokens")})),
        "banned": tuple(tuple(ids) for ids in words if len(ids) > 1),
        "opening": _listed(given, "begin_suppress_tokens"),
    }


def _listed(given: Given, name: str) -> tuple[int, ...]:
    """A setting of generation that is a list of tokens."""
    found = given.option(name) or []
    if not _are_ids(found):
        raise ValueError(f"{name} is {found!r}, and should be a list of ids")
    return tuple(found)


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(i, int) for i in given)


def roles_of(marks: Marks) -> dict[str, str]:
    """The special tokens by the names that `transformers` has for what they do."""
    ids = {
        "bos": marks.begin, "eos": marks.end, "pad": marks.pad, "unk": marks.unknown, "sep": marks.separator,
        "cls": marks.begin, "mask": marks.mask,
    }  # fmt: skip
    return {f"{role}_token": marks.names[i] for role, i in ids.items() if i is not None}
