"""How a published model is meant to generate (`generation_config.json`), as settings of a search; and back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from regard.data.marks import Marks
from regard.errors import ConfigError
from regard.exchange.huggingface.given import Given
from regard.exchange.huggingface.whisper_prompt import DETECTED, detects, whisper_settings

# Settings that say nothing of what is written, or that became marks of the vocabulary.
ELSEWHERE = {
    "_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "num_return_sequences", "bos_token_id", "eos_token_id",
    "pad_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
    "bad_words_ids", "cache_implementation", "cache_config", "return_legacy_cache", "prompt_lookup_num_tokens",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "max_matching_ngram_size", "target_lookbehind", "assistant_lookbehind", "disable_compile", "prefill_chunk_size",
    "token_healing", "is_assistant",
}  # fmt: skip
OF_WHISPER = {
    "lang_to_id", "task_to_id", "language", "task", "is_multilingual", "no_timestamps_token_id", "forced_decoder_ids",
    "return_timestamps", "alignment_heads", "prev_sot_token_id", "median_filter_width", "max_initial_timestamp_index",
}  # fmt: skip
HANDLED = {
    "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "min_length", "min_new_tokens",
    "max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "num_beam_groups",
    "diversity_penalty", "epsilon_cutoff", "penalty_alpha", "repetition_penalty", "begin_suppress_tokens", "typical_p",
}  # fmt: skip
NUMBERS = HANDLED - {"early_stopping", "begin_suppress_tokens"}
STOPS: Mapping[Any, str] = {True: "early", False: "heuristic", None: "heuristic", "never": "exact"}
# What a setting that Regard lacks has to be so that nothing is lost without it.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1.0,),
    "eta_cutoff": (0.0,),
}


def search_settings(given: Given, marks: Marks, longest: int) -> tuple[dict[str, Any], list[str]]:
    """The section [search] of a model of so many positions; and what of its settings Regard has not, by name."""
    told = list[str]()

    def option(name: str) -> Any:
        value = given.option(name)
        if name in NUMBERS and not isinstance(value, int | float | None):
            raise ConfigError(f"the settings of generation have {name}: {value!r}, which should be a number")
        return value

    forced = option("forced_eos_token_id") is not None
    most = longest - max(len(marks.first), 1)
    before = max(len(marks.first), 1)
    length = option("max_length")
    if (new := option("max_new_tokens")) is not None:
        most = min(most, new - marks.counted - forced)
    elif length is not None:
        if given.kind == "whisper":  # which says how much comes after its marks
            length = min(length + min(longest // 2 - 1, before), longest)
        most = min(most, length - before - forced)
    fewest = max(0, (option("min_length") or 0) - before, (option("min_new_tokens") or 0) - marks.counted)
    alpha = option("length_penalty")
    alpha = 1.0 if alpha is None else float(alpha)
    found: dict[str, Any] = {
        "beam": option("num_beams") or 1, "length_penalty": "average" if alpha else "none", "alpha": abs(alpha) or 1.0,
        "no_repeat": option("no_repeat_ngram_size") or 0, "min_length": min(fewest, max(most, 1)),
        "max_length": max(most, 1), "max_ratio": 10**6, "max_source": max(longest - 2, 1), "unknown": True,
        "at_limit": "forced" if forced else "cut", "repetition_penalty": option("repetition_penalty") or 1.0,
    }  # fmt: skip
    if alpha < 0:
        told.append(f"length_penalty {alpha}")
        found |= {"length_penalty": "none", "alpha": 1.0}
    if given.kind == "gpt2":
        found["prefix_scored"] = False  # a prompt
        told += [f"{name} {n} after a prompt" for name in ("min_new_tokens", "max_new_tokens") if (n := option(name))]
    early = option("early_stopping")
    if not isinstance(early, Hashable) or early not in STOPS:
        raise ConfigError(f"the settings of generation have early_stopping: {early!r}; it is true, false or 'never'")
    if found["beam"] > 1:
        found["stop"] = STOPS[early]
    groups = option("num_beam_groups") or 1
    if option("penalty_alpha") and not option("do_sample"):
        if found["repetition_penalty"] != 1:
            told.append(f"repetition_penalty {found['repetition_penalty']} with penalty_alpha")
        found |= {"contrastive": option("penalty_alpha"), "top_k": option("top_k") or 4, "beam": 1}
        found["repetition_penalty"] = 1.0
    elif option("do_sample"):
        top_k = option("top_k")
        if found["beam"] > 1:
            told.append(f"num_beams {found['beam']} with do_sample")
        found |= {
            "sample": True, "temperature": option("temperature") or 1.0, "top_k": 50 if top_k is None else top_k,
            "top_p": option("top_p") or 1.0, "typical_p": option("typical_p") or 1.0,
            "epsilon": option("epsilon_cutoff") or 0.0,
        }  # fmt: skip
    elif groups > 1:
        found |= {"groups": groups, "diversity": option("diversity_penalty") or 0.0}
    told += _others(given, marks)
    return found, told


def _others(given: Given, marks: Marks) -> list[str]:
    """What the settings ask for that nothing here does."""
    told, ends = [DETECTED] if detects(given) else [], given.option("eos_token_id")
    if isinstance(ends, list) and len(ends) > 1:
        told.append(f"eos_token_id {ends[1:]}")
    if (forced := given.option("forced_eos_token_id")) not in (None, marks.end):
        told.append(f"forced_eos_token_id {forced}")
    known = ELSEWHERE | HANDLED | (OF_WHISPER if given.kind == "whisper" else set())
    for name, value in given.generation.items():
        if name not in known and value not in (None, False, 0, [], {}, *NEUTRAL.get(name, ())):
            told.append(f"{name} {value}"[:80])
    return told


def generation_settings(search: Any, marks: Marks, kind: str, longest: int) -> dict[str, Any]:
    """`generation_config.json` for a search of a network of this kind, which has so many positions."""
    found = {
        "num_beams": search.beam, "length_penalty": search.alpha if search.length_penalty == "average" else 0.0,
        "early_stopping": next(theirs for theirs, ours in STOPS.items() if ours == search.stop),
        "max_length": search.max_length + max(len(marks.first), 1) + (search.at_limit != "cut"),
        "forced_eos_token_id": None if search.at_limit == "cut" else marks.end, "eos_token_id": marks.end,
        "pad_token_id": marks.pad, "bos_token_id": marks.begin, "no_repeat_ngram_size": search.no_repeat,
        "min_length": search.min_length + max(len(marks.first), 1) if search.min_length else 0,
        "decoder_start_token_id": marks.first[0] if marks.first else None,
        "forced_bos_token_id": marks.first[1] if marks.counted else None,
        "bad_words_ids": [[i] for i in marks.forbidden(unknown=search.unknown)] + list(map(list, marks.banned)) or None,
        "begin_suppress_tokens": list(marks.opening) or None, "repetition_penalty": search.repetition_penalty,
    }  # fmt: skip
    if search.sample:
        found |= {
            "do_sample": True, "temperature": search.temperature, "top_k": search.top_k, "top_p": search.top_p,
            "typical_p": search.typical_p, "epsilon_cutoff": search.least,
        }  # fmt: skip
    if kind == "whisper":  # which says how much comes after its marks
        found["max_length"] -= min(longest // 2 - 1, len(marks.first))
        found |= whisper_settings(marks)
    return {name: value for name, value in found.items() if value is not None}
