"""Search: the neighbours of a loop, groups of near-duplicates, a page that holds all it needs, an index for FAISS."""

import base64
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import excb
from excb.errors import UserError
from excb.neighbours.backends import import_faiss
from excb.transfer.cli import main
from excb.transfer.embeddings.copies import duplicates
from excb.transfer.embeddings.copies.duplicates import star_groups
from excb.transfer.embeddings.exporting import write_index
from excb.transfer.embeddings.table.vectors import ArrayRows, Vectors
from tests.browser import chromium
from tests.transfer.embeddings.photos import by_loop

pytestmark = pytest.mark.usefixtures("one_thread")


def words(run: Path, photos: Path, *more: str) -> list[str]:
    return ["search", "--ckpt", str(run), "--data", str(photos), "--workers", "0", "--device", "cpu", *more]


def nearest_by_loop(vectors: dict[str, np.ndarray], query: np.ndarray, k: int) -> list[tuple[str, float]]:
    cosines = {
        path: float(row.astype(float) @ query / np.linalg.norm(row.astype(float)) / np.linalg.norm(query))
        for path, row in vectors.items()
    }
    return sorted(cosines.items(), key=lambda item: (-round(item[1], 9), item[0]))[:k]


def test_search_finds_the_neighbours_of_a_loop(run: Path, photos: Path) -> None:
    expected = by_loop(run, photos)
    embeddings = excb.embed(run, photos, workers=0, quiet=True)
    for query in (photos / "04.png", Image.open(photos / "04.png"), embeddings.vectors[list(expected).index("04.png")]):
        found = embeddings.search(query, k=5)
        wanted = nearest_by_loop(expected, expected["04.png"].astype(float), 5)
        assert [match.path for match in found] == [path for path, _ in wanted]
        assert [match.cosine for match in found] == pytest.approx([cosine for _, cosine in wanted], abs=1e-5)
        assert [embeddings.paths[match.row] for match in found] == [match.path for match in found]
    assert len(embeddings.search(photos / "04.png", k=99)) == len(expected)


def test_search_after_loading_uses_the_network_and_the_preprocessing_of_the_file(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    made = excb.embed(run, photos, workers=0, quiet=True, resize=30, crop=24)
    loaded = excb.Embeddings.load(made.save(tmp_path / "a.safetensors"))
    found = loaded.search(photos / "c/05.png", k=2)
    assert found[0].path == "c/05.png"
    assert found[0].cosine == pytest.approx(1)
    other = excb.Embeddings(loaded.rows, loaded.paths, loaded.root, {**loaded.model, "weights_sha256": "0"})
    with pytest.raises(UserError, match="has other weights than made these vectors: embed the images again"):
        other.search(photos / "01.png")


@pytest.mark.parametrize("moved", [False, True])
def test_images_and_network_are_found_from_any_working_directory(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """They were named by relative paths; the folder with all three may move, but for the network."""
    here = tmp_path / "here"
    shutil.copytree(run, here / "run")
    shutil.copytree(photos, here / "photos")
    monkeypatch.chdir(here)
    made = excb.embed("run", "photos", workers=0, quiet=True)
    made.save(here / "files.npz")
    monkeypatch.chdir(tmp_path)
    assert made.search(here / "photos/04.png", k=1)[0].path == "04.png"
    assert all(file.is_file() for file in made.files(made.paths))
    if moved:
        shutil.move(here, tmp_path / "there")
    folder = tmp_path / ("there" if moved else "here")
    loaded = excb.Embeddings.load(folder / "files.npz")
    assert Path(loaded.root) == folder / "photos"
    near, kept = loaded.near_duplicates(0.0), made.near_duplicates(0.0)
    assert all(group.keep for group in near)
    assert moved or near == kept
    if not moved:
        assert loaded.search(folder / "photos/04.png", k=1)[0].path == "04.png"
        return
    with pytest.raises(UserError, match=f"made by {here / 'run'}, and nothing is there: pass the network with"):
        loaded.search(folder / "photos/04.png")


@pytest.mark.parametrize("k", [0, 2.5, True, "3"])
def test_k_is_a_whole_number(run: Path, photos: Path, k: Any) -> None:
    with pytest.raises(UserError, match=f"k is {k}: ask for a whole number of images, at least one"):
        excb.embed(run, photos, workers=0, quiet=True).search(0, k=k)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (99, "there is no row 99: these are 12 rows"),
        (np.zeros(5), r"queries of shape \[1, 5\] do not fit: these vectors have 32 numbers"),
    ],
)
def test_a_wrong_query_is_told_clearly(run: Path, photos: Path, query: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        excb.embed(run, photos, workers=0, quiet=True).search(query)


def groups(rows: ArrayRows, cosine: float) -> list[list[int]]:
    return [sorted(each) for each in star_groups(rows, cosine)]


def groups_by_loop(vectors: np.ndarray, cosine: float) -> list[list[int]]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-300)
    left, found = list(range(len(vectors))), []
    while left:
        around = {
            row: [other for other in left if unit[row] @ unit[other] >= cosine - 1e-9 or other == row] for row in left
        }
        centre = max(left, key=lambda row: (len(around[row]), -row))
        found.append(sorted(around[centre]))
        left = [row for row in left if row not in around[centre]]
    return sorted((group for group in found if len(group) > 1), key=lambda group: (-len(group), group[0]))


