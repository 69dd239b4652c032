"""Versions: too old, incompatible, or with JPEG decoders that disagree."""

import io
import platform
import warnings
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
    """Check that Pillow and torchvision decode a JPEG to the same pixels, as `efficiency.decoder` promises."""
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    found = f"Pillow's libjpeg-turbo {turbo}" if turbo else "Pillow uses a libjpeg other than libjpeg-turbo"
    try:
        difference = _largest_difference()
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
    return Finding("JPEG decoders", "ok", f"{found}; torchvision gives the same pixels")


def _largest_difference() -> int:
    """Largest difference between both decoders on a noisy picture, in grey levels."""
    from torchvision.io import ImageReadMode, decode_jpeg

    coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((160, 121), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
    coded = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    ours = np.asarray(Image.open(stream).convert("RGB")).astype(np.int16)
    with warnings.catch_warnings(action="ignore"):  # as in excb.images.jpeg: a deprecation
        decoded = cast(torch.Tensor, decode_jpeg(coded, ImageReadMode.RGB))
    theirs = decoded.permute(1, 2, 0).numpy().astype(np.int16)
    return int(np.abs(ours - theirs).max())
