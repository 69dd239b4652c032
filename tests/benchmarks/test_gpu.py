"""`python -m benchmarks.gpu` with parts that need no torch: each runs once, whatever fails, hangs or is killed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import processes, results
from benchmarks.gpu.calls import ALL_DONE, SOME_FAILED, SOME_LEFT, Call, run_call
from benchmarks.gpu.images import HEIGHT, WIDTH, write_coco, write_photos
from benchmarks.gpu.parts import PARTS, Part, Places
from benchmarks.gpu.processes import GRACE
from excb.errors import UserError
from tests.clone import ROOT

# What a part's process does, in a file of its own. `starts` in the part's folder counts what it sees of earlier starts,
# `all` beside it every start.
DEED = """
import json, os, pathlib, signal, sys, threading

deed, own, figures = sys.argv[1:]
own = pathlib.Path(own)

def count(file):
    number = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(number))
    return number

seen, total = count(own / "starts"), count(own.parent / f"{own.name}.all")
print("first line")
if deed == "fail" or (deed == "fail-once" and total == 1):
    print("CUDA error: an illegal | memory access")
    sys.exit(7)
if deed == "import":
    import no_such_module.inside
if deed == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if deed in ("hang", "deaf") or (deed == "hang-once" and total == 1):
    threading.Event().wait()
if deed in ("kill", "kill-once") and (deed == "kill" or total == 1):
    (own.parent / "killer").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()
if deed == "odd":
    pathlib.Path(figures).write_text("[]")
elif deed != "silent":
    pathlib.Path(figures).write_text(json.dumps({"seen": seen, "total": total}))
"""

# A call in a process of its own, which its part or its n-th write of the record kills.
DRIVER = """
import os, signal, sys
from pathlib import Path
from benchmarks.gpu.record import Record
from tests.benchmarks.test_gpu import call_of, look, run_call

out, deaths, *deeds = sys.argv[1:]
save, writes = Record.save, 0

def counted(self, folder):
    global writes
    writes += 1
    if writes == int(deaths):
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, folder)

