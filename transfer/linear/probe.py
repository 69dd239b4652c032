"""Linear heads trained by a protocol, on crops that pass through the backbone or on precomputed features."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from excb.checkpoint import run_checkpoint
from excb.checkpoint.same_run import require_same_run
from excb.console import Reporter
from excb.distributed.collectives import all_succeed, broadcast, gather_numbers, run_on_rank0
from excb.distributed.machine import to_device
from excb.errors import UserError
from excb.features.precision import in_precision
from excb.images.image_set import sizes_hash
from excb.networks.backbone import evaluating, weights_hash
from excb.networks.outputs import LastClassTokens

from ..data.batches import Augmentation, TrainingBatches
from ..features.parts import Part
from ..probes.attentive import queries_of
from ..probes.failure import SameFeatures
from ..probes.heads import HeadBank
from ..probes.recipes import LinearProtocol
from ..probes.rows import Rows, part_rows, shapes_of
from ..probes.selection import Choice, JudgedGuesses, choose_among, held_out, outcome_of
from ..probes.training import attentive_bank, fitting, linear_bank, scaled, scaled_rows, tried
from ..task import Task


@dataclass(frozen=True)
class Probe:
    """One protocol on one task."""

    task: Task  # backbone and images
    reporter: Reporter  # prints notes, progress and tables
    plan: LinearProtocol  # the protocol, its batch no larger than the train set
    select: str  # "holdout" or "test": the images on which one of several heads is chosen
    seed: int  # names first weights, order, crops and held-out images

    def through_backbone(self, state: Path | None) -> JudgedGuesses:
        """Train on new crops every epoch; those heads that choose see the same batches without the held-out images."""
        labels = self.task.train.labels
        assert labels is not None
        kind, heads, held = self.plan.features, tried(self.plan), None
        assert kind != "patches"
        if len(heads) > 1 and self.select == "holdout":
            held = all_succeed(lambda: held_out(labels, self.seed))
        encoder = self.task.backbone if kind == "pooled" else LastClassTokens(self.task.backbone.network)
        test, targets = self.task.features(self.task.test, "test", self.reporter, kind=kind)  # fail early
        banks = [
            linear_bank(self.task, self.plan, heads, encoder.width, seed=self.seed)
            for _ in range(1 if held is None else 2)
        ]
        self._train_through(encoder, banks, held, _State.of(self, state))
        rows, known = self.task.features(self.task.train, "train", self.reporter, kind=kind)
        same = self._same((rows, known), (test, targets))
        if held is not None:
            kept = torch.from_numpy(held)
            scores = banks[1].score(rows[kept], torch.from_numpy(labels)[kept])
            choice = Choice.among(heads, *scores, images=int(held.sum()), select="holdout")
        else:
            choice = Choice.on_test(heads, banks[0], test, targets)
        return replace(outcome_of(banks[0], choice.head, test, choice, self.plan.settings()), same=same)

    def _train_through(
        self, encoder: nn.Module, banks: Sequence[HeadBank], held: np.ndarray | None, state: "_State"
    ) -> None:
        task, plan = self.task, self.plan
        augmentation = Augmentation.like(task.preprocessing)
        batches = TrainingBatches(
            task.train,
            augmentation,
            batch=plan.batch,
            seed=self.seed,
            workers=task.workers,
            pin_memory=task.device.type == "cuda",
        )
        first, steps = state.load(banks), batches.steps
        if first:
            self.reporter.note(f"resuming after epoch {first} of {plan.epochs}")
        title = f"linear heads ({len(banks[0])})" if len(banks[0]) > 1 else "linear head"
        with evaluating(encoder), self.reporter.progress(title, plan.epochs * steps, done=first * steps) as bar:
            views = batches.run(first=first, last=plan.epochs)
            for number in range(first * steps, plan.epochs * steps):
                batch = all_succeed(lambda: next(views))  # an image may be unreadable on one rank only
                epoch, step = divmod(number, steps)
                factor = plan.schedule_factor(epoch)
                features = self._encode(encoder, batch.images, banks[0])
                labels = batch.labels.to(task.device, non_blocking=True)
                banks[0].step(features, labels, whole=batch.whole, scale=factor)
                if held is not None:
                    kept = torch.from_numpy(np.flatnonzero(~held[batch.samples.numpy()]))
                    total = int(gather_numbers([len(kept)]).sum())
                    kept = to_device(kept, task.device)  # indices: a GPU's mask would make the CPU wait
                    banks[1].step(features[kept], labels[kept], whole=max(1, total), scale=factor)
                bar.status = f"epoch {epoch + 1} of {plan.epochs}"
                bar.advance()
                if step == steps - 1:
                    state.save(epoch + 1, banks)

    @torch.no_grad()
    def _encode(self, encoder: nn.Module, images: Tensor, bank: HeadBank) -> Tensor:
        """Features [B, D] of a share of a batch, which may be empty, `task.batch` images at once."""
        if not len(images):
            return bank.weight.new_empty(0, bank.width)
        dtype = next((parameter.dtype for parameter in encoder.parameters()), torch.float32)
        network = in_precision(encoder, self.task.precision)
        parts = [network(part.to(self.task.device, dtype, non_blocking=True)) for part in images.split(self.task.batch)]
        return torch.cat(parts).to(bank.weight.dtype)

    def on_features(self) -> JudgedGuesses:
        """Train on precomputed features."""
        task, plan, kind = self.task, self.plan, self.plan.features
        assert kind != "patches"
        rows, labels = task.features(task.train, "train", self.reporter, kind=kind)
        test, targets = task.features(task.test, "test", self.reporter, kind=kind)
        rows, test = scaled(rows, test)
        make = partial(linear_bank, task, plan, width=rows.shape[1], seed=self.seed)
        outcome = choose_among(
            tried(plan),
            (rows, labels),
            (test, targets),
            fitting(make, plan, self.reporter, what="linear heads", seed=self.seed),
            settings=plan.settings(),
            select=self.select,
            seed=self.seed,
        )
        return replace(outcome, same=self._same((rows, labels), (test, targets)))

    def on_patches(self) -> JudgedGuesses:
        """Train attentive probes on the patches of the last map, which are kept on disk and read as they are needed.

        Raises:
            UserError: the backbone gives no maps, or as `on_features`.
        """
        task, shapes = self.task, shapes_of(self.task)
        last = [Part("patches", len(shapes.maps) - 1)]
        channels, *grid = shapes.maps[-1]
        rows, test = (
            part_rows(task, images, last, shapes, self.reporter, name=name)(last)
            for images, name in ((task.train, "train"), (task.test, "test"))
        )
        assert task.train.labels is not None
        assert task.test.labels is not None
        labels, targets = torch.from_numpy(task.train.labels), torch.from_numpy(task.test.labels)
        rows, test = scaled_rows(rows, test)
        make = partial(attentive_bank, task, self.plan, channels=channels, seed=self.seed)
        fit = fitting(make, self.plan, self.reporter, what="attentive probes", seed=self.seed)
        settings = self.plan.settings() | {"queries": queries_of(channels), "grid": grid}
        outcome = choose_among(
            tried(self.plan),
            (rows, labels),
            (test, targets),
            fit,
            settings=settings,
            select=self.select,
            seed=self.seed,
            folded=True,
        )
        return replace(outcome, same=self._same((rows, labels), (test, targets), channels))

    def _same(
        self, train: tuple[Rows, Tensor], test: tuple[Rows, Tensor], channels: int | None = None
    ) -> SameFeatures | None:
        classes = len(self.task.train.classes or ())
        return SameFeatures.of(train, test, classes=classes, device=self.task.device, channels=channels)


@dataclass(frozen=True)
class _State:
    """The heads on disk after every epoch, and what they belong to."""

    file: Path | None
    identity: str
    beside: dict[str, str]  # what else its heads depend on; files of earlier versions do not say

    @classmethod
    def of(cls, probe: Probe, file: Path | None) -> "_State":
        """The state of one protocol on one task: nothing that its heads depend on may differ."""
        task = probe.task
        parts = [probe.plan.settings(), probe.select, probe.seed, task.preprocessing.to_dict(), task.train.fingerprint]
        parts += [task.train.classes, weights_hash(task.backbone.network)]
        beside = {} if file is None else {"files": sizes_hash(task.train), "precision": task.precision}
        return cls(file, hashlib.sha256(json.dumps(parts).encode()).hexdigest(), beside)

    def load(self, banks: Sequence[HeadBank]) -> int:
        """Load all ranks' heads from the file, if there is one; returns the epochs done."""
        done = run_on_rank0(lambda: self._read(banks))
        broadcast(tensor for bank in banks for tensor in bank.state.values())
        return done

    def _read(self, banks: Sequence[HeadBank]) -> int:
        if self.file is None or not self.file.exists():
            return 0
        try:
            checkpoint = run_checkpoint.read_run_checkpoint(self.file)
        except run_checkpoint.DamagedFileError as error:
            raise UserError(f"{error}: remove it to start anew") from None
        parts = "settings, images or weights"  # the file holds one hash of all of them
        advice = "name another file, or remove it to start anew"
        before = {name: checkpoint.get(name, value) for name, value in self.beside.items()}
        before[parts] = checkpoint.get("identity")
        require_same_run(self.file, before, self.beside | {parts: self.identity}, advice=advice)
        for bank, tensors in zip(banks, checkpoint["banks"], strict=True):
            for name, tensor in bank.state.items():
                tensor.copy_(tensors[name])
        return int(checkpoint["epochs"])

    def save(self, epochs: int, banks: Sequence[HeadBank]) -> None:
        """Write all heads; rank 0 does it."""
        if self.file is not None:
            file, contents = self.file, {"identity": self.identity, "epochs": epochs} | self.beside
            run_on_rank0(
                lambda: run_checkpoint.write_run_checkpoint(contents | {"banks": [bank.state for bank in banks]}, file)
            )
