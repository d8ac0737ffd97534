"""SentencePiece subwords."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from pathlib import Path

from regard.data.marks import BOS, EOS, MARKS, PAD, SENTINEL, SEP, UNK, native_marks
from regard.data.tokens import Tokenizer, clean
from regard.data.words import piece_text
from regard.errors import ConfigError, DataError, RegardError

UNKNOWN = " ⁇ "  # what SentencePiece writes where a token is unknown
LONGEST_LINE = 4192  # bytes; SentencePiece learns nothing from longer ones
DRAWN = 4096  # lines whose subwords one thread draws
THREADED = 128  # lines for which SentencePiece starts threads of its own: for fewer that takes longer than they do


class Subwords(Tokenizer):
    """SentencePiece (Kudo and Richardson 2018): unigram or BPE, any character by way of its bytes."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self.processor.get_piece_size()
        named = (self.processor.id_to_piece(i) == SENTINEL.format(i - len(MARKS)) for i in range(len(MARKS), self.size))
        self.marks = native_marks(sum(takewhile(bool, named)))

    @staticmethod
    def train(texts: Iterable[str], kind: str, size: int, sentinels: int = 0, *, compose: bool = True) -> Subwords:
        """Learn subwords from lines, which are read once."""
        import sentencepiece

        written, failures, marks = io.BytesIO(), list[BaseException](), list(native_marks(sentinels).names.values())

        def lines() -> Iterator[bytes]:
            try:
                for text in texts:
                    yield clean(text, compose=compose).encode()
            except UnicodeEncodeError as error:
                failures.append(_not_learnt(str(error), kind, size, len(marks)))
            except BaseException as error:  # not for SentencePiece: versions of it differ in what they make of it
                failures.append(error)

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=lines(), model_writer=written, model_type=kind,
                vocab_size=size, hard_vocab_limit=False, byte_fallback=True, character_coverage=0.9999,
                normalization_rule_name="identity", input_sentence_size=2_000_000, minloglevel=2,
                pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS, control_symbols=marks[SEP:],
            )  # fmt: skip
        except RuntimeError as error:
            if not failures:
                raise _not_learnt(str(error), kind, size, len(marks)) from None
        if failures:
            raise failures[0]
        return Subwords(written.getvalue())

    def encode(self, text: str) -> list[int]:
        return list(self.processor.encode(clean(text, compose=self.composes)))

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        import sentencepiece

        cleaned = [clean(text, compose=self.composes) for text in texts]
        if not sampling and len(cleaned) < THREADED:
            return [list(self.processor.encode(text)) for text in cleaned]
        if not sampling:
            return [list(ids) for ids in self.processor.encode(cleaned)]
        # SentencePiece seeds its generator once in each thread, so only a new thread draws from a new seed; and it lets
        # other threads work meanwhile. Threads take so many lines each, whatever the machine: draws depend on that.
        sentencepiece.set_random_generator_seed(seed % 2**32)
        with ExitStack() as threads:
            draw = partial(self.processor.encode, enable_sampling=True, alpha=sampling, nbest_size=-1, num_threads=1)
            parts = [
                threads.enter_context(ThreadPoolExecutor(1)).submit(draw, cleaned[start : start + DRAWN])
                for start in range(0, len(cleaned), DRAWN)
            ]
            return [ids for part in parts for ids in part.result()]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        found, at, waiting = [], -1, 0  # a blank is put before the first word
        for i in self.encode(text):
            piece = str(self.processor.id_to_piece(i))
            if self.processor.is_byte(i):
                waiting = waiting or len(text[at].encode())
                found.append((at, at + 1))
                waiting -= 1
                at += not waiting
            else:
                found.append((at + piece.startswith("▁"), at + len(piece)))
                at += len(piece)
        return found if at == len(text) else super().offsets(text)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.processor.decode([int(i) for i in ids]))

    def adds(self, token: int) -> str:
        if token in self.marks.names:
            return UNKNOWN if token == self.marks.unknown else ""
        return piece_text(str(self.processor.id_to_piece(token)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A piece that goes on a word starts with a dot."""
        shown, started = [], False
        for i in map(int, ids):
            piece = str(self.processor.id_to_piece(i))
            own = i not in self.marks.names
            goes_on = started and own and not piece.startswith("▁")
            shown.append(f"·{piece}" if goes_on else piece.removeprefix("▁") or "▁")
            started = own
        return shown

    def words(self, ids: Sequence[int]) -> list[int]:
        numbers, word = [], -1
        for i in map(int, ids):
            text = self.marks.is_text(i)
            word += text and (word < 0 or str(self.processor.id_to_piece(i)).startswith("▁"))
            numbers.append(word if text else -1)
        return numbers

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.model").write_bytes(self.model)


def _not_learnt(said: str, kind: str, size: int, marks: int) -> RegardError:
    """What SentencePiece said when it gave up, as an error of data or settings."""
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", said):
        return ConfigError(
            f"tokens.size ({size}) is too small for {kind} on this text: 256 bytes, {marks} marks and every "
            f"character must fit; try at least {needed[1]}, or tokens.kind: char"
        )
    if "sentences_.empty()" in said or "required_chars_.empty()" in said:
        return DataError(
            f"there is nothing to learn tokens of kind {kind} from: no line of the training data holds 1 to "
            f"{LONGEST_LINE:,} bytes of text; tokens.kind: char or byte takes longer ones"
        )
    return DataError(f"SentencePiece cannot learn tokens of kind {kind} from the training data: {said}")
