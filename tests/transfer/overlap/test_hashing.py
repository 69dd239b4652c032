"""The perceptual hash: that of SciPy's cosine transform, and of mirrored, re-coded and plain images."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.fft import dctn

from excb.transfer.overlap.hashing import PerceptualHash, bits_of, of_bits


def picture(seed: int) -> Image.Image:
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (7, 5, 3)).astype(np.uint8))
    return small.resize((90, 70), Image.Resampling.BICUBIC)


def hashes(*images: Image.Image) -> torch.Tensor:
    network = PerceptualHash()
    return network(torch.stack([network.transform(image) for image in images]))


@pytest.mark.parametrize("seed", range(5))
def test_bits_are_those_of_scipys_transform(seed: int) -> None:
    grey = np.array(picture(seed).convert("L").resize((32, 32), Image.Resampling.LANCZOS), float)
    low = dctn(grey)[:8, :8]
    expected = np.where(low > np.median(low), 1, -1).flatten()
    assert hashes(picture(seed))[0, :64].tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_second_half_is_the_hash_of_the_mirrored_image(seed: int) -> None:
    upright, mirrored = hashes(picture(seed), ImageOps.mirror(picture(seed)))
    cosine = upright[64:].double() @ mirrored[:64].double() / 64
    assert bits_of(float(cosine)) <= 2  # the resize rounds grey levels
    assert bits_of(float(upright[:64].double() @ upright[64:].double() / 64)) > 10


def test_a_recoded_image_is_near_and_another_is_far() -> None:
    coded = io.BytesIO()
    picture(1).save(coded, "JPEG", quality=30)
    first, again, other = hashes(picture(1), Image.open(coded), picture(2))[:, :64].double()
    assert bits_of(float(first @ again / 64)) <= 6
    assert bits_of(float(first @ other / 64)) >= 16


def test_plain_images_have_one_hash() -> None:
    plain = hashes(*(Image.new("RGB", (50, 40), (grey, grey, grey)) for grey in (3, 90, 251)))
    assert (plain == plain[0]).all()


def test_the_distance_counts_the_bits_that_differ() -> None:
    for bits in range(65):
        first, second = torch.ones(64), torch.ones(64)
        second[:bits] = -1
        cosine = float(first @ second / 64)
        assert (bits_of(cosine), of_bits(bits)) == (bits, cosine)
