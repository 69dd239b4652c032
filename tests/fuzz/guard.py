"""Effects that no input may have: code run, a write elsewhere, a connection, gigabytes, an endless wait, a traceback.

Python's own audit events are the witness, so that nothing here trusts the code that is tested.
"""

import importlib
import io
import os
import resource
import signal
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn
from unittest import mock

from excb.errors import USER_ERROR, UserError, print_error
from excb.files import confined
from tests.ordinary_user import ordinary_user

SECONDS = 20  # of one input, at most; most take milliseconds
MOST_MEMORY = 3 << 29  # bytes that one input may add to what the process holds: Pillow lets 178 megapixels pass
ADDRESS_SPACE = 8 << 30  # beyond what is mapped: protects the machine where a test fails
LONGEST_LINE = 4000  # of a message
CANARY = "excb_fuzz_canary"  # a module that is not there: to look for it is to run what an input says

_PLACES = ("EXCB_HOME", "EXCB_CACHE", "EXCB_DATA", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME")
_PROCESSES = ("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen")
_CODE = ("pickle.find_class", "pty.spawn")
_CHANGES = (
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod", "os.chown"),
    *("os.utime", "os.setxattr", "shutil.rmtree", "shutil.move", "shutil.chown", "shutil.unpack_archive"),
)
_BOTH = slice(2)
_PATHS = {"os.rename": _BOTH, "os.link": _BOTH, "shutil.move": _BOTH, "os.symlink": slice(1, 2)}  # arguments changed


class ForbiddenError(BaseException):
    """An input made the process do what none may; no `except Exception` of the tested code hides it."""


class HangError(BaseException):
    """An input kept the process waiting."""


class _Watch:
    """The state of the one audit hook, which cannot be removed: what it watches now."""

    folder: str | None = None
    seen: tuple[str, ...] = ()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if (offence := self._offence(event, arguments)) is not None:
            self.seen = (*self.seen, offence)
            raise ForbiddenError(offence)

    def _offence(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """The reason why an event is forbidden, or None."""
        first = arguments[0] if arguments else None
        if event in ("import", "compile", "exec"):  # which Python itself does all the time
            wrong = _names_canary(first)
        elif event == "ctypes.dlopen":  # libraries load their own parts when first used
            wrong = first is not None and not str(first).startswith((sys.prefix, sys.base_prefix))
        elif event == "socket.connect":
            address = arguments[1]
            wrong = not (isinstance(address, tuple) and address[0] in ("127.0.0.1", "::1"))
        elif event == "open":
            _, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) or set(str(mode or "r")) & set("wax+")
            wrong = bool(writes) and self._elsewhere(first, -1)
        elif event in _CHANGES:
            at = arguments[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            wrong = any(self._elsewhere(place, at) for place in arguments[_PATHS.get(event, slice(1))])
        elif event == "subprocess.Popen":  # a parser's, which may take so much memory and no more
            wrong = confined._START not in arguments[1]
        else:
            wrong = event in (*_PROCESSES, *_CODE)
        return f"{event} {arguments!r}" if wrong else None

    def _elsewhere(self, path: Any, folder: int) -> bool:
        if isinstance(path, int) or self.folder is None:
            return False
        base = f"/proc/self/fd/{folder}" if folder >= 0 else "."
        try:
            whole = os.path.realpath(os.path.join(os.path.realpath(base), os.fsdecode(path)))  # noqa: PTH118
        except ValueError:  # a zero byte: the system will not take it either
            return False
        return whole not in (os.devnull, self.folder) and not whole.startswith(f"{self.folder}{os.sep}")


def _names_canary(code: Any) -> bool:
    if isinstance(code, CodeType):
        return CANARY in code.co_names or any(isinstance(value, str) and CANARY in value for value in code.co_consts)
    return CANARY in code if isinstance(code, str) else isinstance(code, bytes) and CANARY.encode() in code


_watch = _Watch()
sys.addaudithook(_watch)


class Guard:
    """One input's own folder, and the rules that hold while it is read.

    Attributes:
        folder: the only place where anything may be written.
        refused: whether the input ended in a clean error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.refused = folder, False

    def run(self, call: Callable[[], Any], *, declared: tuple[type[Exception], ...] = ()) -> Any:
        """The value of a call, or None where it ended in a clean error: a UserError of one line, or a `declared` one.

        Args:
            call: reads the input.
            declared: errors that the called function's own description names besides UserError.
        """
        try:
            return _watched(self.folder, call)
        except UserError as error:
            self.refused = True
            _check_told(error)
        except declared:
            self.refused = True
        return None

    def command(self, main: Callable[[list[str]], int], *words: str) -> str | None:
        """The output of a command that did its work, or None where it ended with exit code 2 and one line on stderr."""
        out, err = _Terminal(), _Terminal()
        with redirect_stdout(out), redirect_stderr(err):
            code = _watched(self.folder, lambda: _ended(main, words))
        assert code in (0, USER_ERROR), f"exit code {code}: {err.text}"
        _check_printable(out.text)
        _check_printable(err.text)
        self.refused |= code == USER_ERROR
        if code == 0:
            return out.text
        last = err.text.splitlines()[-1]
        assert ": error: " in last, err.text
        assert len(last) <= LONGEST_LINE, len(last)
        return None


def _ended(main: Callable[[list[str]], int], words: Sequence[str]) -> int:
    """The exit code; argparse ends the program itself once it has shown its help."""
    try:
        return main(list(words))
    except SystemExit as stop:
        code = stop.code
    assert code in (0, None), code
    return 0


class _Terminal(io.TextIOWrapper):
    """A terminal of UTF-8, which takes no text that UTF-8 cannot hold."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def _check_told(error: UserError) -> None:
    """Check that a user would see one line, which a terminal shows as it is."""
    err = _Terminal()
    with redirect_stderr(err):
        assert print_error("excb", error) == USER_ERROR
    assert err.text.count("\n") == 1, err.text
    assert "Traceback" not in err.text
    assert len(err.text) <= LONGEST_LINE, err.text[:LONGEST_LINE]
    _check_printable(err.text)


def _check_printable(text: str) -> None:
    """No escape sequence, no sign that turns the direction of writing, no half of a character."""
    odd = sorted({sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs") and sign not in "\n\t"})
    assert not odd, f"{odd} in {text[:500]!r}"


def import_all() -> None:
    """Import what reading any input may import: compilers make folders then, and libraries load their parts."""
    for module in (
        *("torchvision.io", "timm", "torch.utils.tensorboard", "matplotlib.backends.backend_agg", "pycocotools.mask"),
        *(
            "excb.images.jpeg",
            "excb.hub.loading",
            "excb.pretrain.figures.curves",
            "excb.pretrain.loop",
            "excb.transfer.reporting.report",
            "huggingface_hub",
        ),
        *(
            "excb.transfer.finetuning.protocol",
            "excb.transfer.leaderboard.cli",
            "excb.transfer.leaderboard.making",
            "excb.transfer.leaderboard.page",
            "excb.transfer.leaderboard.submission",
            "excb.transfer.reproduce.checking",
            "excb.transfer.reproduce.cli",
            "excb.transfer.task",
            "matplotlib.backends.backend_svg",
            "sklearn.neighbors",
        ),
    ):
        importlib.import_module(module)
    assert all(importlib.import_module("excb.transfer.protocols").PROTOCOLS.values())  # each record is a module


@contextmanager
def guard() -> Iterator[Guard]:
    """A guard with a folder of its own, which goes with all that is in it."""
    # Not below /tmp itself, where pytest keeps what it wrote: nothing of that may be taken for the target.
    with tempfile.TemporaryDirectory(prefix="excb-fuzz-", ignore_cleanup_errors=True) as name:
        places = {variable: f"{name}/{variable.lower()}" for variable in _PLACES}
        folder = Path(name).resolve()
        with (
            mock.patch.dict(os.environ, places | {"NO_PROXY": "*", "no_proxy": "*"}),
            mock.patch.object(tempfile, "tempdir", str(folder)),
        ):
            yield Guard(folder)


def _watched(folder: Path, call: Callable[[], Any]) -> Any:
    """The value of a call; not a context manager, in whose own code a late alarm could go off."""
    before, byte_code = _resident(), sys.dont_write_bytecode
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, _hang)
    sys.dont_write_bytecode = True
    _reset_peak()
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + ADDRESS_SPACE, hard))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is damaged .*; trying the one before")  # told by `excb.load`
        _watch.folder, _watch.seen = str(folder), ()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with ordinary_user():
                value = call()
        finally:
            _watch.folder = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            sys.dont_write_bytecode = byte_code
    assert not _watch.seen, _watch.seen
    taken = _peak() - before
    assert taken <= MOST_MEMORY, f"{taken / 2**20:,.0f} MiB more than before"
    return value


def _hang(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise HangError(f"not done after {SECONDS} s")


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes; 0 on other systems, where memory is not judged."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _resident() -> int:
    return _status("VmRSS")


def _mapped() -> int:
    return _status("VmSize") or 1 << 40


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> None:
    """Let the peak begin anew, where the system can: else it is that of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
