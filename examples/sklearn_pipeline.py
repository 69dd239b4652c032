"""A scikit-learn pipeline on frozen features: search its settings on train images, report accuracy on test images.

Run: python examples/sklearn_pipeline.py --data photos [--ckpt conv4_photos]
photos/train and photos/test hold one folder per class.
"""

import argparse
from pathlib import Path

from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import excb


def main() -> None:
    """Embed both sets, fit, and print the accuracy beside that of the most frequent class."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ckpt", default="conv4_photos", help="what excb.load takes")
    args = parser.parse_args()

    train, test = (excb.embed(args.ckpt, args.data / part) for part in ("train", "test"))
    train_labels, test_labels = ([Path(path).parts[0] for path in part.paths] for part in (train, test))

    pipeline = make_pipeline(StandardScaler(), PCA(whiten=True), LogisticRegression(max_iter=1000))
    settings = {"pca__n_components": [0.9, 0.99], "logisticregression__C": [0.01, 0.1, 1]}
    search = GridSearchCV(pipeline, settings, cv=3)  # on train images only: test images choose nothing
    search.fit(train.vectors, train_labels)

    accuracy = search.score(test.vectors, test_labels)
    frequent = max(set(train_labels), key=train_labels.count)
    print(f"chosen on train images: {search.best_params_}")
    print(f"accuracy on {len(test_labels)} test images: {accuracy:.1%}")
    print(f"always the most frequent class: {test_labels.count(frequent) / len(test_labels):.1%}")


if __name__ == "__main__":
    main()
