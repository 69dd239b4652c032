"""Frames of videos as images, each named by its video and its time, such as clip.mp4#12.00s; opened by PyAV."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from PIL import Image

from excb.errors import require

EXTENSIONS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp", ".mts", ".m2ts")
ADVICE = "pip install 'excb[video]'"
EVERY = 1.0  # seconds between the frames of a video that is named itself
MOST_FRAMES = 2**20  # of a video
SHORTEST = 0.01  # seconds, as names have two decimals
_FRAME = re.compile(rf"(.+(?:{'|'.join(map(re.escape, EXTENSIONS))}))#(\d+\.\d\d)s", re.IGNORECASE | re.DOTALL)
_EARLY = 1e-3  # seconds by which a frame may be late: times are fractions, and names have two decimals
_AHEAD = 10.0  # seconds that are decoded rather than skipped: as far apart as key frames usually are
_TURNS = {90: Image.Transpose.ROTATE_90, -90: Image.Transpose.ROTATE_270}
_TURNS |= dict.fromkeys((180, -180), Image.Transpose.ROTATE_180)


def is_video(path: object) -> bool:
    """Whether a path is a video's, by its extension."""
    return isinstance(path, str | os.PathLike) and os.fspath(path).lower().endswith(EXTENSIONS)


def is_installed() -> bool:
    """Whether videos can be opened here."""
    return find_spec("av") is not None


def frame_of(path: object) -> tuple[Path, float] | None:
    """The video and the seconds that a frame's path names; None of other paths, and of files that have such a name."""
    if not isinstance(path, str | Path) or (match := _FRAME.fullmatch(os.fspath(path))) is None or Path(path).exists():
        return None
    return Path(match[1]), float(match[2])


def stored_file(path: Path) -> Path:
    """The file that holds an image: the video of a frame, else the path itself."""
    frame = frame_of(path)
    return path if frame is None else frame[0]


def frame_paths(video: Path, path: str, every: float) -> list[str]:
    """Paths of the frames of a video at 0 s, `every` s, ...

    Args:
        video: its file.
        path: its name, with which those of its frames begin.
        every: seconds.

    Raises:
        OSError: PyAV cannot open it, it has no pictures, or more than `MOST_FRAMES`.
        UserError: `every` is too short.
    """
    require(every >= SHORTEST, f"frames are at least {SHORTEST:g} s apart, not {every:g}: choose another --every")
    container, stream = _opened(video)
    with _as_os_errors(), container:
        seconds = _duration(container, stream)
    if seconds > MOST_FRAMES * every:  # as a forged header may say
        raise OSError(f"it lasts {seconds:,.0f} s by its header, more than {MOST_FRAMES:,} frames")
    times = takewhile(lambda time: time < seconds - _EARLY, (every * number for number in count(1)))
    return [f"{path}#{time:.2f}s" for time in (0.0, *times)]


def in_order(path: str) -> tuple[str, float]:
    """The key that sorts frames of a video by their times, and other paths by their names."""
    match = _FRAME.fullmatch(path)
    return (path, 0.0) if match is None else (match[1], float(match[2]))


def open_frame(video: Path, seconds: float, most_pixels: float) -> Image.Image:
    """The frame that a video shows at a time, upright.

    Raises:
        OSError: there is none, it cannot be decoded, or has more than `most_pixels`.
    """
    global _reader  # noqa: PLW0603 - one open video per process: frames are usually read in their order
    stamp = video.stat()
    key = (os.getpid(), video.absolute(), stamp.st_size, stamp.st_mtime_ns)
    if _reader is not None and _reader.key[0] != key[0]:
        _INHERITED.append(_reader)
    if _reader is None or _reader.key != key:
        _reader = _Reader(key, video, most_pixels)
    try:
        return _reader.at(seconds)
    except BaseException:
        _reader = None  # where it stopped is unknown
        raise


class _Reader:
    """A video that is open, and the last frame that was decoded."""

    def __init__(self, key: Any, video: Path, most_pixels: float) -> None:
        self.key = key
        self._container, self._stream = _opened(video)
        self._stream.codec_context.options = {"max_pixels": str(int(min(most_pixels, 2**31 - 1)))}
        self._frames: Iterator[Any] = iter(())
        self._current: Any = None
        self._next: Any = None

    def at(self, seconds: float) -> Image.Image:
        with _as_os_errors():
            target = seconds + float((self._stream.start_time or 0) * self._stream.time_base)
            if self._current is None or not self._current.time <= target + _EARLY <= self._current.time + _AHEAD:
                self._container.seek(int(target / self._stream.time_base), stream=self._stream)
                self._frames, self._current, self._next = self._container.decode(self._stream), None, None
            while (frame := self._next or next(self._frames, None)) is not None:
                late = frame.time > target + _EARLY
                self._next = frame if late else None
                if late and self._current is not None:
                    break
                self._current = frame
                if late:  # nothing earlier can be decoded
                    self._next = None
                    break
            if self._current is None:
                raise OSError(f"no frame at {seconds:.2f} s")
            image: Image.Image = self._current.to_image()
            turn = _TURNS.get(round(self._current.rotation))
        return image if turn is None else image.transpose(turn)


_reader: _Reader | None = None
# Of a forked process: readers of its parent. Closing one would wait for decoder threads, which only the parent has.
_INHERITED: list[_Reader] = []


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """FFmpeg's errors become OSErrors, as Pillow's are."""
    import av

    try:
        yield
    except av.FFmpegError as error:
        raise OSError(f"FFmpeg: {error.strerror or error}") from None


def _opened(video: Path) -> tuple[Any, Any]:
    """PyAV's container of a video and its stream of pictures. Raises OSError."""
    if not is_installed():
        raise OSError(f"videos need an extra: {ADVICE}")
    import av

    with _as_os_errors():
        container = av.open(str(video))
    if not container.streams.video:
        container.close()
        raise OSError("it has no pictures")
    return container, container.streams.video[0]


def _duration(container: Any, stream: Any) -> float:
    """Seconds that the pictures last, by the header or else by the packets."""
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    if container.duration is not None:
        return float(container.duration) / 1e6
    times = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
    return float((max(times) - min(times)) * stream.time_base) if times else 0.0
