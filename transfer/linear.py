"""Linear protocols: heads on a frozen backbone, a sweep in one pass, chosen on images that the heads never saw."""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from excb import checkpoint, seeding
from excb.backbones import evaluating, weights_hash
from excb.collectives import from_first, gather_numbers, processes, rank, share, together
from excb.console import Reporter
from excb.errors import UserError
from excb.outputs import LastClassTokens
from excb.results import Result
from excb.settings import require

from .batches import Augmentation, TrainingBatches
from .heads import HeadBank
from .protocols import LinearProtocol, choose
from .report import Predictions, report
from .task import Task

HELD_OUT = 0.1  # share of every class's train images on which heads are chosen
LOGREG_STEPS = 1000  # of lbfgs, at most

Tried = dict[str, float]  # settings of one head, such as {"lr": 0.3, "wd": 0.0}


@dataclass(frozen=True)
class _Outcome:
    """A trained classifier's guesses for the test images [Q, 5 or fewer], and what a reader must know of it."""

    top5: Tensor
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()


def evaluate(
    task: Task,
    reporter: Reporter,
    *,
    protocol: str = "resnet",
    epochs: int | None = None,
    batch: int | None = None,
    lr: Sequence[float] | None = None,
    wd: Sequence[float] | None = None,
    C: Sequence[float] | None = None,
    select: Literal["holdout", "test"] = "holdout",
    seed: int = 0,
    state: Path | None = None,
    table: bool = True,
) -> tuple[Result, Predictions]:
    """Train linear classifiers on the train images' frozen features and judge the chosen one on the test images.

    The backbone stays in eval mode and sees every batch once, however many heads there are. With more than one head,
    `select` says how one is chosen. "holdout": a seeded tenth of every class's train images is held out of a second
    set of heads that trains on the same batches; their accuracy on it chooses, and the figures are those of the head
    with the same settings that saw all train images. "test": the head that is best on the test images, as authors
    report it; the result's notes say so. The epoch is always the last.

    Args:
        task: backbone and images.
        reporter: where to talk.
        protocol: a name of `protocols.PROTOCOLS`, or "logreg" for scikit-learn's logistic regression.
        epochs: instead of the protocol's.
        batch: instead of the protocol's; learning rates scale with it.
        lr: instead of the protocol's, for its `lr_batch` images a step.
        wd: weight decays instead of the protocol's.
        C: of "logreg", inverse strengths of the L2 penalty; 1 by default.
        select: see above; of no consequence where there is one head.
        seed: names first weights, order, crops and held-out images.
        state: file that holds the heads after every epoch of a protocol that augments; a run that finds its own goes on
            from there, on the CPU to the bit. The others are quick and start anew.
        table: print figures and sweep.

    Returns:
        Figures `linear_top1` and `linear_top5` with the sweep in the settings, and the test images' predictions.

    Raises:
        UserError: a setting is out of range, `state` is of another evaluation, or an image cannot be read.
    """
    start = time.monotonic()
    require(select in ("holdout", "test"), f"--select is 'holdout' or 'test', not '{select}'")
    if protocol == "logreg":
        given = {"--epochs": epochs, "--batch": batch, "--lr": lr, "--wd": wd}
        wrong = [name for name, value in given.items() if value is not None]
        require(not wrong, f"logreg has no {', '.join(wrong)}: it takes --C, the inverse strength of its penalty")
        outcome = _logistic_regression(task, reporter, (1.0,) if C is None else C, select=select, seed=seed)
    else:
        require(C is None, f"--C is of logreg: {protocol} takes --lr and --wd")
        chosen = together(lambda: choose(protocol, epochs=epochs, batch=batch, lr=lr, weight_decay=wd))
        plan = _fitted(chosen, task, reporter)
        probe = _Probe(task, reporter, plan, select, seed)
        outcome = probe.through_backbone(state) if plan.augmented else probe.on_features()
    predictions = _predictions(task, outcome.top5)
    result = report(
        task,
        protocol=f"linear_{protocol}",
        settings=outcome.settings | {"seed": seed},
        predictions=predictions,
        seconds=time.monotonic() - start,
        notes=outcome.notes,
    )
    if table and rank() == 0:
        _print(result, protocol, reporter)
    return result, predictions


