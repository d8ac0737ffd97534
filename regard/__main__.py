"""The program: `regard`, which is `python -m regard`. Signals are handled before torch is imported."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Any, TextIO

RESUMED = ("train", "compare", "demo")  # commands that go on where they were; those below do, if they write to a file
RESUMED_FILES = ("generate", "translate", "score")


class Listener:
    """Raises KeyboardInterrupt when Ctrl-C, SIGTERM or SIGHUP comes, and remembers which it was: an extension module
    that is being imported may turn the exception into another one. Signals ignored from the start, as under `nohup`,
    stay so."""

    def __init__(self) -> None:
        self.arrived: int | None = None
        self.numbers = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]

    def start(self) -> None:
        """From now on signals raise."""
        for number in self.numbers:
            signal.signal(number, self._raise)

    def end(self) -> None:
        """From now on a signal ends the program at once."""
        for number in self.numbers:
            signal.signal(number, signal.SIG_DFL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.arrived = number
        raise KeyboardInterrupt


class Stdout(io.FileIO):
    """Standard output, named in its errors."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


class Stderr(io.FileIO):
    """Standard error, whose reader may leave (`regard train … 2>&1 | head`): nobody is told then, and work goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def main() -> None:
    """Run a command, and leave; what ended it early is said in a line. What is a bug keeps its traceback."""
    listener, code = Listener(), None
    try:
        listener.start()
        _mend_streams()
        from regard.cli import run

        code = run(sys.argv[1:])
        listener.end()
    except BaseException as error:
        listener.end()
        if isinstance(error, KeyboardInterrupt) or (listener.arrived and isinstance(error, Exception)):
            code = _say_interrupted(listener.arrived or signal.SIGINT)
        else:
            from regard.cli import say_what

            code = say_what(error, verbose=bool({"-v", "--verbose"} & set(sys.argv[1:])))
        if code is None:
            raise
    sys.exit(code)


def _mend_streams() -> None:
    """See that file descriptors 0 to 2 are taken, so that no file of ours gets their numbers; and lay our own streams
    over 1 and 2, on which no character is too strange to be written."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stderr is None or _is_file(sys.stderr, 2):
        sys.stderr = _stream(Stderr(2, "wb", closefd=False), sys.stderr)
    if sys.stdout is not None and _is_file(sys.stdout, 1):
        sys.stdout = _stream(Stdout(1, "wb", closefd=False), sys.stdout)


def _is_file(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except OSError:  # a stand-in, which is no file
        return False


def _stream(raw: Stdout | Stderr, like: TextIO | None) -> TextIO:
    encoding = "utf-8" if like is None else like.encoding
    lines = isinstance(raw, Stderr) or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=lines)


def _say_interrupted(number: int) -> int:
    """Say what stopped the command and whether it can go on, and give the exit code for it."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    to_file = any(word.startswith(("-o", "--output")) for word in sys.argv[1:])
    resumed = command in RESUMED or (command in RESUMED_FILES and to_file)
    what = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    after_echo = "\n" if number == signal.SIGINT and sys.stderr.isatty() else ""  # a terminal shows ^C
    print(f"{after_echo}regard: stopped by {what}{'; the same command resumes' if resumed else ''}", file=sys.stderr)
    return 128 + number


if __name__ == "__main__":
    main()
