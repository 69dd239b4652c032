"""Versions: too old, incompatible, or with JPEG decoders that disagree."""

import io
import platform
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import cast

import numpy as np
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from PIL import Image, features

from excb.version import __version__

from .finding import Finding

SHOWN = ("torch", "torchvision", "timm", "numpy", "pillow")
OLDEST = {"torch": "2.11", "timm": "1.0.26"}  # as in pyproject.toml
EXCLUSIVE = (("faiss-cpu", "faiss-gpu-cu12"), ("pillow", "pillow-simd"))  # both provide the same module


def check_versions() -> list[Finding]:
    """Check the installed packages."""
    return [_versions(), _decoders()]


def _versions() -> Finding:
    have = {name: version for name in SHOWN if (version := installed(name)) is not None}
    shown = ", ".join(f"{name} {version}" for name, version in have.items())
    found = f"excb {__version__}, Python {platform.python_version()}, {shown}"
    wrong = [f"{name} is not installed" for name in SHOWN if name not in have]
    for name, oldest in OLDEST.items():
        if name in have and Version(have[name]) < Version(oldest):
            wrong.append(f"{name} {have[name]} is older than {oldest}")
    wrong += _unmet(have)
    wrong += [
        f"{one} and {other} exclude each other" for one, other in EXCLUSIVE if installed(one) and installed(other)
    ]
    if wrong:
        fix = "pip install -U excb torch torchvision timm"
        return Finding("versions", "error", f"{found}; {'; '.join(wrong)}", fix)
    return Finding("versions", "ok", found)


def installed(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unmet(have: dict[str, str]) -> list[str]:
    """Requirements between packages that an upgrade of one of them has broken."""
    wrong = []
    for package, own in have.items():
        for line in metadata.requires(package) or []:
            wanted = Requirement(line)
            version = have.get(wanted.name)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if applies and version is not None and not wanted.specifier.contains(version, prereleases=True):
                wrong.append(f"{package} {own} needs {wanted.name}{wanted.specifier}")
    return wrong


def _decoders() -> Finding:
    """Check that all decoders of a JPEG give the same pixels, as `efficiency.decoder` promises."""
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    found = f"Pillow's libjpeg-turbo {turbo}" if turbo else "Pillow uses a libjpeg other than libjpeg-turbo"
    try:
        difference = _largest_difference(_by_torchvision)
    except (ImportError, RuntimeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        found = f"{found}; torchvision's decoder does not run ({reason})"
        fix = "install a torchvision made for this torch, or set efficiency.decoder=pillow"
        return Finding("JPEG decoders", "error", found, fix)
    if difference:
        fix = (
            "harmless within a run; for bit-exact results across machines, set efficiency.decoder=pillow on all of them"
        )
        return Finding("JPEG decoders", "warning", f"{found}; torchvision differs by up to {difference} of 255", fix)
    found = f"{found}; torchvision gives the same pixels"
    if (version := installed("simplejpeg")) is None:
        return Finding("JPEG decoders", "ok", found)
    try:
        difference = _largest_difference(_by_simplejpeg)
    except (ImportError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        fix = "pip install -U simplejpeg, or set efficiency.decoder=torchvision"
        return Finding("JPEG decoders", "error", f"{found}; simplejpeg {version} does not run ({reason})", fix)
    if difference:
        fix = "pip install -U simplejpeg; for bit-exact results across machines, efficiency.decoder=torchvision on all"
        found = f"{found}; simplejpeg {version} differs by up to {difference} of 255"
        return Finding("JPEG decoders", "warning", found, fix)
    return Finding("JPEG decoders", "ok", f"{found}, simplejpeg {version} too")


def _largest_difference(decode: Callable[[bytes], np.ndarray]) -> int:
    """Largest difference between Pillow and a decoder on a noisy picture, in grey levels."""
    coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((160, 121), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
    ours = np.asarray(Image.open(stream).convert("RGB")).astype(np.int16)
    return int(np.abs(ours - decode(stream.getvalue()).astype(np.int16)).max())


def _by_torchvision(coded: bytes) -> np.ndarray:
    from torchvision.io import ImageReadMode, decode_jpeg

    with warnings.catch_warnings(action="ignore"):  # as in excb.images.jpeg: a deprecation
        decoded = decode_jpeg(torch.frombuffer(bytearray(coded), dtype=torch.uint8), ImageReadMode.RGB)
    return cast(torch.Tensor, decoded).permute(1, 2, 0).numpy()


def _by_simplejpeg(coded: bytes) -> np.ndarray:
    import simplejpeg

    return np.asarray(simplejpeg.decode_jpeg(coded, "RGB", strict=True))
