"""Corpora whose files Regard cannot read as they are, as the recipes beside this file read them.

    python recipes/tasks.py scan FOLDER        tasks_train_*.txt, tasks_test_*.txt, tasks.txt (github: brendenlake/SCAN)
    python recipes/tasks.py cmudict FOLDER     cmudict-0.7b.train-dev-20-21, .train-dev-1-21 and .test (CNTK's copy)
    python recipes/tasks.py conala FOLDER      conala-train.json and conala-test.json (conala-corpus.github.io)
    python recipes/tasks.py dialogue FOLDER    dialogues_text_En.txt and en_dev.txt (XDailyDialog)
    python recipes/tasks.py liar FOLDER        train.tsv and valid.tsv (LIAR)
    python recipes/tasks.py tagging FOLDER     lines-ud-*.conllu (UD English LinES) and wnut17-*.conll (WNUT 2017)
    python recipes/tasks.py xquad FOLDER       xquad.LANGUAGE.json (github.com/google-deepmind/xquad)

Each writes to a folder of its name beside this file, and says how many examples went where. What is held out of
training data to validate on is every twentieth example (of tags and of LIAR every tenth), so it is the same everywhere.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

Pair = tuple[str, str]
HISTORY = 3  # turns of a dialogue that a reply is written from
CUTOFFS = (24, 26, 28, 30)  # most actions that are trained on (Csordás et al. 2021); with 22 it is the length split


def lines(path: Path) -> list[str]:
    """The lines of a file; one that cannot be read ends the program in a sentence."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"cannot read {path} ({error}); see the head of {Path(__file__).name} for what should be there")


def held_out(examples: Sequence[Any], every: int = 20) -> tuple[list[Any], list[Any]]:
    """What to train on, and every so manyth example to validate on."""
    valid = [one for i, one in enumerate(examples) if i % every == every - 1]
    return [one for i, one in enumerate(examples) if i % every != every - 1], valid


def write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """A table, a row a line."""
    found = ["\t".join(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in found), encoding="utf-8")
    print(f"{len(found):,} examples to {path}")


def commands(path: Path) -> list[Pair]:
    """Commands and actions of a file of SCAN: `IN: jump twice OUT: I_JUMP I_JUMP`."""
    found = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        given, wanted, said = line.removeprefix("IN:").partition(" OUT:")
        if not (line.startswith("IN:") and wanted and said.strip()):
            sys.exit(f"{path}, line {number}: should be IN: … OUT: …")
        found.append((given.strip(), said.strip()))
    return found


def scan(folder: Path, to: Path) -> None:
    splits = {}
    for path in sorted(folder.glob("tasks_train_*.txt")):
        split = path.stem.removeprefix("tasks_train_")
        splits[split] = commands(path), commands(folder / f"tasks_test_{split}.txt")
    every = commands(folder / "tasks.txt")
    for cutoff in CUTOFFS:
        longer = [pair for pair in every if len(pair[1].split()) > cutoff]
        splits[f"length_{cutoff}"] = [pair for pair in every if len(pair[1].split()) <= cutoff], longer
    for split, (known, test) in splits.items():
        train, valid = held_out(known)
        for part, pairs in (("train", train), ("valid", valid), ("test", test)):
            write(to / f"{split}-{part}.tsv", pairs)


def pronunciations(path: Path) -> list[Pair]:
    """Words as letters and their phones; a word that is pronounced in two ways stands there twice."""
    rows = [line.split(None, 1) for line in lines(path) if line.strip()]
    return [(row[0].partition("(")[0].lower(), row[1].strip()) for row in rows if len(row) == 2]


def cmudict(folder: Path, to: Path) -> None:
    name = "cmudict-0.7b"
    write(to / "train.tsv", pronunciations(folder / f"{name}.train-dev-20-21"))
    for part, file in (("valid", "train-dev-1-21"), ("test", "test")):
        ways = defaultdict[str, list[str]](list)
        for word, phones in pronunciations(folder / f"{name}.{file}"):
            ways[word].append(phones)
        write(to / f"{part}.tsv", [(word, known[0]) for word, known in ways.items()])
        for i in range(1, max(map(len, ways.values()))):  # where a word has no other, its first again
            write(to / f"{part}.also-{i}.txt", [(known[min(i, len(known) - 1)],) for known in ways.values()])


