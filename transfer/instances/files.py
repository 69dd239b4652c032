"""The files of a result: scores of every query, candidate pairs as a challenge takes them, and a page to look at."""

from dataclasses import dataclass
from pathlib import Path

from excb.distributed.collectives import run_on_rank0
from excb.files.atomic import write_text
from excb.files.csv_text import plain_table
from excb.results.result import ResultRecord

from ..reporting import report
from ..reporting.predictions import ImageScores
from .page import render_queries
from .scores import InstanceMeasurements
from .setup import InstanceTask, gallery_names

PAIRS = ("query_id", "reference_id", "score")  # columns, as the Image Similarity Challenge has them


@dataclass(frozen=True)
class InstanceFiles:
    """Writes a result with what it was made of."""

    task: InstanceTask
    measured: InstanceMeasurements

    @property
    def scored(self) -> ImageScores:
        """Scores of every query."""
        return self.measured.scored

    def __call__(self, result: ResultRecord, file: Path) -> list[Path]:
        """Write FILE.json, and beside it FILE.npz, FILE.html and, of copies, FILE.pairs.csv; rank 0 does, for all.

        Returns:
            The files, JSON first.

        Raises:
            UserError: one cannot be written.
        """
        others = run_on_rank0(lambda: self._write_others(result, file))
        return [*report.write_result(result, self.measured.scored, file), *others]  # JSON last: the files exist

    def _write_others(self, result: ResultRecord, file: Path) -> list[Path]:
        stem = file.name.removesuffix(".json")
        texts = {file.with_name(f"{stem}.html"): render_queries(self.task, self.measured, result)}
        if self.task.instances.family == "copies":
            texts[file.with_name(f"{stem}.pairs.csv")] = self._pairs()
        for place, text in texts.items():
            write_text(text, place)
        return list(texts)

    def _pairs(self) -> str:
        """All candidate pairs, as the Image Similarity Challenge takes them: names of files without endings."""
        queries = self.task.test.paths
        gallery = gallery_names(self.task.train, self.task.distractors)
        candidates = self.measured.candidates
        rows = (
            [Path(queries[query]).stem, Path(gallery[image]).stem, f"{similarity:.9f}"]
            for query, (images, similarities) in enumerate(zip(candidates.images, candidates.similarities, strict=True))
            for image, similarity in zip(images.tolist(), similarities.tolist(), strict=True)
        )
        return plain_table(PAIRS, rows)
