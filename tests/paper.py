"""The figures of the paper, read from its LaTeX alone: the oracle of the registry of claims."""

import re
from collections.abc import Iterator

from tests.clone import SHARED

PAPER = SHARED / "paper" / "excb_eccv2024.tex"

# A figure: table, method, epochs, batch, whether with multi-crop, metric, value; None is not said. What else the rows
# of a table are told apart by (K, components, B's form) stands in the method's place.
Cell = tuple[str, str, int | None, int | None, bool | None, str, str]

LABELS = {
    "table1": "main",
    "table2": "vit",
    "table3": "comprehensive",
    "table4": "semisup",
    "table5": "detection",
    "table6": "batch_size",
    "table7": "cluster_no",
    "table8": "ablation_components",
    "table9": "abl_b",
}
LINEAR = ("linear_top1",)
METRICS = {
    "table1": ("linear_top1", "knn_top1"),
    "table4": ("semisup_1pct_top1", "semisup_1pct_top5", "semisup_10pct_top1", "semisup_10pct_top5"),
    "table5": ("bbox_AP", "bbox_AP50", "bbox_AP75", "segm_AP", "segm_AP50", "segm_AP75"),
}


def cells(source: str) -> list[Cell]:
    """Every figure of the nine tables and of Figure 2."""
    found = [each for table in METRICS for each in _by_method(source, table)]
    found += _by_epochs(source, "table2", (100, 300, 800))
    found += _by_epochs(source, "table3", (100, 200, 400))
    head, (batches,) = _head(source, "table6"), [row[1:] for row in _rows(source, "table6") if len(row) > 1]
    for batch, (metric, value) in zip(head, _figures(batches, LINEAR * 3), strict=True):
        found.append(("table6", "", 100, int(batch), False, metric, value))
    head, (clusters,) = _head(source, "table7"), [row[1:] for row in _rows(source, "table7") if len(row) > 1]
    for number, (metric, value) in zip(head, _figures(clusters, LINEAR * 4), strict=True):
        found.append(("table7", number, 100, 1024, False, metric, value))
    for predictor, stop, decay, value in (row for row in _rows(source, "table8") if len(row) == 4):
        marks = f"{int('cmark' in predictor)}{int('cmark' in stop)}{int('rightarrow' in decay)}"
        found.append(("table8", marks, 100, 1024, True, "linear_top1", value))
    for formula, value in (row for row in _rows(source, "table9") if len(row) == 2):
        form = "squared" if "^2" in formula else "linear"
        found.append(("table9", form, 100, 1024, True, "linear_top1", value))
    return found + list(_figure2(source))


def words(source: str) -> tuple[list[str], list[str]]:
    """The figures of the sentence on cluster sizes in training, and of the appendix's two captions."""
    number = r"([\d,.]*\d)"
    sizes = re.findall(rf"between {number}\\% and {number}\\% of the optimal size", source)
    images = re.findall(rf"approximately between {number} and {number} samples", source)
    captions = re.findall(
        rf"{number} clusters \({number}\\%\) are empty\. The largest cluster has a relative size of {number} "
        rf"\(i\.e\. is assigned {number} samples\)",
        source,
    )
    return [value for each in [*sizes, *images] for value in each], [value for each in captions for value in each]


def name_of(text: str) -> str:
    """A method's name without its spelling: VicReg is VICReg, TWIST* is TWIST."""
    return re.sub("[^a-z0-9]", "", text.replace("\\ours", "ExCB").lower())


def _by_method(source: str, table: str) -> Iterator[Cell]:
    for name, batch, epochs, *values in (row for row in _rows(source, table) if len(row) > 4):
        for metric, value in _figures(values, METRICS[table]):
            yield table, name_of(name), _number(epochs), _number(batch), None, metric, value


def _by_epochs(source: str, table: str, columns: tuple[int, ...]) -> Iterator[Cell]:
    multi = None
    for row in _rows(source, table):
        if "Multi-Crop" in row[0]:
            multi = "Without" not in row[0]
        elif len(row) == 2 + len(columns):
            for epochs, value in zip(columns, row[2:], strict=True):
                for metric, figure in _figures([value], LINEAR):
                    yield table, name_of(row[0]), epochs, _number(row[1]), multi, metric, figure


def _figure2(source: str) -> Iterator[Cell]:
    """Points are coordinates called by one letter per method, their circles show the batch."""
    batches = {"1.5pt": 1024, "3pt": 2048, "4.5pt": 4096}
    for point, epochs, value in re.findall(r"\\coordinate \((\w\d)\) at \((\d+),(\d+\.\d)\)", source):
        circle = re.search(rf"\\fill\[.*?\] \({point}\) circle \((.*?)\)", source)
        name = re.search(rf"\\node\[\w+\] at \({point[0]}\d\) (.*)", source)
        assert circle is not None
        assert name is not None
        text = re.sub(r"\\textcolor\{\w+\}|\\hspace\{\w+\}", "", name[1])
        yield "figure2", name_of(text), int(epochs), batches[circle[1]], None, "linear_top1", value


def _tabular(source: str, table: str) -> tuple[str, str]:
    """Head and body of a table."""
    start = source.index(f"\\label{{tab:{LABELS[table]}}}")
    begin, end = source.index("\\begin{tabular}", start), source.index("\\end{tabular}", start)
    head, body = source[begin:end].split("\\midrule")
    return head, body


def _head(source: str, table: str) -> list[str]:
    return [_plain(cell) for cell in _tabular(source, table)[0].split("\\\\")[0].split("&")[1:]]


def _rows(source: str, table: str) -> Iterator[list[str]]:
    """The rows of a table, cells without their formatting."""
    for line in _tabular(source, table)[1].split("\\\\"):
        yield [_plain(cell) for cell in line.split("&")]


def _plain(cell: str) -> str:
    text = re.sub(r"~?\\cite\{.*?\}|\\(?:rowcolor|arrayrulecolor)\{.*?\}|\\hline|\\bottomrule", "", cell)
    return re.sub(r"\\(?:textbf|underline)\{([^{}]*)\}", r"\1", text).strip()


def _number(text: str) -> int | None:
    """A whole number: 800+50 is their sum, - is None."""
    return None if text == "-" else sum(map(int, text.split("+")))


def _figures(values: list[str], metrics: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for metric, value in zip(metrics, values, strict=True):
        assert re.fullmatch(r"\d+\.\d|-|", value), value
        if value not in ("-", ""):
            yield metric, value