def test_groups_are_no_chains() -> None:
    angles = np.deg2rad(np.arange(0, 90, 5))
    steps = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)  # each near the next one only
    found = groups(ArrayRows(steps), np.cos(np.deg2rad(5.1)))
    assert max(map(len, found)) == 3
    assert len({row for group in found for row in group}) == sum(map(len, found))


@pytest.mark.parametrize("cosine", [0.5, 0.9, 0.99, 1.0])
def test_groups_of_near_duplicates_are_those_of_a_loop(cosine: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "TILE", 16)
    random = np.random.default_rng(4)
    centres = random.normal(size=(12, 6))
    vectors = (centres[random.integers(0, 12, 75)] + 0.12 * random.normal(size=(75, 6))).astype(np.float32)
    vectors[20] = 3 * vectors[70]  # the same direction
    vectors[33] = 0
    assert groups(ArrayRows(vectors), cosine) == groups_by_loop(vectors.astype(float), cosine)


def test_too_many_pairs_and_no_cosine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MOST_PAIRS", 10)
    with pytest.raises(UserError, match=r"more than 10 pairs reach a cosine of 0\.1: choose a higher one"):
        groups(ArrayRows(np.ones((9, 2), np.float32)), 0.1)
    with pytest.raises(UserError, match="near-duplicates have a cosine above -1 and at most 1"):
        groups(ArrayRows(np.ones((9, 2), np.float32)), 95)


def test_the_twin_is_found(run: Path, photos: Path) -> None:
    assert excb.embed(run, photos, workers=0, quiet=True).near_duplicates(1.0) == [["a/b/03.png", "c/twin.png"]]


