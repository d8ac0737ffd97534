"""AN4 (CMU), and synthetic speech like it beside it, as recipes/an4.yaml reads them.

    python recipes/an4.py AN4

`AN4` is a folder with train.tsv and test.tsv (a header; name, seconds and text of each recording) and the recordings in
flac/train and flac/test. Writes train.jsonl, valid.jsonl and test.jsonl to the folder an4 beside this file. Of the
training recordings 60 are for validation. The others come six times each, beside some 15,000 of espeak-ng (`regard new
--corpus spoken --text`), which says lines made of the words of their transcripts, in the order in which one follows
another there, and of one word in five drawn from all.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HELD_OUT, TIMES, LINES, PARTS = 60, 6, 9000, 8


def recordings(folder: Path, part: str) -> list[tuple[str, str]]:
    """Path and transcript of each recording of a part."""
    table = folder / f"{part}.tsv"
    try:
        rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    except OSError as error:
        sys.exit(f"cannot read {table} ({error})")
    return [(str((folder / "flac" / part / f"{name}.flac").resolve()), text.lower()) for name, _, text in rows]


def similar(texts: list[str], count: int, seed: int = 5) -> list[str]:
    """So many different lines, those given among them, of at most nine words."""
    draw, after = random.Random(seed), defaultdict[str, list[str]](list)
    for text in texts:
        words = text.split()
        for first, second in zip(["<s>", *words], [*words, "</s>"], strict=True):
            after[first].append(second)
    every, found = sorted({word for text in texts for word in text.split()}), set(texts)
    while len(found) < count:
        line: list[str] = []
        while len(line) < 9:
            following = after[line[-1] if line else "<s>"]
            word = draw.choice(every) if draw.random() < 0.2 else draw.choice(following)
            if word == "</s>":
                break
            line.append(word)
        if line:
            found.add(" ".join(line))
    return sorted(found)


def spoken(lines: list[str], folder: Path) -> list[tuple[str, str]]:
    """Recordings of these lines by espeak-ng, in eight corpora that are made side by side."""
    size, running = -(-len(lines) // PARTS), []
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(PARTS):
        text, corpus = folder / f"lines-{i + 1}.txt", folder / f"part-{i + 1}"
        text.write_text("\n".join(lines[size * i : size * (i + 1)]) + "\n", encoding="utf-8")
        options = ["--corpus", "spoken", "--task", "transcribe", "--text", str(text), "--pairs", "1100"]
        command = [sys.executable, "-m", "regard", "new", str(corpus), *options, "--seed", str(i + 1)]
        running.append((corpus, subprocess.Popen(command, stdout=subprocess.DEVNULL)))
    found = []
    for corpus, process in running:
        if process.wait():
            sys.exit(f"no speech was made in {corpus}; if it is there from before, remove it first")
        for part in ("train", "valid", "test"):
            for line in (corpus / f"{part}.jsonl").read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                found.append((str((corpus / record["source"]).resolve()), record["target"]))
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(__file__).parent / "an4"
    train, test = (recordings(Path(sys.argv[1]), part) for part in ("train", "test"))
    random.Random(1).shuffle(train)
    valid, train = train[:HELD_OUT], train[HELD_OUT:]
    made = spoken(similar([text for _, text in train], LINES), target / "spoken")
    for name, pairs in {"train": TIMES * train + made, "valid": valid, "test": test}.items():
        records = [json.dumps({"source": path, "target": text}) for path, text in pairs]
        (target / f"{name}.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")
        print(f"{len(records)} recordings to {target / name}.jsonl")
