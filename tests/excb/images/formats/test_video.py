"""Frames of videos: those that the clip was made of, upright, by any order of access; and what is counted instead."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest

import excb
from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image
from excb.images.formats import video
from excb.images.image_set import stamp_of
from excb.images.scanning import scan_folder
from excb.transfer.embeddings.sources import any_images
from tests.transfer.embeddings.photos import Means, write_photos

RATE, FRAMES = 10, 125  # per second, and in all


def colour_at(seconds: float) -> tuple[int, int, int]:
    """The colour that the clip has at a time."""
    number = int(seconds * RATE + 1e-6)
    return (number, 250 - 2 * number, 80)


def write_clip(file: Path) -> Path:
    av = pytest.importorskip("av", reason="PyAV is not installed (the extra video)")
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 48, "yuv420p", 4_000_000
        for number in range(FRAMES):
            pixels = np.full((48, 64, 3), colour_at(number / RATE), np.uint8)
            pixels[:8] = 255  # at the top
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4")


def test_frames_have_the_colours_of_their_times_in_any_order(clip: Path) -> None:
    paths = video.frame_paths(clip, "clip.mp4", 2.5)
    assert paths == [f"clip.mp4#{time}s" for time in ("0.00", "2.50", "5.00", "7.50", "10.00")]
    for path in [*paths, paths[0], paths[4], "clip.mp4#0.19s", "clip.mp4#12.49s", paths[1]]:
        pixels = np.asarray(open_image(clip.parent / path)).astype(int)
        wanted = colour_at(float(path.split("#")[1][:-1]))
        assert pixels.shape == (48, 64, 3)
        assert np.abs(pixels[20:].mean((0, 1)) - wanted).max() < 6


def test_frames_are_sorted_by_time_and_their_stamp_is_the_videos(clip: Path) -> None:
    images = scan_folder(clip.parent, every=1.0)
    assert [float(path.split("#")[1][:-1]) for path in images.paths] == list(range(13))
    assert images.stamp(3) == stamp_of(clip) != "none"


def test_a_turned_video_is_shown_upright(clip: Path, tmp_path: Path) -> None:
    content = bytearray(clip.read_bytes())
    # ISO/IEC 14496-12: the matrix of a track's header, 40 bytes after the name of the box: turned right by 90 degrees.
    at = content.index(b"tkhd") + 4 + 40
    content[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    turned = tmp_path / "turned.mov"
    turned.write_bytes(content)
    pixels = np.asarray(open_image(Path(f"{turned}#1.00s"))).astype(int)
    assert pixels.shape == (64, 48, 3)
    assert pixels[:, -4:].min() > 200  # what was at the top is at the right


def test_a_damaged_video_and_a_missing_frame_are_counted(clip: Path, tmp_path: Path) -> None:
    write_photos(tmp_path, 4)
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    images = scan_folder(tmp_path, every=1.0)
    assert len(images) == 5
    assert images.ledger.lines() == ["left out of the images: 1 .mp4 (such as bad.mp4: it cannot be read)"]
    with pytest.raises(BrokenImageError, match="OSError"):
        open_image(Path(f"{tmp_path / 'bad.mp4'}#1.00s"))
    with pytest.raises(UserError, match=r"frames are at least 0\.01 s apart"):
        video.frame_paths(clip, "clip.mp4", 0)


def test_without_the_extra_videos_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path, 4)
    (tmp_path / "a.MOV").write_bytes(b"video")
    monkeypatch.setattr(video, "is_installed", lambda: False)
    assert scan_folder(tmp_path).ledger.lines() == ["left out of the images: 1 .mov"]
    line = "left out of the images: 1 .mov (such as a.MOV: pip install 'excb[video]')"
    assert scan_folder(tmp_path, every=1.0).ledger.lines() == [line]
    with pytest.raises(UserError, match=r"a\.MOV cannot be read as a video \(videos need an extra: pip install"):
        any_images(str(tmp_path / "a.MOV"), note=lambda _line: None)


def test_a_clip_is_embedded_and_searched(clip: Path, tmp_path: Path) -> None:
    made = excb.embed(Means(), clip, every=4.0, quiet=True)
    times = (0, 4, 8, 12)
    assert [path.split("/")[-1] for path in made.paths] == [f"clip.mp4#{time}.00s" for time in times]
    wanted = [(np.array(colour_at(time)) * 5 / 6 + 255 / 6) / 255 for time in times]
    assert np.abs(made.vectors - wanted).max() < 0.03
    assert made.search(Path(made.paths[2]), k=1)[0].path == made.paths[2]
    write_photos(tmp_path / "photos", 4)
    (tmp_path / "photos" / "clip.mp4").write_bytes(clip.read_bytes())
    both = excb.embed(Means(), tmp_path / "photos", every=10.0, quiet=True)
    assert [path for path in both.paths if "#" in path] == ["clip.mp4#0.00s", "clip.mp4#10.00s"]
    assert len(both) == 7


def test_a_frame_larger_than_any_image_is_refused(clip: Path) -> None:
    assert video.open_frame(clip, 1.0, 64 * 48 * 2).size == (64, 48)
    with pytest.raises(OSError, match="FFmpeg"):
        video.open_frame(write_clip(clip.parent / "again.mp4"), 1.0, 64 * 48 / 2)


def test_a_forged_length_makes_no_names_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_opened", lambda _video: (contextlib.nullcontext(), None))
    monkeypatch.setattr(video, "_as_os_errors", contextlib.nullcontext)
    monkeypatch.setattr(video, "_duration", lambda _container, _stream: 2.0**32)
    with pytest.raises(OSError, match=r"4,294,967,296 s by its header"):
        video.frame_paths(Path("a.mp4"), "a.mp4", 1.0)
    monkeypatch.setattr(video, "_duration", lambda _container, _stream: 3.0)
    assert len(video.frame_paths(Path("a.mp4"), "a.mp4", 1.0)) == 3