def _fitted(plan: LinearProtocol, task: Task, reporter: Reporter) -> LinearProtocol:
    """The protocol with a batch that is no larger than the train set."""
    if plan.batch <= len(task.train):
        return plan
    reporter.warn(
        f"only {len(task.train)} train images: batches of these instead of {plan.batch}, learning rates alike"
    )
    return replace(plan, batch=len(task.train))


def _predictions(task: Task, top5: Tensor) -> Predictions:
    assert task.test.labels is not None
    assert task.test.classes is not None
    return Predictions(torch.from_numpy(task.test.labels), task.test.paths, task.test.classes, {"linear_{}": top5})


# ---------------------------------------------------------------------------------------------------------------------
# Choosing
# ---------------------------------------------------------------------------------------------------------------------


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which train images are kept for choosing: a tenth of every class, at least one, never a class's only image.

    Args:
        labels: [N] class indices.
        seed: names the choice.

    Returns:
        [N] bool.

    Raises:
        UserError: no class has two images.
    """
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(len(members) - 1, max(1, round(HELD_OUT * len(members))))
        held[seeding.generator(seeding.Purpose.SPLIT, seed, int(label)).permutation(members)[:count]] = True
    if not held.any():
        raise UserError("no class has two train images, so none can be held out: give one --lr and one --wd")
    return held


@dataclass(frozen=True)
class _Choice:
    """Which of several heads the figures are of, and why."""

    head: int
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def on_test(cls, tried: Sequence[Tried], bank: HeadBank, test: Tensor, targets: Tensor) -> "_Choice":
        """The only head, or the one that is best on the test images."""
        if len(tried) == 1:
            return cls(0, {"chosen": tried[0]})
        return cls.among(tried, *bank.score(test, targets), images=len(targets), select="test")

    @classmethod
    def among(cls, tried: Sequence[Tried], right: Tensor, loss: Tensor, *, images: int, select: str) -> "_Choice":
        """The head with most right answers [H]; among equals the one of least loss [H], then the first."""
        head = max(range(len(tried)), key=lambda one: (int(right[one]), -float(loss[one])))
        percent = [round(100 * int(count) / images, 4) for count in right]
        sweep = [settings | {f"{select}_top1": value} for settings, value in zip(tried, percent, strict=True)]
        how = {"select": select, "select_images": images, "chosen": tried[head], "sweep": sweep}
        if select == "holdout":
            return cls(head, how)
        note = (
            f"the best of {len(tried)} heads on the test images themselves, as authors report it: an optimistic figure"
        )
        return cls(head, how, (note,))


# ---------------------------------------------------------------------------------------------------------------------
# Protocols that train
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Probe:
    """One protocol on one task."""

    task: Task
    reporter: Reporter
    plan: LinearProtocol
    select: str
    seed: int

    def through_backbone(self, state: Path | None) -> _Outcome:
        """Train on new crops every epoch; those heads that choose see the same batches without the held-out images."""
        labels = self.task.train.labels
        assert labels is not None
        kind, tried, held = self.plan.features, self._tried, None
        if len(tried) > 1 and self.select == "holdout":
            held = together(lambda: held_out(labels, self.seed))
        encoder = self.task.backbone if kind == "pooled" else LastClassTokens(self.task.backbone.network)
        test, targets = self.task.features(self.task.test, "test", self.reporter, kind=kind)  # what fails, fails early
        banks = [self._bank(tried, encoder.width) for _ in range(1 if held is None else 2)]
        self._train_through(encoder, banks, held, _State.of(self, state))
        if held is not None:
            kept = torch.from_numpy(held)
            rows, _ = self.task.features(self.task.train, "train", self.reporter, kind=kind)
            scores = banks[1].score(rows[kept], torch.from_numpy(labels)[kept])
            choice = _Choice.among(tried, *scores, images=int(held.sum()), select="holdout")
        else:
            choice = _Choice.on_test(tried, banks[0], test, targets)
        return _outcome(banks[0], choice.head, test, choice, asdict(self.plan))

    def _train_through(
        self, encoder: nn.Module, banks: Sequence[HeadBank], held: np.ndarray | None, state: "_State"
    ) -> None:
        task, plan = self.task, self.plan
        augmentation = Augmentation.like(task.preprocessing)
        batches = TrainingBatches(task.train, augmentation, batch=plan.batch, seed=self.seed, workers=task.workers)
        first, steps = state.load(banks), batches.steps
        if first:
            self.reporter.note(f"going on after epoch {first} of {plan.epochs}")
        title = f"linear heads ({len(banks[0])})" if len(banks[0]) > 1 else "linear head"
        with evaluating(encoder), self.reporter.progress(title, plan.epochs * steps, done=first * steps) as bar:
            views = batches.run(first=first, last=plan.epochs)
            for number in range(first * steps, plan.epochs * steps):
                batch = together(lambda: next(views))  # one process alone may meet an image that cannot be read
                epoch, step = divmod(number, steps)
                factor = plan.schedule_factor(epoch)
                features = self._encode(encoder, batch.images, banks[0])
                labels = batch.labels.to(task.device)
                banks[0].step(features, labels, whole=batch.whole, scale=factor)
                if held is not None:
                    kept = torch.from_numpy(~held[batch.samples.numpy()])
                    whole = int(gather_numbers([int(kept.sum())]).sum())
                    kept = kept.to(task.device)
                    banks[1].step(features[kept], labels[kept], whole=max(1, whole), scale=factor)
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
        parts = [encoder(part.to(self.task.device, dtype)) for part in images.split(self.task.batch)]
        return torch.cat(parts).to(bank.weight.dtype)

    def on_features(self) -> _Outcome:
        """Train on features made once."""
        return _on_features(
            self.task,
            self.reporter,
            self._tried,
            scaled,
            self._train_on,
            settings=asdict(self.plan),
            kind=self.plan.features,
            select=self.select,
            seed=self.seed,
        )

    def _train_on(self, rows: Tensor, labels: Tensor, tried: Sequence[Tried]) -> HeadBank:
        """Heads on features [N, D]: each process takes every so-many-th image of a batch."""
        plan, bank = self.plan, self._bank(tried, rows.shape[1])
        with self.reporter.progress(f"linear heads ({len(tried)})", plan.epochs) as bar:
            for epoch in range(plan.epochs):
                random = seeding.generator(seeding.Purpose.TRANSFER_ORDER, self.seed, epoch)
                for whole in torch.from_numpy(random.permutation(len(labels))).split(plan.batch):
                    mine = whole[rank() :: processes()]
                    features, targets = rows[mine].to(bank.weight), labels[mine].to(bank.weight.device)
                    bank.step(features, targets, whole=len(whole), scale=plan.schedule_factor(epoch))
                bar.advance()
        return bank

    @property
    def _tried(self) -> list[Tried]:
        return [{"lr": lr, "wd": decay} for lr in self.plan.lr for decay in self.plan.weight_decay]

    def _bank(self, tried: Sequence[Tried], width: int) -> HeadBank:
        """A head for each of what is tried, where the backbone is; float64 if the backbone is."""
        dtype = next((parameter.dtype for parameter in self.task.backbone.parameters()), torch.float32)
        return HeadBank(
            len(self.task.train.classes or ()),
            width,
            lr=[one["lr"] * self.plan.lr_factor for one in tried],
            weight_decay=[one["wd"] for one in tried],
            seed=self.seed,
            rule=self.plan.rule,
            device=self.task.device,
            dtype=torch.float64 if dtype == torch.float64 else torch.float32,
        )


def _outcome(bank: HeadBank, head: int, test: Tensor, choice: _Choice, settings: dict[str, Any]) -> _Outcome:
    if not bool(bank.weight[head].isfinite().all()):
        raise UserError(
            f"the head trained with {_spelt(choice.settings['chosen'])} diverged: name a lower --lr", told=rank() > 0
        )
    return _Outcome(bank.top(test, head), settings | choice.settings, choice.notes)


def _spelt(tried: Tried) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in tried.items())


# ---------------------------------------------------------------------------------------------------------------------
# Protocols on features made once
# ---------------------------------------------------------------------------------------------------------------------


def _on_features(
    task: Task,
    reporter: Reporter,
    tried: Sequence[Tried],
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    fit: Callable[[Tensor, Tensor, Sequence[Tried]], HeadBank],
    *,
    settings: dict[str, Any],
    kind: Literal["pooled", "last4_cls"],
    select: str,
    seed: int,
) -> _Outcome:
    """Fit heads on prepared features; what is chosen on held-out images is fitted again on all train images."""
    rows, labels = task.features(task.train, "train", reporter, kind=kind)
    test, targets = task.features(task.test, "test", reporter, kind=kind)
    rows, test = prepare(rows, test)
    if len(tried) == 1 or select == "test":
        bank = fit(rows, labels, tried)
        choice = _Choice.on_test(tried, bank, test, targets)
        return _outcome(bank, choice.head, test, choice, settings)
    held = torch.from_numpy(together(lambda: held_out(labels.numpy(), seed)))
    scores = fit(rows[~held], labels[~held], tried).score(rows[held], labels[held])
    choice = _Choice.among(tried, *scores, images=int(held.sum()), select="holdout")
    return _outcome(fit(rows, labels, [tried[choice.head]]), 0, test, choice, settings)


def scaled(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Features [N, D] and [Q, D] by the one number that makes the train features' mean square 1.

    Then the same learning rates suit any backbone, and heads are those of the raw features. Of MobileNetV2 on
    grocery128 `fast` makes 63.4 % so, 62.7 % of features that are standardised dimension by dimension, and 63.4 % of
    features of length 1: with 2,485 test images, a standard error of 1 point, no difference.
    """
    size = train.square().mean(dtype=torch.float64).sqrt().float().clamp(min=torch.finfo(torch.float32).tiny)
    return train / size, test / size


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Features [N, D] and [Q, D] with the mean 0 and standard deviation 1 that the train images would have."""
    mean, deviation = train.mean(0), train.std(0, correction=0)
    deviation = torch.where(deviation > 1e-6 * mean.abs() + 1e-12, deviation, 1.0)  # constant: 0 after the mean is gone
    return (train - mean) / deviation, (test - mean) / deviation


# ---------------------------------------------------------------------------------------------------------------------
# Going on after an interruption
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """The heads on disk after every epoch, and what they belong to."""

    file: Path | None
    identity: str

    @classmethod
    def of(cls, probe: _Probe, file: Path | None) -> "_State":
        """The state of one protocol on one task: nothing that its heads depend on may differ."""
        task = probe.task
        parts = [asdict(probe.plan), probe.select, probe.seed, task.preprocessing.to_dict(), task.train.fingerprint]
        parts += [task.train.classes, weights_hash(task.backbone.network)]
        return cls(file, hashlib.sha256(json.dumps(parts).encode()).hexdigest())

    def load(self, banks: Sequence[HeadBank]) -> int:
        """Fill all processes' heads from the file, if there is one; the epochs done."""
        done = from_first(lambda: self._read(banks))
        share(tensor for bank in banks for tensor in bank.state.values())
        return done

    def _read(self, banks: Sequence[HeadBank]) -> int:
        if self.file is None or not self.file.exists():
            return 0
        try:
            found = checkpoint.read(self.file)
        except checkpoint.DamagedFileError as error:
            raise UserError(f"{error}: remove it to start anew") from None
        if found.get("identity") != self.identity:
            raise UserError(f"{self.file} is of another evaluation: name another file, or remove it to start anew")
        for bank, tensors in zip(banks, found["banks"], strict=True):
            for name, tensor in bank.state.items():
                tensor.copy_(tensors[name])
        return int(found["epochs"])

    def save(self, epochs: int, banks: Sequence[HeadBank]) -> None:
        """Let process 0 write all heads."""
        if self.file is not None:
            file, contents = self.file, {"identity": self.identity, "epochs": epochs}
            from_first(lambda: checkpoint.write(contents | {"banks": [bank.state for bank in banks]}, file))


