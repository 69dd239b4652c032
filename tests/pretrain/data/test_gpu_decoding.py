"""JPEGs that are decoded where the network runs: the views of the other decoders, and the same broken files.

nvJPEG needs a GPU. Everything else runs on the CPU here, with libjpeg in its place.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.data import gpu_decoding
from excb.pretrain.data.batch import ViewBatch, collate
from excb.pretrain.data.gpu_decoding import GpuDecoder, require_decoder
from excb.pretrain.data.loader import TrainingViews, loader
from excb.pretrain.data.sampler import SampleRef
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import Recipe
from excb.pretrain.training import start
from tests.fake_cuda import fake_cuda, obstacle
from tests.pretrain.small_runs import OVERRIDES, assert_same, stopped_before

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

CPU = torch.device("cpu")
HUFFMAN_TABLE = b"\xff\xc4"
REFUSED = ("bad_table.jpg", "no_image.jpg")  # by every decoder
FILES = 14


def smooth(seed: int, size: tuple[int, int]) -> Image.Image:
    """A picture that JPEG keeps well."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """JPEGs that the GPU may decode, and every kind of file that it may not."""
    folder = tmp_path_factory.mktemp("jpegs")
    for number in range(7):
        smooth(number, (60 + 9 * number, 80 - 5 * number)).save(folder / f"{number}.jpg", quality=95)
    smooth(7, (70, 50)).save(folder / "progressive.jpg", quality=95, progressive=True)
    smooth(8, (70, 50)).convert("L").save(folder / "grey.jpg", quality=95)
    smooth(9, (70, 50)).convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth(10, (70, 50)).save(folder / "turned.jpg", quality=95, exif=exif)
    smooth(11, (70, 50)).save(folder / "lossless.png")
    content = bytearray((folder / "1.jpg").read_bytes())
    table = content.index(HUFFMAN_TABLE) + 5
    content[table : table + 16] = b"\xff" * 16
    (folder / "bad_table.jpg").write_bytes(content)
    (folder / "no_image.jpg").write_text("words")
    return scan_folder(folder)


def recipe(decoder: str, **options: Any) -> Recipe:
    return apply(find_recipe("quickstart"), [*OVERRIDES]).change(efficiency={"decoder": decoder} | options)


def batch(images: ImageSet, decoder: str, *, contents: bool = False) -> ViewBatch:
    """Every image once; `contents`: as a stream has them."""
    views = TrainingViews(images, recipe(decoder))
    files = [(images.root / path).read_bytes() if contents else None for path in images.paths]
    return collate([views[SampleRef(1, number, number, file)] for number, file in enumerate(files)])


@pytest.mark.parametrize("contents", [False, True])
def test_views_are_those_of_the_other_decoders(images: ImageSet, contents: bool) -> None:
    expected, read = batch(images, "auto", contents=contents), batch(images, "nvjpeg", contents=contents)
    assert read.jpegs is not None
    names = [Path(images.paths[row]).name for row, _ in read.jpegs.refs]
    assert sorted(names) == sorted(
        [*(f"{number}.jpg" for number in range(7)), "progressive.jpg", "grey.jpg", "bad_table.jpg"]
    )
    assert read.global_crops.shape[1] == FILES - len(names)
    found = GpuDecoder(recipe("nvjpeg"), images, CPU)(read)
    assert found.jpegs is None
    assert torch.equal(found.samples, expected.samples)
    assert torch.equal(found.used, expected.used)
    assert sorted(found.broken) == sorted(expected.broken)  # with the same reasons and replacements
    assert {Path(each.path).name for each in found.broken} == set(REFUSED)
    for ours, theirs in (
        (found.global_parameters, expected.global_parameters),
        (found.local_parameters, expected.local_parameters),
    ):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    decoded = [row for row, ref in read.jpegs.refs if Path(images.paths[ref.sample]).name != "bad_table.jpg"]
    others = [row for row in range(FILES) if row not in decoded]
    for ours, theirs in zip(found.crops, expected.crops, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == torch.uint8
        assert torch.equal(ours[:, others], theirs[:, others])
        # The same pixels, resized in floating point instead of integers.
        difference = (ours[:, decoded].int() - theirs[:, decoded].int()).abs()
        assert int(difference.max()) <= 1
        assert float(difference.float().mean()) < 0.25


def test_batches_of_one_kind(images: ImageSet) -> None:
    """None of the images, or all of them, are decoded on the GPU; there may be no local views."""
    plain = recipe("nvjpeg").change(views={"local_views": 0})
    lossless = [number for number, path in enumerate(images.paths) if path.endswith("png")]
    jpegs = [number for number, path in enumerate(images.paths) if path[0].isdigit()]
    for chosen, waiting in ((lossless, False), (jpegs, True)):
        views = TrainingViews(images, plain)
        read = collate([views[SampleRef(0, place, number)] for place, number in enumerate(chosen)])
        assert (read.jpegs is not None) == waiting
        found = GpuDecoder(plain, images, CPU)(read)
        side = plain.views.global_size
        assert found.global_crops.shape == (2, len(chosen), side, side, 3)
        assert found.local_crops is None


def test_worker_processes_hand_files_over(images: ImageSet) -> None:
    settings = recipe("nvjpeg").change(optim={"batch": 4})
    decode = GpuDecoder(settings, images, CPU)
    sides = [
        [decode(each) for each in loader(images, settings, start=0, stop=3, workers=workers, pin_memory=False)]
        for workers in (0, 2)
    ]
    for here, there in zip(*sides, strict=True):
        assert torch.equal(here.global_crops, there.global_crops)
        assert torch.equal(here.used, there.used)


def test_what_the_kernel_has_no_room_for_is_cut_on_the_cpu(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Too much shared memory required")

    expected, read = batch(images, "auto"), batch(images, "nvjpeg")
    decode = GpuDecoder(recipe("nvjpeg"), images, CPU)
    monkeypatch.setattr(decode, "_resized", refuse)
    found = decode(read)
    assert torch.equal(found.global_crops, expected.global_crops)
    assert torch.equal(found.used, expected.used)


def test_a_full_gpu_is_no_damaged_file(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_decoding, "decode", full)
    with pytest.raises(torch.OutOfMemoryError):
        GpuDecoder(recipe("nvjpeg"), images, CPU)(batch(images, "nvjpeg"))


def test_it_is_refused_without_a_gpu_that_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"this run is on the CPU: set efficiency\.decoder=auto"):
        require_decoder(recipe("nvjpeg"), CPU)
    require_decoder(recipe("auto"), CPU)

    def without(*_: object) -> None:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nat line 1")

    monkeypatch.setattr(gpu_decoding, "decode", without)
    with pytest.raises(UserError, match=r"not compiled with nvJPEG support\): set efficiency\.decoder=auto"):
        require_decoder(recipe("nvjpeg"), torch.device("cuda"))
    with pytest.raises(UserError, match=r"set efficiency\.scaled_decoding=false"):
        recipe("nvjpeg", scaled_decoding=True)


def test_the_command_refuses_it_and_makes_nothing(
    images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["quickstart", "--data", str(images.root), "--out", str(tmp_path / "run"), *OVERRIDES]
    assert main([*line, "efficiency.decoder=nvjpeg"]) == 2
    assert "decodes on a GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_resumes_as_the_undisturbed_one(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unlike files, some of which cannot be read, with centroids from k-means, on the CPU in place of a GPU."""
    monkeypatch.setattr(start, "require_decoder", lambda *_: None)
    few = recipe("nvjpeg").change(optim={"batch": 4}, method={"clusters": 6, "centroid_init": "kmeans"})

    def pretrain(out: Path) -> int:
        return loop.run_training(few, images, out, Reporter(quiet=True), table=False, verdict=False)

    def newest(out: Path) -> Any:
        return run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])

    assert pretrain(tmp_path / "whole") == 0
    with stopped_before(4):
        assert pretrain(tmp_path / "parts") > 0
    assert pretrain(tmp_path / "parts") == 0
    assert_same(newest(tmp_path / "whole"), newest(tmp_path / "parts"))


