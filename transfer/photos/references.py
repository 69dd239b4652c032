"""References of a comparison: pixels, colours, whitened patches, and the first network with random weights."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from excb.console import Reporter
from excb.images.image_set import Images
from excb.networks.features import Inputs, extract
from excb.references import patches
from excb.references.baselines import REFERENCES, UNTRAINED, WITHOUT_NETWORK, features_without_network
from excb.references.untrained import build_untrained, estimate_batchnorm, evenly_spread

if TYPE_CHECKING:
    from excb.hub.backbone import Backbone


def of(network: "Backbone | None", images: Images, reporter: Reporter) -> dict[str, Callable[[], Tensor]]:
    """The title of each reference, and what makes its rows [N, D].

    Args:
        network: gives its architecture and its preprocessing.
        images: which patches are fitted on, too.
        reporter: for progress.
    """
    assert network is not None
    architecture, prepared = network.entry.architecture, network.transform

    def rows_of(title: str, module: nn.Module) -> Tensor:
        with reporter.progress(title, len(images)) as bar:
            return extract(module, Inputs(images, prepared), progress=bar.advance).rows

    def untrained() -> Tensor:
        module = build_untrained(architecture)
        estimate_batchnorm(module, evenly_spread(images), prepared)
        return rows_of(REFERENCES[UNTRAINED], module)

    made: dict[str, Callable[[], Tensor]] = {
        title: partial(_without_network, name, images) for name, (title, _) in WITHOUT_NETWORK.items()
    }
    made[patches.TITLE] = lambda: rows_of(patches.TITLE, patches.fitted(images, prepared))
    made[REFERENCES[UNTRAINED]] = untrained
    return made


def _without_network(name: str, images: Images) -> Tensor:
    return features_without_network(name, images).rows