# ---------------------------------------------------------------------------------------------------------------------
# Logistic regression
# ---------------------------------------------------------------------------------------------------------------------


def _logistic_regression(
    task: Task, reporter: Reporter, strengths: Sequence[float], *, select: str, seed: int
) -> _Outcome:
    """scikit-learn's, by lbfgs on standardised features; process 0 fits for all."""
    require(len(strengths) > 0 and all(0 < C < math.inf for C in strengths), "--C must be above 0, such as 1")
    classes = len(task.train.classes or ())

    def fit(rows: Tensor, labels: Tensor, tried: Sequence[Tried]) -> HeadBank:
        bank = HeadBank(classes, rows.shape[1], lr=[0] * len(tried), weight_decay=[0] * len(tried), dtype=torch.float64)
        with reporter.progress("logistic regression", len(tried)) as bar:
            for head, one in enumerate(tried):
                weight, bias = from_first(partial(_fit, rows, labels, one["C"], classes, reporter))
                bank.weight[head], bank.bias[head] = torch.from_numpy(weight), torch.from_numpy(bias)
                bar.advance()
        return bank

    return _on_features(
        task,
        reporter,
        [{"C": C} for C in strengths],
        standardised,
        fit,
        settings={"solver": "scikit-learn, lbfgs", "steps": LOGREG_STEPS, "features": "pooled"},
        kind="pooled",
        select=select,
        seed=seed,
    )


