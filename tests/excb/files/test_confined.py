"""Parsers in a child process: what they write, how they fail, and that they cannot take more memory than is allowed."""

import os
import signal
from collections.abc import Callable
from typing import IO

import pytest

from excb.files import foreign
from excb.files.confined import confined
from excb.files.foreign import TooLargeError

Limit = Callable[[], None]


def double(limit: Limit, stream: IO[bytes], text: str) -> None:
    limit()
    stream.write(2 * os.fsencode(text))


def fail(limit: Limit, _stream: IO[bytes]) -> None:
    limit()
    raise RuntimeError("a field of\ntwo lines")


def crash(limit: Limit, stream: IO[bytes]) -> None:
    limit()
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


def fill(limit: Limit, stream: IO[bytes], size: str) -> None:
    limit()
    stream.write(b"%d" % len(bytearray(int(size))))


def busy(limit: Limit, _stream: IO[bytes]) -> None:
    import resource

    limit()
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass


def read(stream: IO[bytes]) -> bytes:
    return stream.read()


@pytest.mark.parametrize("text", ["a", "caf\udce9\n", ""])
def test_what_a_parser_writes_is_read(text: str) -> None:
    assert confined(double, text, size=0, read=read) == 2 * os.fsencode(text)


@pytest.mark.parametrize(
    ("parser", "reason"),
    [(fail, "RuntimeError: a field of"), (crash, "its parser ended by SIGSEGV"), (busy, "reading it takes too long")],
)
def test_a_parser_that_fails_is_one_line(parser: Callable[..., None], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        confined(parser, size=0, read=read)
    assert "\n" not in str(caught.value)


def test_a_parser_has_the_limit_and_the_files_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.VARIABLE, "0.1")
    assert confined(fill, "50000000", size=0, read=read) == b"50000000"
    assert confined(fill, "250000000", size=200_000_000, read=read) == b"250000000"
    with pytest.raises(TooLargeError, match="EXCB_MEMORY_LIMIT"):
        confined(fill, "250000000", size=0, read=read)


def test_an_error_of_the_reader_is_one_line_and_ends_the_child() -> None:
    def refuse(stream: IO[bytes]) -> bytes:
        stream.read(1)
        raise TypeError("not these bytes")

    with pytest.raises(ValueError, match="not these bytes"):
        confined(double, "a", size=0, read=refuse)
    with pytest.raises(TooLargeError):
        confined(double, "a", size=0, read=lambda _stream: foreign.check_memory(1e12))
