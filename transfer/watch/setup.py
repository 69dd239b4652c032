"""The setup of a watch: a protocol with its options, on which images. Figures of two setups never share a file."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from excb.errors import UserError, nearest_name
from excb.option_parser import flag_of, of_words, plain

from ..protocols import PROTOCOLS
from ..runner import Evaluation
from .options import WatchOptions

if TYPE_CHECKING:
    from excb.images.image_set import Images

# Options of the images and of the backbone's input that change figures; the others say where and how fast.
_CHANGE_FIGURES = ("network", "resize", "crop", "rename", "feature_precision")
_EARLIER = {"recipe": "protocol"}  # names of options in files of versions until 0.2


def watchable() -> list[str]:
    """The protocols that rank checkpoints by labelled images."""
    return [name for name, each in PROTOCOLS.items() if each.labels == "classes" and each.families]


@dataclass(frozen=True)
class Asked:
    """A protocol as a command line asks for it.

    Attributes:
        evaluation: the protocol with all of its options, but for the checkpoint.
        changed: those that change figures and are not the default, as JSON holds them.
    """

    evaluation: Evaluation
    changed: dict[str, Any]

    def on(self, train: "Images", test: "Images", run: str) -> dict[str, Any]:
        """All that the figures of a run's checkpoints depend on, as JSON holds it."""
        from excb.features.extraction import files_hash

        images = {
            name: {
                "root": str(each.root),
                "images": len(each),
                "fingerprint": each.fingerprint,
                "files": files_hash(each),
            }
            for name, each in (("train", train), ("test", test))
        }
        return {"run": run, "protocol": self.evaluation.protocol.name, "options": self.changed, **images}


def asked(options: WatchOptions) -> Asked:
    """The protocol of `--protocol`, with the images and the machine of `watch`.

    Raises:
        UserError: no such protocol gives figures of labelled images, or it does not take these options.
    """
    try:
        name, *words = shlex.split(options.protocol)
    except ValueError:
        raise UserError(f"--protocol {options.protocol!r}: name a protocol, such as knn or 'knn --k 20'") from None
    if name not in (names := watchable()):
        raise UserError(
            f"--protocol {name}: no such protocol{nearest_name(name, names)} (there are {', '.join(names)})"
        )
    protocol = PROTOCOLS[name]
    elsewhere = {flag_of(each) for each in fields(protocol.shared)} | {f"--{protocol.state}", "--out"}
    if wrong := next((word for word in words if word.partition("=")[0] in elsewhere), None):
        raise UserError(
            f"--protocol {options.protocol!r}: {wrong} is not an option of {name} alone: give it to watch, if it has it"
        )
    own = of_words(protocol.options, words, program=f"excb-eval {name}")
    names_of_shared = [each.name for each in fields(protocol.shared) if hasattr(options, each.name)]
    shared = protocol.shared(ckpt="", **{each: getattr(options, each) for each in names_of_shared})
    changed = _changed(own, [each.name for each in fields(own)]) | _changed(options, _CHANGE_FIGURES)
    return Asked(Evaluation(protocol, shared, own), dict(sorted(changed.items())))


def _changed(options: Any, names: Collection[str]) -> dict[str, Any]:
    """Options that are not the default, as JSON holds them."""
    defaults = {each.name: each.default for each in fields(options)}
    values = {name: getattr(options, name) for name in names if getattr(options, name) not in (defaults[name], {})}
    pairs = {name: [f"{key}={item}" for key, item in value.items()] for name, value in values.items()
             if isinstance(value, Mapping)}  # fmt: skip
    return {name: pairs.get(name, plain(value)) for name, value in values.items()}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The difference between two setups, in words; empty where they are the same."""
    if old.get("run") != new["run"]:
        return f"of the run {old.get('run')}, now {new['run']}"
    before, now = command_text(old), command_text(new)
    if before != now:
        return f"of `{before}`, now `{now}`"
    parts = [part for part in ("train", "test") if _identity(old.get(part)) != _identity(new[part])]
    return "; ".join(f"on other {part} images: {_images(old.get(part))}, now {_images(new[part])}" for part in parts)


def command_text(setup: Mapping[str, Any]) -> str:
    """The protocol as one types it after `excb-eval`, without checkpoint and images."""
    words, options = [str(setup.get("protocol"))], setup.get("options")
    for name, value in sorted(options.items()) if isinstance(options, dict) else []:
        flag = f"--{_EARLIER.get(str(name), str(name)).replace('_', '-')}"
        words += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _identity(images: Any) -> Any:
    """The identity of sets of images. The same ones may be found under another path."""
    return [images.get(name) for name in ("fingerprint", "files")] if isinstance(images, dict) else None


def _images(images: Any) -> str:
    if not isinstance(images, dict):
        return "unknown ones"
    return f"{images.get('images')} of {images.get('root')}"