def _fit(rows: Tensor, labels: Tensor, C: float, classes: int, reporter: Reporter) -> tuple[np.ndarray, np.ndarray]:
    """Weights [classes, D] and biases [classes] in float64."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C, max_iter=LOGREG_STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(rows.double().numpy(), labels.numpy())
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        reporter.warn(f"logistic regression with C = {C:g} has not converged in {LOGREG_STEPS} steps: try a smaller C")
    # Of two classes scikit-learn keeps the difference: half of it up and half of it down is the same model.
    weight, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    all_weight, all_bias = np.zeros((classes, rows.shape[1])), np.full(classes, -1e4)  # a class without images: never
    all_weight[model.classes_], all_bias[model.classes_] = weight, bias
    return all_weight, all_bias


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------


def _print(result: Result, protocol: str, reporter: Reporter) -> None:
    """The figures, and below them the sweep: one row a learning rate, one column a weight decay."""
    settings, figures = result.settings, result.figures
    row = [_spelt(settings["chosen"]), *(f"{figures[name]:.2f}" for name in ("linear_top1", "linear_top5"))]
    reporter.table(f"Linear, protocol {protocol}", ["settings", "top-1 %", "top-5 %"], [row])
    if "sweep" not in settings:
        return
    figure = f"{settings['select']}_top1"
    names = [name for name in settings["chosen"] if name != "wd"]
    table: dict[str, list[str]] = {}
    for one in settings["sweep"]:
        table.setdefault(f"{one[names[0]]:g}", []).append(f"{one[figure]:.2f}")
    header = [f"wd {decay:g}" for decay in settings["weight_decay"]] if "wd" in settings["chosen"] else ["top-1 %"]
    where = "test" if settings["select"] == "test" else "held-out"
    title = f"Sweep: top-1 % on {settings['select_images']:,} {where} images"
    reporter.table(title, [names[0], *header], [[value, *cells] for value, cells in table.items()])
