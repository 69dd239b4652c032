"""Retrieval of instances, against a loop."""

import torch

from excb.references.instances import retrieved


def test_a_view_finds_its_image_where_no_other_is_nearer() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(20, 4, generator=random)
    views = images + 0.8 * torch.randn(20, 4, generator=random)
    cosines = torch.nn.functional.cosine_similarity(views[:, None], images[None], dim=2)
    expected = [cosines[view].tolist().index(max(cosines[view].tolist())) == view for view in range(20)]
    assert retrieved(images, views).tolist() == expected
    assert 0 < sum(expected) < 20
