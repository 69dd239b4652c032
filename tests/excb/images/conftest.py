"""A machine without any extra that opens more formats."""

from collections.abc import Iterator

import pytest

from excb.images.formats import known
from excb.images.formats.plugins import Extra


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known.kind_of_extension.cache_clear()
    monkeypatch.setattr(Extra, "register", lambda _self: False)
    yield
    known.kind_of_extension.cache_clear()
