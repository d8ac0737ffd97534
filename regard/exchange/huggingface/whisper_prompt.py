"""What Whisper (Radford et al. 2023) writes text after: language, task, and whether there are times; and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard.data.marks import Marks
from regard.data.tokenizers.published import FileTokens, Published
from regard.errors import ConfigError
from regard.exchange.huggingface.given import Given
from regard.languages import LANGUAGES

SILENT, BEFORE, TASKS = "<|notimestamps|>", "<|startofprev|>", ("transcribe", "translate")
DETECTED = (
    "a language that is detected (it is taken to be English; to name another, regard import --language, or "
    '"language" in generation_config.json)'
)
# Codes by name: further languages that Whisper has marks of, and further names.
NAMES = {name.lower(): code for code, name in LANGUAGES.items()} | {
    "assamese": "as", "bashkir": "ba", "breton": "br", "cantonese": "yue", "castilian": "es", "faroese": "fo",
    "flemish": "nl", "haitian": "ht", "haitian creole": "ht", "hausa": "ha", "hawaiian": "haw", "javanese": "jw",
    "lao": "lo", "letzeburgesch": "lb", "lingala": "ln", "malagasy": "mg", "mandarin": "zh", "maori": "mi",
    "moldavian": "ro", "moldovan": "ro", "myanmar": "my", "nynorsk": "nn", "occitan": "oc", "panjabi": "pa",
    "pushto": "ps", "sanskrit": "sa", "shona": "sn", "sindhi": "sd", "sinhalese": "si", "sundanese": "su",
    "tatar": "tt", "tibetan": "bo", "turkmen": "tk", "valencian": "ca", "yoruba": "yo",
}  # fmt: skip


def whisper_prompt(given: Given) -> Iterator[int]:
    """Language, task and whether there are times: what Whisper (Radford et al. 2023) writes text after."""
    known, languages = forced(given), given.generation.get("lang_to_id") or {}
    silent = given.generation.get("no_timestamps_token_id", known.get(3))
    if languages:
        yield _spoken(given, languages)
        task = given.generation.get("task") or "transcribe"
        tasks = given.generation.get("task_to_id") or {}
        wanted = known.get(2) or tasks.get(task)
        if wanted is None:
            raise ValueError(f"generation_config.json has no task {task} in task_to_id")
        yield int(wanted)
    else:
        yield from (known[place] for place in sorted(known) if place < 3 and known[place] != silent)
    if silent is not None:
        yield silent


def forced(given: Given) -> dict[int, int]:
    """The tokens that `forced_decoder_ids` forces, by place: of older models, where no language or task is named."""
    pairs = given.option("forced_decoder_ids") or []
    if not isinstance(pairs, list) or not all(isinstance(one, list) and len(one) == 2 for one in pairs):
        raise ValueError(f"forced_decoder_ids is {pairs!r}, and should be pairs of a place and an id")
    if given.generation.get("language") or given.generation.get("task"):
        return {}
    return {int(place): token for place, token in pairs if token is not None}


def _spoken(given: Given, languages: dict[str, Any]) -> int:
    """The mark of the language, which is named or forced; else English."""
    language = str(given.generation.get("language") or "").lower()
    if not language:
        found = forced(given).get(1) or languages.get("<|en|>")
    else:
        found = languages.get(language) or languages.get(f"<|{NAMES.get(language, language)}|>")
    if found is None:
        known = sorted(name.strip("<|>") for name in languages)
        raise ValueError(
            f"it knows no language {language or 'en'}; there are {', '.join(known)}, also by English names"
        )
    return int(found)


def hearing(given: Given, language: str | None) -> Given:
    """The settings of a model that hears this language, if it is said which."""
    if language is None:
        return given
    if given.kind != "whisper" or not given.generation.get("lang_to_id"):
        raise ConfigError("a language goes with a Whisper of several languages, and this model is none; leave it out")
    names = {i: name for name, i in (given.generation.get("task_to_id") or {}).items()}
    task = given.generation.get("task") or names.get(forced(given).get(2, -1))
    return replace(given, generation={**given.generation, "language": language, **({"task": task} if task else {})})


def detects(given: Given) -> bool:
    """Whether a model is meant to find out itself which language is spoken."""
    named = given.generation.get("language") or forced(given).get(1)
    return given.kind == "whisper" and bool(given.generation.get("lang_to_id")) and not named


# And back


def whisper_settings(marks: Marks) -> dict[str, Any]:
    """What `generation_config.json` says of a Whisper with these marks, beside how it searches."""
    ids = {name: i for i, name in marks.names.items()}
    if SILENT not in ids:
        return {}
    codes = {*NAMES.values()}
    languages = {
        name: i for name, i in ids.items() if (code := re.fullmatch(r"<\|(\w+)\|>", name)) and code[1] in codes
    }
    tasks = {task: ids[f"<|{task}|>"] for task in TASKS if f"<|{task}|>" in ids}
    spoken = next((name for name, i in languages.items() if i in marks.first), None)
    task = next((name for name, i in tasks.items() if i in marks.first), None)
    found: dict[str, Any] = {
        "is_multilingual": spoken is not None, "no_timestamps_token_id": ids[SILENT], "return_timestamps": False,
        "prev_sot_token_id": ids.get(BEFORE),
    }  # fmt: skip
    if spoken is not None:
        found |= {"lang_to_id": languages, "task_to_id": tasks, "language": spoken, "task": task}
    return found


def knows_whisper(tokens: Published) -> bool:
    """Whether tokens are those of a Whisper, which `transformers` has a class for."""
    return isinstance(tokens, FileTokens) and tokens.bytes and SILENT in tokens.marks.names.values()