@pytest.mark.fake_cuda
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_on_a_gpu_it_waits_for_nothing(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what nvJPEG itself does, which cannot be faked."""
    read = batch(images, "nvjpeg")
    assert read.jpegs is not None
    views = sum(len(crops) for crops in read.crops)
    with fake_cuda() as cuda:
        monkeypatch.setattr(
            gpu_decoding,
            "decode",
            lambda files, device: [torch.empty(3, 200, 200, dtype=torch.uint8, device=device) for _ in files],
        )
        found = GpuDecoder(recipe("nvjpeg"), images, torch.device("cuda"))(read)
        for crops in found.crops:
            assert crops.device.type == "cuda"
            assert crops.shape[1] == FILES
        launches = sum(cost.launches for cost in cuda.record.costs.values())
    assert cuda.record.unexpected({}) == {}
    assert launches <= len(read.jpegs.refs) * (views + 4) + 24  # one for each view, and some for a batch


@pytest.mark.gpu
def test_nvjpegs_pixels_are_near_those_of_libjpeg(images: ImageSet) -> None:
    device = torch.device("cuda")
    require_decoder(recipe("nvjpeg"), device)
    expected, found = batch(images, "auto"), GpuDecoder(recipe("nvjpeg"), images, device)(batch(images, "nvjpeg"))
    assert torch.equal(found.used, expected.used)
    for ours, theirs in zip(found.crops, expected.crops, strict=True):
        assert ours.device.type == "cuda"
        assert float((ours.cpu().int() - theirs.int()).abs().float().mean()) < 2