def conala(folder: Path, to: Path) -> None:
    def read(part: str) -> list[dict[str, str]]:
        found = json.loads("\n".join(lines(folder / f"conala-{part}.json")))
        # What a person wrote of the question where there is that: it names the variables of the answer.
        return [{"intent": one["rewritten_intent"] or one["intent"], "snippet": one["snippet"]} for one in found]

    train, valid = held_out(read("train"))
    for part, records in (("train", train), ("valid", valid), ("test", read("test"))):
        write(to / f"{part}.jsonl", ((json.dumps(record, ensure_ascii=False),) for record in records))


def replies(dialogues: Iterable[str]) -> Iterator[Pair]:
    """Each turn but the first after those before it, at most `HISTORY`, with `__eou__` between them."""
    for line in dialogues:
        turns = [turn.strip() for turn in line.partition("\t")[0].split("__eou__") if turn.strip()]
        for i in range(1, len(turns)):
            yield " __eou__ ".join(turns[max(0, i - HISTORY) : i]), turns[i]


def dialogue(folder: Path, to: Path) -> None:
    dev = lines(folder / "en_dev.txt")
    parts = (("train", lines(folder / "dialogues_text_En.txt")), ("valid", dev[::2]), ("test", dev[1::2]))
    for part, given in parts:
        write(to / f"{part}.tsv", replies(given))


def liar(folder: Path, to: Path) -> None:
    """Its own validation data are for the test, as its test data are often kept apart."""
    known, test = ([line.split("\t") for line in lines(folder / f"{part}.tsv") if line] for part in ("train", "valid"))
    train, valid = held_out(known, 10)
    for part, rows in (("train", train), ("valid", valid), ("test", test)):
        write(to / f"{part}.tsv", rows)


def sentences(path: Path) -> list[Pair]:
    """Words and tags of a file with a word a line and a blank line after each sentence: of .conllu the universal part
    of speech, else what stands last."""
    place = 3 if path.suffix == ".conllu" else -1
    found = []
    for blank, group in groupby(lines(path), key=lambda line: not line.strip()):
        rows = [line.rstrip().split("\t") for line in group if not blank and not line.startswith("# ")]
        # Of .conllu, 4-5 is what two words are written as and 4.1 a word that is not written.
        words = [(row[1 if place == 3 else 0], row[place]) for row in rows if place < 0 or row[0].isdigit()]
        if words:
            found.append((" ".join(word.replace(" ", "") for word, _ in words), " ".join(tag for _, tag in words)))
    return found


def tagging(folder: Path, to: Path) -> None:
    for name, ending in (("lines-ud", "conllu"), ("wnut17", "conll")):
        train, valid = held_out(sentences(folder / f"{name}-train.{ending}"), 10)
        test = sentences(folder / f"{name}-dev.{ending}")
        for part, pairs in (("train", train), ("valid", valid), ("test", test)):
            write(to / f"{name}-{part}.tsv", pairs)


def xquad(folder: Path, to: Path) -> None:
    """Of each article's five paragraphs the last is for the test, and the one before it, of every other article, to
    validate on: the same questions in every language."""
    to.mkdir(exist_ok=True)
    for path in sorted(folder.glob("xquad.*.json")):
        articles = json.loads("\n".join(lines(path)))["data"]
        parts: dict[str, list[Any]] = {"train": [], "valid": [], "test": []}
        for i, article in enumerate(articles):
            *first, fourth, fifth = article["paragraphs"]
            parts["test"].append(fifth)
            parts["train" if i % 2 else "valid"].append(fourth)
            parts["train"] += first
        for part, paragraphs in parts.items():
            file = to / path.name.replace("xquad", part)
            file.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}, ensure_ascii=False), encoding="utf-8")
            print(f"{sum(len(one['qas']) for one in paragraphs):,} questions to {file}")


CORPORA: dict[str, Callable[[Path, Path], None]] = {
    made.__name__: made for made in (scan, cmudict, conala, dialogue, liar, tagging, xquad)
}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CORPORA:
        sys.exit(__doc__)
    CORPORA[sys.argv[1]](Path(sys.argv[2]), Path(__file__).with_name(sys.argv[1]))
