"""What a watch measures: a protocol with its options, on which images. Figures of two setups never share a file."""

import argparse
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.errors import UserError, nearest_name

from ..options import add_baselines, add_data_options, add_task_options
from ..old_protocol import Protocol
from ..protocols import PROTOCOLS

if TYPE_CHECKING:
    from excb.images.image_set import Images

# Options of the images and of the backbone's input that change figures; the others say where and how fast.
_CHANGE_FIGURES = ("network", "resize", "crop", "rename")


def watchable() -> list[Protocol]:
    """The protocols that rank checkpoints by labelled images."""
    return [protocol for protocol in PROTOCOLS if protocol.labels == "classes" and protocol.families]


@dataclass(frozen=True)
class Asked:
    """A protocol as a command line asks for it.

    Attributes:
        protocol: its record.
        options: all of its options, but for the checkpoint.
        changed: those that change figures and are not the default, as JSON holds them.
    """

    protocol: Protocol
    options: argparse.Namespace
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
        return {"run": run, "protocol": self.protocol.name, "options": self.changed, **images}


def asked(args: argparse.Namespace) -> Asked:
    """The protocol of `--protocol`, with the images and the machine of `watch`.

    Args:
        args: the options of `options.add_data_options`, and `protocol`: a protocol's name and its options.

    Raises:
        UserError: no such protocol gives figures of labelled images, or it does not take these options.
    """
    try:
        name, *words = shlex.split(args.protocol)
    except ValueError:
        raise UserError(f"--protocol {args.protocol!r}: name a protocol, such as knn or 'knn --k 20'") from None
    protocol = next((each for each in watchable() if each.name == name), None)
    if protocol is None:
        names = [each.name for each in watchable()]
        raise UserError(f"--protocol {name}: no such protocol{nearest_name(name, names)}; there are {', '.join(names)}")
    given = _flags(add_task_options) | _flags(add_baselines) | ({protocol.state} - {""})
    if wrong := next((word for word in words if word.partition("=")[0] in given), None):
        raise UserError(
            f"--protocol {args.protocol!r}: {wrong} is no option of {name} alone: give it to watch, if it has it"
        )
    parser = Parser(prog=f"excb-eval {name}", allow_abbrev=False)
    protocol.add_options(parser)
    options = parser.parse_args(["--ckpt", "", *words])
    shared = Parser(add_help=False)
    add_data_options(shared)
    names_of_images = {action.dest for action in shared._actions}
    own = {action.dest for action in parser._actions} - names_of_images - {"help", "ckpt", "out", "untrained"}
    changed = {each: getattr(options, each) for each in own if getattr(options, each) != parser.get_default(each)}
    changed |= {
        each: getattr(args, each) for each in _CHANGE_FIGURES if getattr(args, each) != shared.get_default(each)
    }
    for each in names_of_images:
        setattr(options, each, getattr(args, each))
    options.dry_run, options.json = False, True
    return Asked(protocol, options, json.loads(json.dumps(changed, sort_keys=True, default=str)))


def _flags(add: Any) -> set[str]:
    parser = Parser(add_help=False)
    add(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What keeps two setups apart, in words; empty where they are the same."""
    if old.get("run") != new["run"]:
        return f"of the run {old.get('run')}, now {new['run']}"
    before, now = command(old), command(new)
    if before != now:
        return f"of `{before}`, now `{now}`"
    parts = [part for part in ("train", "test") if _identity(old.get(part)) != _identity(new[part])]
    return "; ".join(f"on other {part} images: {_images(old.get(part))}, now {_images(new[part])}" for part in parts)


def command(setup: Mapping[str, Any]) -> str:
    """The protocol as one types it after `excb-eval`, without checkpoint and images."""
    words, options = [str(setup.get("protocol"))], setup.get("options")
    for name, value in sorted(options.items()) if isinstance(options, dict) else []:
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _identity(images: Any) -> Any:
    """What tells sets of images apart. The same ones may be found under another path."""
    return [images.get(name) for name in ("fingerprint", "files")] if isinstance(images, dict) else None


def _images(images: Any) -> str:
    if not isinstance(images, dict):
        return "unknown ones"
    return f"{images.get('images')} of {images.get('root')}"
