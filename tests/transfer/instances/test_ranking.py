"""Tests of ranks by counting: against a sort of all pairs, with ties, tiles, blocks and stacked rows."""

import numpy as np
import pytest
import torch

from excb.errors import UserError
from excb.transfer.instances import ranking
from excb.transfer.instances.ranking import StackedRows, positions
from excb.transfer.instances.whitening import DescriptorWhitening, WhitenedRows

CPU = torch.device("cpu")


class Rows:
    """A tensor, of which single spans are read."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows, self.width = rows, rows.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        assert 0 <= start < stop <= len(self)
        return self._rows[start:stop]


def by_sorting(gallery: np.ndarray, queries: np.ndarray, judged: list[np.ndarray]) -> list[list[int]]:
    found = []
    for query, images in zip(queries, judged, strict=True):
        cosines = [round(float(row @ query) / float(np.linalg.norm(row) * np.linalg.norm(query)), 9) for row in gallery]
        order = sorted(range(len(gallery)), key=lambda index: (-cosines[index], index))
        found.append([order.index(image) + 1 for image in images.tolist()])
    return found


@pytest.mark.parametrize("tile", [1, 64, 2**21])
@pytest.mark.parametrize("together", [1, 2**26])
@pytest.mark.parametrize("stacked", [False, True])
def test_ranks_are_those_of_a_sort(tile: int, together: int, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_TILE", tile)
    monkeypatch.setattr(ranking, "_TOGETHER", together)
    random = np.random.default_rng(0)
    gallery = random.normal(size=(43, 6)).astype(np.float32)
    gallery[20:26] = gallery[3] * np.arange(1, 7, dtype=np.float32)[:, None]  # equal cosines
    queries = random.normal(size=(9, 6)).astype(np.float32)
    queries[4] = gallery[3]
    judged = [random.choice(43, size=count, replace=False) for count in (1, 5, 0, 43, 7, 2, 3, 9, 4)]
    judged[4] = np.array([25, 3, 20, 42])
    whole = torch.from_numpy(gallery)
    parts = StackedRows([Rows(whole[:10]), Rows(whole[10:11]), Rows(whole[11:])]) if stacked else whole
    done: list[int] = []
    found = positions(parts, torch.from_numpy(queries), judged, device=CPU, progress=done.append)
    expected = by_sorting(gallery.astype(np.float64), queries.astype(np.float64), judged)
    assert [each.tolist() for each in found] == expected
    assert found[4].tolist()[:3] == [7, 1, 2]
    assert sum(done) == 9


def test_too_large_a_gallery_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_MOST", 3)
    with pytest.raises(UserError, match="a gallery of 4 images is too large"):
        positions(torch.ones(4, 2), torch.ones(1, 2), [np.array([0])], device=CPU)


def test_whitened_rows_have_the_covariance_of_a_ball_whatever_span_is_read() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 5, generator=generator) @ torch.randn(5, 5, generator=generator)
    whitening = DescriptorWhitening.learned(rows, None)
    whitened = WhitenedRows(rows, whitening)
    values = whitened.rows(0, 300)
    assert torch.allclose(values.mean(0), torch.zeros(5, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(values.T @ values / 300, torch.eye(5, dtype=torch.float64), atol=1e-10)
    assert torch.equal(torch.cat([whitened.rows(row, row + 1) for row in range(300)]), values)
    # By singular values, cosines are the same.
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    centred = unit - unit.mean(0)
    left = torch.linalg.svd(centred, full_matrices=False).U
    narrow = WhitenedRows(rows, DescriptorWhitening.learned(rows, 3)).rows(0, 300)
    for ours, theirs in ((values, left), (narrow, left[:, :3])):
        first, second = (torch.nn.functional.normalize(each, dim=1) for each in (ours, theirs))
        assert torch.allclose(first @ first.T, second @ second.T, atol=1e-9)


def test_too_few_images_to_whiten_are_refused() -> None:
    with pytest.raises(UserError, match="3 images of 5 features whiten to 1 to 2 dimensions"):
        DescriptorWhitening.learned(torch.randn(3, 5), 3)
    with pytest.raises(UserError, match="name more images"):
        DescriptorWhitening.learned(torch.randn(1, 5), None)
