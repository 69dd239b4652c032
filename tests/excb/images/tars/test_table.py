"""A tar's table against `tarfile` reading the members, and what is passed over or refused."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from excb.errors import UserError
from excb.images.tars.table import TarTable, read_table
from tests.excb.images.shard_files import member, picture, tar, tar_of

LONG = "a-long-folder-name/" * 12 + "picture.jpg"


def table(content: bytes) -> TarTable:
    return read_table(io.BytesIO(content), "one.tar")


def contents(found: TarTable, content: bytes) -> dict[str, bytes]:
    ranges = zip(found.names, found.offsets, found.sizes, strict=True)
    return {name: content[offset : offset + size] for name, offset, size in ranges}


@pytest.mark.parametrize("dialect", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_offsets_and_sizes_are_tarfiles(dialect: int) -> None:
    names = ["b/2.JPG", "a/1.png", "a/e.webp", "./c/3.jpeg", "d//4.gif"]
    names += [] if dialect == tarfile.USTAR_FORMAT else [LONG, "ümlaut/ä.jpg"]
    members = [member("a", type=tarfile.DIRTYPE), member("a/notes.txt", b"text"), member("empty.bmp")]
    content = tar([*members, *(member(name, picture(i)) for i, name in enumerate(names))], dialect=dialect)
    expected = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for info in archive:
            if info.isreg() and not info.name.endswith(".txt"):
                stream = archive.extractfile(info)
                assert stream is not None
                expected[info.name.removeprefix("./").replace("//", "/")] = stream.read()
    found = table(content)
    assert contents(found, content) == expected
    assert list(expected) == found.names
    assert found.skipped == {".txt": 1}


def test_an_undecodable_name_is_kept() -> None:
    content = tar([member("caf\udce9/1.jpg", picture(0))], dialect=tarfile.GNU_FORMAT)
    assert table(content).names == ["caf\udce9/1.jpg"]


def test_labels_are_of_the_file_with_the_same_key() -> None:
    files = {
        "0.jpg": (b"", {"0.cls": b"7\n"}),
        "x/1.big.jpg": (b"", {"x/1.cls": b" wood  thrush "}),
        "2.jpg": (b"", {"2.json": json.dumps({"caption": "a cat", "label": 12}).encode()}),
        "3.jpg": (b"", {"3.json": b'{"cls": "tabby"}', "3.cls": b"004"}),
        "4.jpg": (b"", {"4.json": b'{"caption": "no label"}'}),
        "5.jpg": (b"", {"5.json": b"{damaged"}),
        "6.jpg": (b"", {"6.cls": b"-1"}),
        "7.jpg": (b"", {"7.json": b"[" * 5000}),
        "8.jpg": (b"", {"8.cls": b""}),
        "9.jpg": (b"", {}),
    }
    for turned in (False, True):  # beside, before or after the image
        members = [list(({name: content} | labels).items()) for name, (content, labels) in files.items()]
        flat = [pair for pairs in members for pair in (reversed(pairs) if turned else pairs)]
        found = table(tar_of(dict(flat)))
        assert dict(zip(found.names, found.labels, strict=True)) == {
            "0.jpg": "7",
            "x/1.big.jpg": "wood thrush",
            "2.jpg": "12",
            "3.jpg": "4",
        } | dict.fromkeys(["4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg", "9.jpg"])


def test_what_no_image_set_needs_is_passed_over_and_counted() -> None:
    good = member("good.jpg", picture(1))
    hostile = [
        member("../up.jpg", b"1"),
        member("a/../../up.jpg", b"2"),
        member("/etc/absolute.jpg", b"3"),
        member("escape\x1b[2J.jpg", b"4"),
        member("soft.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("hard.jpg", type=tarfile.LNKTYPE, linkname="good.jpg"),
        member("device.jpg", type=tarfile.CHRTYPE),
        member("disk.jpg", type=tarfile.BLKTYPE),
        member("pipe.jpg", type=tarfile.FIFOTYPE),
        member("sparse.jpg", b"", pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": "1000000"}),
        member("._good.jpg", b"of macOS"),
        member(".hidden/a.jpg", b"hidden"),
    ]
    found = table(tar([*hostile[:6], good, *hostile[6:]]))
    assert found.names == ["good.jpg"]
    assert found.skipped == {
        "names that lead elsewhere": 4,
        "links": 2,
        "special files, such as devices": 3,
        "sparse files": 1,
        "hidden files": 2,
    }


@pytest.mark.parametrize("name", ["b.jpg", "a.cls", "a.json"])
def test_a_negative_size_reads_nothing_of_what_follows(name: str) -> None:
    members = [member("a.jpg", picture(0)), member(name, size=-1, pax_headers={"size": "-1"}), member("c.jpg", b"7")]
    stream = io.BytesIO()
    for info, content in members:
        stream.write(info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE))
    found = table(stream.getvalue() + bytes(2 * tarfile.BLOCKSIZE))
    assert (found.names, found.labels) == (["a.jpg", "c.jpg"], [None, None])
    assert found.skipped == {"files of negative size": 1}


def test_of_equal_names_the_last_counts_as_unpacking_would_give() -> None:
    content = tar([member("a.jpg", b"old"), member("b.jpg", b"b"), member("./a.jpg", b"new")])
    found = table(content)
    assert contents(found, content) == {"a.jpg": b"new", "b.jpg": b"b"}
    assert found.skipped == {"repeated names": 1}


WHOLE = tar_of({f"{i}.jpg": picture(i) for i in range(4)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(WHOLE), r"compressed \(gzip\), so its images .* `gunzip`"),
        (bz2.compress(WHOLE), r"compressed \(bzip2\)"),
        (lzma.compress(WHOLE), r"compressed \(xz\)"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), r"compressed \(zstd\)"),
        (b"", "empty file"),
        (b"PK\3\4" + bytes(600), "not a complete tar file"),
        (b"<html>" * 200, "not a complete tar file"),
        (WHOLE[:700], "unexpected end of data"),
        (WHOLE[:512], "unexpected end of data"),
        (WHOLE[:2000], "not a complete tar file"),
        (WHOLE[: 4 * 1024], "not a complete tar file"),
        (WHOLE.replace(b"1.jpg\0", b"x.jpg\0"), "it has data after byte"),  # the header's checksum is another
        (WHOLE + WHOLE, "it has data after byte"),
    ],
)
def test_what_is_no_whole_tar_is_refused_in_one_line(content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        table(content)
    assert str(caught.value).startswith("one.tar is ")
    assert "\n" not in str(caught.value)


def test_a_tar_cut_anywhere_is_refused(tmp_path: Path) -> None:
    end = WHOLE.rindex(b"\xff\xd9") + 2
    for cut in range(0, end, 97):
        with pytest.raises(UserError):
            table(WHOLE[:cut])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dialect=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=12),
    header=st.integers(0, 12),
    mend=st.booleans(),
)
def test_changed_headers_give_a_table_or_one_line(
    dialect: int, changes: list[tuple[int, int]], header: int, mend: bool
) -> None:
    names = ["1.jpg", "2.cls", "2.jpg"] if dialect == tarfile.USTAR_FORMAT else ["1.jpg", LONG, "ö.json", "ö.jpg"]
    whole = tar([member(name, b"7" * 300) for name in names], dialect=dialect)
    content = bytearray(whole)
    start = header * 512 % len(content)
    for place, value in changes:
        content[start + place % 512] = value
    if mend:  # so that more than the checksum is tested
        block = bytearray(content[start : start + 512])
        block[148:156] = b" " * 8
        content[start + 148 : start + 156] = f"{sum(block):06o}\0 ".encode()
    try:
        found = table(bytes(content))
    except UserError:
        return
    for name, offset, size in zip(found.names, found.offsets, found.sizes, strict=True):
        assert 0 <= offset <= offset + size <= len(content)
        assert ".." not in name.split("/")
        assert not name.startswith("/")


def test_images_are_known_by_their_first_bytes_and_need_their_extras(no_extra: None) -> None:
    assert no_extra is None
    found = table(tar_of({"a.jpg": picture(0), "b.scan": picture(1), "c.heic": b"", "d.scan": b"words"}))
    assert found.names == ["a.jpg", "b.scan"]
    assert found.skipped == {".heic": 1, ".scan": 1}