def test_the_command_lists_neighbours_and_duplicates(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = str(photos / "a/b/03.png")
    assert main(words(run, photos, "--query", query, "--k", "2", "--near-duplicates", "1", "--quiet")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["03.png", "1", "1.0000", "a/b/03.png"]
    assert lines[3].split() == ["2", "1.0000", "c/twin.png"]
    assert lines[4] == "1 group of near-duplicates, 2 images in them, with a cosine of 1 or more"
    assert lines[6].split() == ["1", "2", "keep", "a/b/03.png"]
    assert main(words(run, photos, "--query", query, "--k", "3", "--json", "--quiet")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [match["path"] for match in answer["queries"][0]["matches"]][:2] == ["a/b/03.png", "c/twin.png"]
    assert "near_duplicates" not in answer


def test_the_page_holds_its_pictures_and_nothing_from_elsewhere(run: Path, photos: Path, tmp_path: Path) -> None:
    evil = tmp_path / "photos" / "<script>alert(1)<"
    evil.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (400, 200), (80 * number, 0, 90)).save(evil / f"{number}.png")
    out = tmp_path / "page.html"
    query = str(evil / "0.png")
    assert main(words(run, tmp_path / "photos", "--query", query, "--k", "3", "--out", str(out), "--quiet")) == 0
    page = out.read_text(encoding="utf-8")
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    pictures = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert len(pictures) == 4
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as picture:
        assert picture.size == (220, 110)  # whole, not cropped


@pytest.mark.browser
def test_the_page_in_a_browser_fits_a_phone_and_asks_for_nothing(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    queries = [str(photos / "01.png"), str(photos / "c/05.png")]
    main(words(run, photos, "--query", *queries, "--near-duplicates", "0.9", "--out", str(out), "--quiet", "--json"))
    with chromium() as page:
        for width, phone in ((1280, False), (390, True)):
            page.size(width, 900, phone=phone)
            page.open(out)
            page.settle()
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert page.problems == []


@pytest.mark.parametrize("damage", ["none", "cut", "other width", "other vectors"])
def test_an_index_that_would_be_read_as_another_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    faiss = pytest.importorskip("faiss") and import_faiss()
    write, vectors = faiss.write_index, np.eye(5, 4, dtype=np.float32)

    def damaged(index: Any, file: str) -> None:
        if damage.startswith("other"):
            index = faiss.IndexFlatIP(4 if damage == "other vectors" else 3)
            index.add(np.ones((5, index.d), np.float32))
        write(index, file)
        if damage == "cut":
            os.truncate(file, 40)

    monkeypatch.setattr(faiss, "write_index", damaged)
    rows = Vectors(ArrayRows(vectors), tuple("abcde"), str(tmp_path), {})
    if damage == "none":
        assert write_index(rows, tmp_path / "a.faiss")[0].exists()
        return
    with pytest.raises(UserError, match="not written, since it could not be read again"):
        write_index(rows, tmp_path / "a.faiss")
    assert list(tmp_path.iterdir()) == []


def test_the_index_is_searched_by_faiss(run: Path, photos: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss") and import_faiss()
    out = tmp_path / "photos.faiss"
    assert main(words(run, photos, "--index", str(out), "--quiet")) == 0
    embeddings = excb.embed(run, photos, workers=0, quiet=True)
    index, names = faiss.read_index(str(out)), json.loads((tmp_path / "photos.faiss.json").read_text())
    query = embeddings.vectors[4:5] / np.linalg.norm(embeddings.vectors[4])
    cosines, rows = index.search(query, 3)
    wanted = embeddings.search(embeddings.vectors[4], k=3)
    assert cosines[0].tolist() == pytest.approx([match.cosine for match in wanted], abs=1e-5)
    assert names["paths"][rows[0][0]] == wanted[0].path
    assert names["model"]["weights_sha256"] == embeddings.model["weights_sha256"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "name what to search for: --query IMAGE, or --near-duplicates"),
        (["--near-duplicates", "many"], "takes a cosine, such as 0.95, or nothing to calibrate it, not 'many'"),
        (["--query", "nothing.png"], "--query nothing.png: no such file"),
        (["--query", "setup", "--k", "0"], "--k must be at least 1"),
        (["--near-duplicates", "95"], "near-duplicates have a cosine above -1 and at most 1"),
        (
            ["--near-duplicates", "0.9", "--out", "page.png"],
            "--out page.png: the page is written to a file that",
        ),
    ],
)
def test_mistakes_end_in_one_line(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main([*words(run, photos), "--quiet", *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_broken_query_is_refused_before_all_other_images_are_read(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, cache = tmp_path / "broken.png", tmp_path / "cache"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + 30 * b"garbage")
    assert main(words(run, photos, "--query", str(broken), "--quiet", "--cache", str(cache))) == 2
    assert re.fullmatch(
        r"excb-eval: error: --query .*broken\.png cannot be read as an image \(.+\): fix it, or leave it out\n",
        capsys.readouterr().err,
    )
    assert not cache.exists()
