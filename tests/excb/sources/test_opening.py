"""Lists of images: order, root, and what is refused. (test_shards.py opens folders and shards.)"""

from pathlib import Path

import pytest
from PIL import Image

from excb.errors import UserError
from excb.sources.opening import open_images, read_list


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("# a comment\nb/2.jpg\n\n  a/1.jpg  \r\n   # another\nb/a name.jpg", encoding="utf-8")
    images = read_list(file)
    assert list(images.paths) == ["b/2.jpg", "a/1.jpg", "b/a name.jpg"]
    assert images.labels is None
    assert images.classes is None
    assert images.file(1) == tmp_path / "a" / "1.jpg"


def test_a_lists_paths_start_at_the_root_if_given(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("1.jpg\n/somewhere/2.jpg\n", encoding="utf-8")
    images = read_list(str(file), tmp_path / "data")
    assert images.file(0) == tmp_path / "data" / "1.jpg"
    assert images.file(1) == Path("/somewhere/2.jpg")


def test_a_byte_order_mark_is_no_part_of_a_path(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xef\xbb\xbfa.jpg\r\nb.jpg\r\n")
    assert list(read_list(file).paths) == ["a.jpg", "b.jpg"]


LISTS: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot read the list"),
    "not text": (b"\xff\xfe\x00", "cannot read the list"),
    "empty": (b"", "names no image"),
    "comments only": (b"# a\n\n  \n# b", "names no image"),
    "repeats": (b"a.jpg\nb.jpg\nc.jpg\n b.jpg \n", "b.jpg more than once"),
}


@pytest.mark.parametrize(("content", "message"), LISTS.values(), ids=LISTS)
def test_a_useless_list_is_the_users_mistake(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "list.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_list(file)
    assert str(file) in one_line(error)


def test_a_repeat_at_the_end_of_a_long_list_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"  # comparing all pairs of lines would take hours
    file.write_text("".join(f"{number}.jpg\n" for number in range(300_000)) + "299999.jpg", encoding="utf-8")
    with pytest.raises(UserError, match=r"names 299999\.jpg more than once"):
        read_list(file)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """As COCO's means of transport is: only a folder that is not `train` itself is replaced by the one inside."""
    for name in ("bus/1.png", "train/2.png"):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "train" / name)
    for place in (tmp_path, tmp_path / "train"):
        images = open_images(str(place))
        assert images.classes is not None
        assert list(images.classes) == ["bus", "train"]
