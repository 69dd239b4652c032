"""Fine-tune a backbone with Lightning: `excb.load` gives the network and its preprocessing.

Run: pip install lightning
     python examples/lightning_finetune.py --data photos [--ckpt conv4_photos] [--epochs 5]
photos/train and photos/test hold one folder per class.
"""

import argparse
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import excb


class Classifier(lightning.LightningModule):
    """A backbone with a linear head; the backbone learns at a tenth of the head's rate."""

    def __init__(self, ckpt: str, classes: int, *, rate: float) -> None:
        super().__init__()
        self.backbone, self.rate = excb.load(ckpt), rate
        self.head = nn.Linear(self.backbone.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores [B, classes] of images [B, 3, H, W]."""
        return self.head(self.backbone(images))

    def on_train_epoch_start(self) -> None:
        """Keep the BatchNorm statistics of pretraining: those of small batches are worse."""
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Log the accuracy."""
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with two rates."""
        groups = [
            {"params": self.backbone.parameters(), "lr": self.rate / 10},
            {"params": self.head.parameters(), "lr": self.rate},
        ]
        return torch.optim.SGD(groups, lr=self.rate, momentum=0.9)


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", default="conv4_photos", help="what excb.load takes")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    lightning.seed_everything(0)
    transform = excb.load(args.ckpt).transform
    train, test = (ImageFolder(args.data / part, transform) for part in ("train", "test"))
    model = Classifier(args.ckpt, len(train.classes), rate=0.05)
    trainer = lightning.Trainer(max_epochs=args.epochs, logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
    trainer.test(model, DataLoader(test, batch_size=64))


if __name__ == "__main__":
    main()
