"""`excb-eval watch` on runs at URLs: as from a disk, through failures, and on S3 as moto serves it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from excb.transfer.watch import watching
from tests.faulty_store import FaultyStore
from tests.transfer.watch.watched import by_hand, figures, finish, grow, lines, watch

pytestmark = pytest.mark.usefixtures("one_thread")

URL = "faulty://bucket/first"
OUT = Path("runs") / "first-watch"


def upload(run: Path, *, without: str = "nothing") -> None:
    """The run as it is, in place of what the store has."""
    FaultyStore.store.clear()
    for file in run.rglob("*"):
        if file.is_file() and file.name != without:
            FaultyStore().pipe_file(f"{URL}/{file.relative_to(run).as_posix()}", file.read_bytes())


def test_figures_are_those_by_hand(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = grow(tmp_path / "first", 10, 20, 30, keep=2)
    finish(run, 30)
    upload(run)
    before = FaultyStore.names()
    assert watch(URL, data) == 0
    assert FaultyStore.names() == before  # only read
    measured = figures(lines(OUT))
    assert measured == {step: by_hand(run / "checkpoints" / f"step-{step}.pt", data, tmp_path) for step in (20, 30)}
    assert "step 10: gone before it was measured" in capsys.readouterr().err
    assert json.loads((OUT / "best.json").read_text(encoding="utf-8"))["checkpoint"].startswith(f"{URL}/checkpoints/")
    assert list(Path().rglob("*.pt")) == sorted(
        (run / "checkpoints").relative_to(tmp_path).glob("*.pt")
    )  # none is left
    assert watch(URL, data) == 0
    assert len(lines(OUT)) == 2


def test_a_store_that_is_down_for_a_while(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "first", 10)
    upload(run)

    def events() -> Iterator[None]:
        FaultyStore.fails["ls"] = 2  # the look and its second try
        yield
        FaultyStore.fails["get"] = 2
        yield
        grow(run, 20)
        finish(run, 20)
        upload(run)
        yield

    left = events()
    monkeypatch.setattr(watching, "pause", lambda _seconds: next(left))
    assert watch(URL, data) == 0
    assert [line["step"] for line in lines(OUT)] == [10, 20]
    assert "the store is down" in capsys.readouterr().err


def test_the_report_may_be_sent_before_the_last_checkpoint(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = grow(tmp_path / "first", 10, 20)
    finish(run, 20)
    (run / "owner.json").write_text("{}", encoding="utf-8")
    upload(run, without="step-20.pt")
    monkeypatch.setattr(watching, "pause", lambda _seconds: upload(run))
    assert watch(URL, data) == 0
    assert [line["step"] for line in lines(OUT)] == [10, 20]


def test_a_checkpoint_removed_while_it_is_fetched(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = grow(tmp_path / "first", 10, 20)
    finish(run, 20)
    upload(run)
    get = FaultyStore.get_file

    def late(store: FaultyStore, source: str, target: str, **options: object) -> None:
        if source.endswith("step-10.pt"):
            FaultyStore.store.pop("/bucket/first/checkpoints/step-10.pt", None)
        get(store, source, target, **options)

    monkeypatch.setattr(FaultyStore, "get_file", late)
    assert watch(URL, data) == 0
    assert [line["step"] for line in lines(OUT)] == [20]
    assert "step 10: gone before it was measured" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["faulty://bucket/nothing", "faulty://bucket/first/checkpoints"])
def test_no_run_there(url: str, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upload(grow(tmp_path / "first", 10))
    assert watch(url, data) == 2
    assert f"no run is at {url}, which has neither checkpoints nor recipe.json" in capsys.readouterr().err


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """moto's S3 server on this machine, with a bucket; s3fs finds it by the environment."""
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", minversion="2023", reason="no s3fs of today")
    started = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield "s3://bucket"
    finally:
        started.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of moto and botocore
def test_a_run_on_s3(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3(monkeypatch) as bucket:
        import fsspec

        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir("bucket")
        run = grow(tmp_path / "first", 10, 20, 30, keep=2)

        def send() -> None:
            there = {name.rpartition("/")[2] for name in system.find("bucket/first")}
            for file in run.rglob("*"):
                if file.is_file():
                    system.put_file(str(file), f"bucket/first/{file.relative_to(run).as_posix()}")
            for name in there - {file.name for file in run.rglob("*")}:
                system.rm_file(f"bucket/first/checkpoints/{name}")

        def ends(_seconds: float) -> None:
            grow(run, 40, keep=2)
            finish(run, 40)
            send()

        send()
        monkeypatch.setattr(watching, "pause", ends)
        assert watch(f"{bucket}/first", data) == 0
        measured = figures(lines(OUT))
        assert list(measured) == [20, 30, 40]
        for step in (30, 40):
            assert measured[step] == by_hand(run / "checkpoints" / f"step-{step}.pt", data, tmp_path)
        monkeypatch.setattr(watching, "pause", lambda _seconds: None)
        before = (OUT / "watch.jsonl").read_bytes()
        assert watch(f"{bucket}/first", data) == 0
        assert (OUT / "watch.jsonl").read_bytes() == before