Record.save = counted
sys.exit(run_call(call_of(Path(out), *deeds), "", look=look))
"""

Run = Callable[..., int]


def look(_places: Places, _limit: float) -> dict[str, Any]:
    return {"device": "NVIDIA Test", "torch": "2.11.0", "gpus": 1, "workers": 3, "commit": "abc"}


def part(deed: str, out: Path, *, name: str = "", seconds: int = 60, **more: Any) -> Part:
    script = out.parent / "deed.py"
    script.write_text(DEED)
    line: Callable[[Any], str] = lambda figures: f"seen {figures['seen']} of {figures['total']}"  # noqa: E731
    return Part(name or deed, f"what {deed} does", seconds, f"{script} {deed} {{own}} {{figures}}", line, **more)


def call_of(out: Path, *parts: str | Part, minutes: float = 60, patience: float = 3, again: Sequence[str] = ()) -> Call:
    made = [part(each, out) if isinstance(each, str) else each for each in parts]
    places = Places(out, None, "cuda")
    return Call(made, places, tiny=False, minutes=minutes, patience=patience, again=frozenset(again))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(call: Call) -> int:
    return run_call(call, "COMMAND", look=look)


def record(out: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    return contents


def parts_of(out: Path) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = record(out)["parts"]
    return parts


def states(out: Path) -> dict[str, str]:
    return {name: outcome["state"] for name, outcome in parts_of(out).items()}


def test_a_finished_part_is_not_repeated(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [part("work", out, name=name) for name in ("a", "b")]
    assert run(call_of(out, *parts)) == ALL_DONE
    assert run(call_of(out, *parts)) == ALL_DONE
    outcome = parts_of(out)["a"]
    assert outcome["figures"] == {"seen": 1, "total": 1}
    assert outcome["result"] == "seen 1 of 1"
    assert outcome["command"].startswith(f"python {out.parent / 'deed.py'} work ")
    machine = record(out)["machines"][outcome["machine"]]
    assert machine == {"device": "NVIDIA Test", "torch": "2.11.0", "gpus": 1, "commit": "abc"}
    assert "nothing is left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("deed", "end"),
    [
        ("fail", ["first line", "CUDA error: an illegal | memory access", "exit code 7"]),
        ("silent", ["first line", "it wrote no figures, or not those expected"]),
        ("odd", ["first line", "it wrote no figures, or not those expected"]),
    ],
)
def test_a_part_that_fails_is_recorded_and_the_others_run(
    out: Path, deed: str, end: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(call_of(out, deed, "work")) == SOME_FAILED
    assert states(out) == {deed: "failed", "work": "done"}
    assert parts_of(out)[deed]["error"] == end
    told = capsys.readouterr().out
    assert end[-1] in told
    assert "COMMAND --again failed" in told


def test_a_part_that_failed_runs_again_when_asked(out: Path) -> None:
    assert run(call_of(out, "fail-once", "work")) == SOME_FAILED
    assert run(call_of(out, "fail-once", "work")) == SOME_FAILED  # not unasked
    assert run(call_of(out, "fail-once", "work", again=["failed"])) == ALL_DONE
    parts = parts_of(out)
    assert parts["fail-once"]["figures"]["total"] == 2
    assert parts["fail-once"]["error"] == []
    assert parts["work"]["figures"]["total"] == 1
    assert run(call_of(out, "fail-once", "work", again=["work"])) == ALL_DONE
    assert parts_of(out)["work"]["figures"] == {"seen": 1, "total": 2}


@pytest.mark.parametrize("deed", ["hang", "deaf"])
def test_a_part_that_hangs_is_ended_at_its_limit(out: Path, deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.2)  # `deaf` ignores SIGTERM
    assert run(call_of(out, part(deed, out, seconds=1), "work", patience=1.5)) == SOME_FAILED
    assert states(out) == {deed: "failed", "work": "done"}
    assert parts_of(out)[deed]["error"][-1] == "ended after 2 s, 1.5 times what was guessed (--patience)"


@pytest.mark.parametrize(("continues", "seen"), [(True, 2), (False, 1)])
def test_a_part_that_the_call_cuts_off_is_continued_or_begun_anew(
    out: Path, continues: bool, seen: int, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [part("hang-once", out, continues=continues), part("work", out)]
    assert run(call_of(out, *parts, minutes=(GRACE + 1.5) / 60)) == SOME_LEFT
    assert states(out) == {"hang-once": "cut off", "work": "waiting"}
    assert re.search(r"left: hang-once, work, about 2 min 0 s\. Call again:\n  COMMAND\n$", capsys.readouterr().out)
    assert run(call_of(out, *parts)) == ALL_DONE
    assert parts_of(out)["hang-once"]["figures"] == {"seen": seen, "total": 2}


def test_a_part_that_never_fits_a_call_fails_in_the_end(out: Path) -> None:
    for code in (SOME_LEFT, SOME_LEFT, SOME_FAILED):
        assert run(call_of(out, "hang", minutes=(GRACE + 0.5) / 60)) == code
    assert "give it more --minutes" in parts_of(out)["hang"]["error"][-1]


def test_a_part_begins_only_if_it_fits_the_call_or_is_its_first(out: Path) -> None:
    long = [part("work", out, name=name, seconds=10**6) for name in ("first", "second")]
    parts = [long[0], long[1], part("work", out, name="short")]
    assert run(call_of(out, *parts)) == SOME_LEFT
    assert states(out) == {"first": "done", "second": "waiting", "short": "done"}
    assert run(call_of(out, *parts)) == ALL_DONE


def driver(out: Path, deaths: int, *deeds: str) -> int:
    # A new interpreter: it is killed.
    words = [sys.executable, "-c", DRIVER, str(out), str(deaths), *deeds]
    return subprocess.run(words, cwd=ROOT, capture_output=True, check=False, timeout=120).returncode


def is_alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_call_killed_inside_a_part_takes_it_along_and_the_next_call_begins_it_anew(out: Path) -> None:
    assert driver(out, 0, "work", "kill-once") == -signal.SIGKILL
    assert states(out) == {"work": "done", "kill-once": "running"}
    process = int((out / "parts" / "killer").read_text())
    while is_alive(process):  # the system is about to end it
        os.sched_yield()
    assert run(call_of(out, "work", "kill-once")) == ALL_DONE
    assert parts_of(out)["work"]["figures"]["total"] == 1
    assert parts_of(out)["kill-once"]["figures"] == {"seen": 1, "total": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_part_that_kills_every_call_fails_in_the_end(out: Path) -> None:
    for _ in range(3):
        assert driver(out, 0, "kill") == -signal.SIGKILL
    assert run(call_of(out, "kill", "work")) == SOME_FAILED
    assert states(out) == {"kill": "failed", "work": "done"}


def test_a_call_killed_at_any_write_of_its_record_is_continued(out: Path) -> None:
    deaths, killed = 1, 0
    while (code := driver(out, deaths, "work", "silent")) == -signal.SIGKILL:
        deaths, killed = deaths + 1, killed + 1  # one write further than the call before
        assert not list(out.glob(".gpu.json.*"))
    assert killed >= 3
    assert code == SOME_FAILED
    assert states(out) == {"work": "done", "silent": "failed"}


def test_what_a_part_needs_and_is_not_here_is_a_reason_to_skip_it(out: Path) -> None:
    parts = [
        part("work", out, name="module", needs=("json", "no_such_module")),
        part("work", out, name="two", gpus=2),
        part("work", out, name="here"),
    ]
    assert run(call_of(out, *parts)) == ALL_DONE
    assert states(out) == {"module": "skipped", "two": "skipped", "here": "done"}
    assert parts_of(out)["module"]["error"] == ["not installed: no_such_module"]
    assert parts_of(out)["two"]["error"] == ["it needs 2 GPUs, and this machine has 1"]
    assert run(call_of(out, *parts, "import")) == ALL_DONE  # nobody knew that it needs one
    assert parts_of(out)["import"]["error"] == ["not installed: no_such_module"]
    parts[0] = part("work", out, name="module", needs=("json",))  # it was installed since
    assert run(call_of(out, *parts)) == ALL_DONE
    assert states(out)["module"] == "done"


def test_a_part_whose_product_is_gone_runs_once_more(out: Path) -> None:
    parts = [part("work", out, makes="starts")]
    assert run(call_of(out, *parts)) == ALL_DONE
    (out / "parts" / "work" / "starts").unlink()
    assert run(call_of(out, *parts)) == ALL_DONE
    assert parts_of(out)["work"]["figures"]["total"] == 2


def test_folders_of_other_settings_and_damaged_ones_are_refused(out: Path) -> None:
    assert run(call_of(out, "work")) == ALL_DONE
    other = Call([part("work", out)], Places(out, None, "cpu"), tiny=True, minutes=9, patience=3)
    with pytest.raises(UserError, match=r"other settings .*: name another --out"):
        run(other)
    (out / "gpu.json").write_text('{"parts": {"work": 1}}')
    with pytest.raises(UserError, match=r"cannot read .*: remove it, or name another --out"):
        run(call_of(out, "work"))


def test_two_calls_never_work_in_one_folder(out: Path) -> None:
    def second(_places: Places, _limit: float) -> dict[str, Any]:
        with pytest.raises(UserError, match="another call works in"):
            run(call_of(out, "work"))
        return look(_places, _limit)

    assert run_call(call_of(out, "work"), "", look=second) == ALL_DONE


def test_the_table_says_what_is_done_failed_skipped_and_left(out: Path) -> None:
    parts = [
        part("work", out, table=lambda _figures: "a table of its own"),
        part("fail", out),
        part("work", out, name="module", needs=("no_such_module",)),
        part("work", out, name="left", seconds=10**6),
    ]
    assert run(call_of(out, *parts)) == SOME_LEFT
    table, _, own = (out / "table.md").read_text().partition("\n\n")
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    assert [len(row) for row in rows] == [4] * 6
    assert rows[0] == ["what", "command", "result", "hardware, versions, date"]
    assert rows[2][:1] + rows[2][2:3] == ["what work does", "seen 1 of 1"]
    assert re.fullmatch(r"NVIDIA Test, torch 2\.11\.0, commit abc, \d{4}-\d\d-\d\d", rows[2][3])
    assert rows[3][2] == r"failed: CUDA error: an illegal \| memory access / exit code 7"
    assert rows[4][2:] == [r"skipped: not installed: no_such_module", ""]
    assert rows[5][2:] == ["not run yet", ""]
    assert own == "a table of its own\n"


def test_the_memory_table_has_a_column_for_each_precision() -> None:
    cells = [
        {"images": images, "precision": precision, "checkpointing": again, "computed": 3 * 2**30, "measured": measured}
        for images, measured in ((32, 2 * 2**30), (1024, None))
        for precision in ("fp32", "bf16")
        for again in (False, True)
    ]
    assert results.memory({"rn50": cells}).startswith("0.67 to 0.67 of what was computed, in 4 of 8 cases")
    lines = results.memory_table({"rn50": cells}).splitlines()
    assert lines[2] == "| images on a GPU | fp32 | fp32, `checkpointing` | bf16 | bf16, `checkpointing` |"
    assert lines[4] == "| 32 | 2.0 (3.0) | 2.0 (3.0) | 2.0 (3.0) | 2.0 (3.0) |"
    assert lines[5] == "| 1,024 | - (3.0) | - (3.0) | - (3.0) | - (3.0) |"


def test_figures_of_a_gpu_read_as_one_line() -> None:
    # The scripts write some of them only there.
    way = {"seconds": 0.002, "wall": 0.002, "bytes": 80 * 10**6}
    plain = {"seconds": 0.005, "wall": 0.005, "bytes": 1600 * 10**6}
    loss = {"ways": {"ours": way, "published": plain, "hoisted": plain}, "gradients_apart": {"h": 2e-3, "g": 1e-3}}
    line = results.loss_head(loss | {"flops_per_second": 3.5e14, "of_peak": 0.5})
    assert line.startswith(
        "2.5 times as fast as the published form and 2.5 times as its hoisted one (2.0, 5.0, 5.0 ms); 80 MB"
    )
    assert line.endswith("350 TFLOP/s, 50 % of the matrix peak")
    step = {"alone": 1000.0, "with_loader": 900.0, "memory": 36.5, "loss": 11.0, "operations": []}
    steps = {"ours": step, "plain": step | {"alone": 500.0, "memory": 60.0}}
    line = results.whole_step({"rn50": steps | {"flops_per_image": 1e11, "peak": 8e14, "images": 256, "workers": 12}})
    assert "2.00 times as fast alone (1,000.0 against 500.0 images/s)" in line
    assert "36.5 against 60.0 GiB; 12 % of the matrix peak" in line
    row = {"seconds": 0.1, "kept": 100, "peak": 2**32}
    line = results.detection_cost({"stock": row, "extra_norm": row | {"seconds": 0.2}})
    assert line.startswith("2.00 times the time of a step (200 ms against 100)")
    assert line.endswith("4.0 GiB at most")


def test_every_part_has_a_name_a_command_and_needs_no_place_of_this_machine(tmp_path: Path) -> None:
    assert len({each.name for each in PARTS}) == len(PARTS)
    assert sum(each.seconds for each in PARTS) < 30 * 60  # the lease of a GPU that this was made for
    for each in PARTS:
        assert each.seconds < 9 * 60, "it must fit one call"
        words = each.words(Places(tmp_path, None, "cuda"), workers=1, tiny=True)
        assert words[0] == "-m"
        assert (ROOT / Path(*words[1].replace("excb.", "").split("."))).with_suffix(".py").exists()
        assert str(tmp_path / "parts" / each.name / "figures.json") in words
        assert not re.search(r"[{}]|figures", each.shown)
        assert "/" not in each.shown.replace("RUN/run", "")


def test_mistakes_on_the_command_line_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for words, message in (
        (["--again", "loss_hed"], "no part is called 'loss_hed'; did you mean 'loss_head'?"),
        (["--device", "cpu"], "add --tiny"),
        (["--minutes", "0"], "--minutes and --patience must be above 0"),
        (["--data", str(flat)], "must hold a sub-folder of images for each class"),
    ):
        assert command.main(["--out", str(tmp_path / "out"), *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert command._repeated(["--out", "a b", "--again", "x", "y", "--tiny"]) == ["--out", "a b", "--tiny"]


def test_images_are_made_on_the_spot_and_equal_each_time(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        mean = write_photos(tmp_path / folder, 4, 2)
        assert 50_000 < mean < 200_000  # as photographs of this size
    files = sorted((tmp_path / "a").rglob("*.jpg"))
    assert [file.relative_to(tmp_path / "a").as_posix() for file in files] == [
        f"class{number % 2:02}/{number:05}.jpg" for number in (0, 2, 1, 3)
    ]
    with Image.open(files[0]) as image:
        assert image.size == (WIDTH, HEIGHT)
    assert len({file.read_bytes() for file in files}) == 4
    assert all(file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes() for file in files)


def test_the_set_in_cocos_format_is_one(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from excb.transfer.coco.reading import open_coco

    for split in ("train", "val"):
        write_coco(tmp_path, split, 3)
    train, val = open_coco(tmp_path, check_all=True)
    assert len(train) == len(val) == 3
    for each in (*train.images, *val.images):
        assert len(each.annotations) == 3
        assert all(annotation.trainable for annotation in each.annotations)


@pytest.mark.slow
def test_all_parts_run_on_a_cpu_in_tiny_sizes_whatever_calls_are_cut_off(out: Path) -> None:
    # A new interpreter, as each call is for its user.
    words = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--device", "cpu", "--tiny", "--patience", "20"]
    calls, code = 0, SOME_LEFT
    while code == SOME_LEFT:
        calls += 1
        minutes = ["--minutes", "1" if calls <= 2 else "30"]
        code = subprocess.run([*words, *minutes], cwd=ROOT, check=False).returncode
    parts = parts_of(out)
    assert code == ALL_DONE, parts
    assert {name for name, outcome in parts.items() if outcome["state"] == "skipped"} <= {
        "two_gpus",
        "detection_smoke",
        "detection_smoke_detectron2",
    }
    assert parts["rn18_small"]["figures"]["resumed"]
    assert "these figures mean nothing" in (out / "table.md").read_text()
