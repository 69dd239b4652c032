"""Fine-tune a backbone with the Trainer of Hugging Face Transformers.

Run: pip install transformers accelerate
     python examples/transformers_trainer.py --data photos [--ckpt conv4_photos] [--epochs 5]
photos/train and photos/test hold one folder per class.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from transformers import EvalPrediction, Trainer, TrainingArguments

import excb


class Classifier(nn.Module):
    """A backbone with a linear head, which returns what the Trainer expects."""

    def __init__(self, ckpt: str, classes: int) -> None:
        super().__init__()
        self.backbone = excb.load(ckpt)
        self.head = nn.Linear(self.backbone.width, classes)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and scores [B, classes] of images [B, 3, H, W]."""
        scores = self.head(self.backbone(pixel_values))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def collate(batch: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """A batch by the names of `forward`."""
    images, labels = zip(*batch, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def accuracy(predicted: EvalPrediction) -> dict[str, Any]:
    """Share of test images whose best class is right."""
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main() -> None:
    """Train, then evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", default="conv4_photos", help="what excb.load takes")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="runs/finetuned")
    args = parser.parse_args()

    transform = excb.load(args.ckpt).transform
    train, test = (ImageFolder(args.data / part, transform) for part in ("train", "test"))
    settings = TrainingArguments(
        args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,  # the images are not columns of a table
        seed=0,
    )
    trainer = Trainer(
        Classifier(args.ckpt, len(train.classes)),
        settings,
        data_collator=collate,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
    )
    trainer.train()
    print(f"accuracy on {len(test)} test images: {trainer.evaluate()['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
