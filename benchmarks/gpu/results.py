"""The figures of each part as one line, as the column `result` of a table has it."""

import itertools
from typing import Any

COLUMNS = tuple(itertools.product(("fp32", "bf16"), (False, True)))  # precision and checkpointing of a memory table
Figures = dict[str, Any]  # what the part's command wrote


def images(figures: Figures) -> str:
    """Of `benchmarks.gpu.images`."""
    return f"{figures['photos']:,} images of {figures['bytes'] / 1000:.0f} kB, {figures['coco']} in COCO's format"


def tests(figures: Figures) -> str:
    """Of `benchmarks.gpu.marked_tests`."""
    files = figures["files"].values()
    counts = ", ".join(f"{sum(len(file[kind]) for file in files)} {kind}" for kind in ("passed", "failed", "skipped"))
    failed = [name for file in files for name in file["failed"]]
    return counts + (f": {', '.join(failed)}" if failed else "")


def decoding(figures: Figures) -> str:
    """Of `benchmarks.jpeg_decoding`."""
    batched, core = figures["batched"], figures["milliseconds"]["simplejpeg"]
    rate, times = 1000 / batched["milliseconds"], core / batched["milliseconds"]
    return (
        f"{rate:,.0f} images/s on the device, {times:.1f} times one core with simplejpeg; {batched['equal_images']} of "
        f"{figures['images']} images have equal pixels, others differ by at most {batched['largest_difference']} of "
        f"255 (mean {batched['mean_difference']:.2f})"
    )


def loss_head(figures: Figures) -> str:
    """Of `benchmarks.loss_head`."""
    ways = figures["ways"]
    ours = ways["ours"]
    faster = [f"{ways[way]['seconds'] / ours['seconds']:.1f}" for way in ("published", "hoisted")]
    times = ", ".join(f"{1000 * ways[way]['seconds']:.1f}" for way in ("ours", "published", "hoisted"))
    held = [f"{ways[way]['bytes'] / 1e6:,.0f}" for way in ("ours", "published", "hoisted")]
    text = (
        f"{faster[0]} times as fast as the published form and {faster[1]} times as its hoisted one ({times} ms); "
        f"{held[0]} MB at most beyond the input against {held[1]} and {held[2]} MB; gradients at most "
        f"{max(figures['gradients_apart'].values()):.0e} from those of the hoisted form"
    )
    if "of_peak" in figures:
        rate, share = figures["flops_per_second"] / 1e12, 100 * figures["of_peak"]
        text += f"; {rate:.0f} TFLOP/s, {share:.0f} % of the matrix peak"
    return text


def whole_step(figures: Figures) -> str:
    """Of `benchmarks.whole_step`, for each recipe."""
    return "; ".join(f"`{recipe}` {_step(of)}" for recipe, of in figures.items())


def _step(of: Figures) -> str:
    ours, plain = of["ours"], of["plain"]
    pairs = [f"{ours[key]:,.1f} against {plain[key]:,.1f} images/s" for key in ("alone", "with_loader")]
    alone, together = (ours[key] / plain[key] for key in ("alone", "with_loader"))
    share = ours["alone"] * of["flops_per_image"] / of["peak"]
    memory = "" if ours["memory"] is None else f"{ours['memory']:.1f} against {plain['memory']:.1f} GiB; "
    return (
        f"with {of['images']} images: {alone:.2f} times as fast alone ({pairs[0]}), {together:.2f} times with "
        f"{of['workers']} workers ({pairs[1]}); {memory}{100 * share:.0f} % of the matrix peak; first losses "
        f"{ours['loss']:.4f} and {plain['loss']:.4f}"
    )


def memory(figures: Figures) -> str:
    """Of `benchmarks.step_memory`; the table itself is made by `benchmarks.gpu.table`."""
    cells = [cell for of in figures.values() for cell in of]
    ratios = [cell["measured"] / cell["computed"] for cell in cells if cell["measured"] is not None]
    if not ratios:
        return f"nothing measured of {len(cells)} computed"
    fit = f"{len(ratios)} of {len(cells)} cases; the others do not fit"
    return f"{min(ratios):.2f} to {max(ratios):.2f} of what was computed, in {fit}"


def memory_table(figures: Figures) -> str:
    """GiB of a step, measured and in brackets computed, by images and precision."""
    return "\n\n".join(_memory_table(recipe, cells) for recipe, cells in figures.items())


def _memory_table(recipe: str, cells: list[Figures]) -> str:
    of = {(each["images"], each["precision"], each["checkpointing"]): each for each in cells}
    titles = [precision + (", `checkpointing`" if again else "") for precision, again in COLUMNS]
    rows = [[f"{images:,}", *(_gibibytes(of[images, *column]) for column in COLUMNS)] for images in _images(cells)]
    lines = [["images on a GPU", *titles], ["---"] * (1 + len(titles)), *rows]
    title = f"Memory of a step of `{recipe}` in GiB at most, measured (computed):"
    return "\n".join([title, "", *("| " + " | ".join(line) + " |" for line in lines)])


def _images(cells: list[Figures]) -> list[int]:
    return list(dict.fromkeys(each["images"] for each in cells))


def _gibibytes(each: Figures) -> str:
    measured = "-" if each["measured"] is None else f"{each['measured'] / 2**30:.1f}"
    return f"{measured} ({each['computed'] / 2**30:.1f})"


def extraction(figures: Figures) -> str:
    """Of `benchmarks.extraction`."""
    speed = figures["images_per_second"]
    pair = f"{speed['ours']:,.1f} against {speed['plain']:,.1f}; the network alone {speed['network']:,.1f}"
    return f"{speed['ours'] / speed['plain']:.2f} times the images/s ({pair}), features {figures['apart']:.0e} apart"


def knn(figures: Figures) -> str:
    """Of `benchmarks.knn_search`."""
    naive, ours = figures["naive"], figures["torch"]
    return (
        f"{naive['wall'] / ours['wall']:.2f} times as fast ({ours['wall']:.2f} s against {naive['wall']:.2f}), "
        f"{100 * naive['same']:.2f} % of the neighbours in the same place"
    )


def detection_cost(figures: Figures) -> str:
    """Of `benchmarks.detection_recipe`."""
    first, *_, last = figures.values()
    time, kept = last["seconds"] / first["seconds"], last["kept"] / first["kept"]
    peak = f", {last['peak'] / 2**30:.1f} GiB at most" if last["peak"] else ""
    return (
        f"{time:.2f} times the time of a step ({1000 * last['seconds']:.0f} ms against {1000 * first['seconds']:.0f}), "
        f"{kept:.2f} times the memory kept for the backward pass{peak}"
    )


def detection(figures: Figures) -> str:
    """Of `excb-eval detection --schedule smoke`, whose figures mean nothing beyond that they exist."""
    return f"ran to its end in {figures['seconds']:.0f} s; box AP {figures['figures']['bbox_AP']:.2f} means nothing"


def resumed_run(figures: Figures) -> str:
    """Of `benchmarks.gpu.resumed_run`."""
    resumed = ", ".join(f"{step:,}" for step in figures["resumed"])
    return (
        f"{figures['steps']:,} steps at {figures['images_per_second']:,.0f} images/s on {figures['processes']} "
        f"process(es), {figures['peak_memory'] / 2**30:.1f} GiB at most; resumed at step {resumed}; loss "
        f"{figures['first_loss']:.3f} at first, {figures['last_loss']:.3f} at the end"
    )
