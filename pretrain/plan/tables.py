"""A plan as people read it: tables, and figures with their units."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from excb.console import Reporter, duration, plural

from .memory import StepMemory

Report = Mapping[str, Any]
PARTS = {"distillation": "heads for teachers"}  # as rows are called, where that is not the name of the part


def print_plan(report: Report, reporter: Reporter) -> None:
    """Print what `plan_run` found."""
    processes, share = report["processes"], report["micro_batch"]
    precision = report["precision"] + (" (auto)" if report["precision_asked"] == "auto" else "")
    again = ", blocks recomputed in the backward pass" if report["checkpointing"] else ""
    whose = "" if report["set_given"] else " of ImageNet (--data DIR for others)"
    reporter.answer(
        f"{report['recipe']} on {processes} process{'es' if processes > 1 else ''}, {precision}{again}: "
        f"{plural(report['batch'], 'image')} per step, {share:,} in a micro-batch of a process\n"
        f"{plural(report['steps'], 'step')} with {plural(report['set'], 'image')}{whose}\n"
    )
    for breach in report["rules"]:
        reporter.answer(f"{breach['severity']}: {breach['found']}: {breach['fix']}")
    _print_networks(report, reporter)
    if report["teachers"] is not None:
        _print_teachers(report, reporter)
    _print_memory(report, reporter)
    _print_communication(report, reporter)
    _print_measured(report, reporter)
    if report["estimate"] is not None:
        _print_fit(report["estimate"], reporter)


def _print_networks(report: Report, reporter: Reporter) -> None:
    student, teacher = report["parameters"]["student"], report["parameters"]["teacher"]
    rows = [[PARTS.get(part, part), f"{student[part]:,}", f"{teacher[part]:,}"] for part in student]
    rows.append(["total", f"{sum(student.values()):,}", f"{sum(teacher.values()):,}"])
    reporter.table("Parameters", ["", "student", "teacher"], rows)
    flops, batch = report["flops"], report["batch"]
    kinds = {"student": "student", "teacher": "teacher", "loss head": "loss_head"}
    if report["teachers"] is not None:
        kinds["frozen teachers"] = "frozen_teachers"
    kinds["total"] = "image"
    rows = [[name, _flops(flops[key]), _flops(flops[key] * batch)] for name, key in kinds.items()]
    title = "\nFLOPs, forward and backward, without what is computed again (a multiply-add is two)"
    reporter.table(title, ["", "an image", "a step"], rows)
    reporter.answer(f"{_flops(flops['run'])} for the whole run")
    launches = report["launches"]
    reporter.answer(
        f"networks and loss launch {plural(launches['forward'], 'kernel')} forward and {launches['backward']:,} "
        "backward in a micro-batch"
    )


def _print_teachers(report: Report, reporter: Reporter) -> None:
    teachers = report["teachers"]
    rows = [
        [row["name"], f"{row['parameters']:,}", f"{row['input']} px", _flops(row["flops"]), f"{row['width']:,}"]
        for row in teachers["networks"]
    ]
    reporter.table("\nFrozen teachers", ["", "parameters", "input", "an input", "features"], rows)
    once, views = teachers["once"], teachers["views"]
    if views:
        reporter.answer(f"they see {plural(views, 'view')} of every image in every step, counted above")
    if once["images"]:
        purpose = "" if teachers["sees"] == "image" else ", for statistics and first clusters"
        reporter.answer(
            f"before training they see {plural(once['images'], 'image')} once{purpose}: {_flops(once['flops'])} and "
            f"{_bytes(once['memory'])} at most, then kept in the cache: {_bytes(once['kept'])} on disk"
        )


def _print_memory(report: Report, reporter: Reporter) -> None:
    documented = {part.name: part.metadata["doc"] for part in fields(StepMemory)}
    if report["teachers"] is None:
        del documented["frozen_teachers"]
    memory = report["memory"]
    rows = [[f"{name.replace('_', ' ')}: {doc}", _bytes(memory[name])] for name, doc in documented.items()]
    rows.append(["total, at most", _bytes(memory["total"])])
    reporter.table("\nMemory of each process", ["", "bytes"], rows)
    reporter.answer(f"not counted: {report['memory_not_counted']}")
    if report["plain_loss_head"]:
        plain = _bytes(report["plain_loss_head"])
        reporter.answer(f"the equations as written would hold {plain} of rows x clusters at least")


def _print_communication(report: Report, reporter: Reporter) -> None:
    sent = report["communication"]
    if report["processes"] == 1:
        reporter.answer("\nCommunication: none, one process")
        return
    rows = [
        ["gradients", _bytes(sent["gradients"])],
        [f"BatchNorm statistics, {plural(sent['exchanges'], 'exchange')}", _bytes(sent["batchnorm"])],
        ["cluster sizes", _bytes(sent["sizes"])],
        *([["balancing", _bytes(sent["balancing"])]] if sent["balancing"] else []),
        *([["contrast", _bytes(sent["contrast"])]] if sent["contrast"] else []),
        *([["teachers' rows and clusters", _bytes(sent["distillation"])]] if sent["distillation"] else []),
        ["total", _bytes(sent["total"])],
    ]
    reporter.table("\nSent by each process in a step", ["", "bytes"], rows)


def _print_measured(report: Report, reporter: Reporter) -> None:
    measured, processes = report["measured"], report["processes"]
    if measured["missing"] is not None:
        reporter.answer(f"\nnothing was measured: {measured['missing']}")
        return
    step, loader = measured["step"], measured["loader"]
    peak = f", {_bytes(step['peak_memory'])} at most" if step["peak_memory"] is not None else ""
    rows = [
        [
            f"steps alone, {plural(step['images'], 'random image')} each{peak}",
            f"{step['images_per_second']:,.3g} images/s",
        ]
    ]
    if loader is not None:
        rows.append(
            [f"loader alone, {plural(loader['workers'], 'worker')}", f"{loader['images_per_second']:,.3g} images/s"]
        )
    scaling = f", if {processes} processes are {processes} times as fast" if processes > 1 else ""
    rows.append([f"the whole run{scaling}", duration(3600 * measured["hours"])])
    unknown = (
        "reading was not timed; `plan --measure` times it" if report["set_given"] else "not known without --data DIR"
    )
    rows.append(["the limit is", f"the {measured['limit']}" if measured["limit"] else unknown])
    if measured["teachers"] is not None:
        speeds = measured["teachers"]["images_per_second"]
        rows += [[f"{name} alone, on random images", f"{speed:,.3g} images/s"] for name, speed in speeds.items()]
        if report["teachers"]["once"]["images"]:
            rows.append(["before the run, the teachers", duration(3600 * measured["teachers"]["hours"])])
    reporter.table(f"\nMeasured here in one process ({measured['device']})", ["", ""], rows)


def _print_fit(fit: Report, reporter: Reporter) -> None:
    advice = "raise efficiency.accumulate or --gpus, or set efficiency.precision=bf16 or efficiency.checkpointing=true"
    verdict = "it fits" if fit["fits"] else f"it does not fit: {advice}"
    reporter.answer(f"\n{fit['device']}: {_bytes(fit['needed'])} of {_bytes(fit['memory'])} at most, {verdict}")


def _bytes(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _flops(count: float) -> str:
    for unit, size in (("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if count >= size:
            return f"{count / size:,.4g} {unit}FLOP"
    return f"{count / 1e6:,.4g} MFLOP"
