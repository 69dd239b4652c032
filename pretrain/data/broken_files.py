"""Unreadable training images: each is named once, all are counted, and a set with too many of them is refused."""

import math

from excb.console import plural
from excb.distributed.collectives import gather_numbers, gather_objects
from excb.errors import UserError
from excb.ledger import NAMED, NOTHING, Ledger, LedgerEntry

from .batch import NO_IMAGE, Broken, ViewBatch

MAX_SHARE = 0.01  # of a set's images may be broken
BROKEN = "readings of images that cannot be read"  # the ledger's reason: an image counts once in each epoch
JUDGED_FROM = 200  # images seen
CHANCE = 4.0  # standard deviations: a part of a set may hold so many more than its share


class BrokenFiles:
    """Counts unreadable images over all ranks, and names those of this rank.

    Args:
        seen: images that earlier starts of the run have seen.
        found: how many of them were broken. They are not judged again, because the set may have been fixed.
    """

    def __init__(self, seen: int = 0, found: int = 0) -> None:
        self.seen, self.found = seen, found
        self._before = seen, found
        self._named: set[str] = set()

    @property
    def ledger(self) -> Ledger:
        """The readings of broken images over all ranks, with the first names of this rank."""
        if not self.found:
            return NOTHING
        names = tuple(sorted(self._named)[:NAMED])
        return Ledger((LedgerEntry(BROKEN, self.found, names, "replaced by other images"),))

    def count(self, batch: ViewBatch, *, images: int, epoch: int) -> list[Broken]:
        """Count a batch of all ranks.

        A set is refused once it holds more than `MAX_SHARE` of broken images for certain, or beyond chance by those
        that were seen so far: which images come first is no matter.

        Args:
            batch: of this rank.
            images: of the set.
            epoch: images that an epoch reads, each at most once.

        Returns:
            This rank's broken files that were not named before.

        Raises:
            UserError: too many are broken; raised on all ranks.
        """
        new: list[Broken] = []
        for broken in batch.broken:
            if broken.path not in self._named:
                self._named.add(broken.path)
                new.append(broken)
        # A replacement that is broken too counts when its own turn comes.
        mine = [len(batch.samples), int((batch.used != batch.samples).sum()), int((batch.used == NO_IMAGE).any())]
        seen, found, hopeless = gather_numbers(mine).sum(0).tolist()
        self.seen += seen
        self.found += found
        seen, found = self.seen - self._before[0], self.found - self._before[1]
        passes = -(-self.seen // epoch) - self._before[0] // epoch  # begun ones since this start, in whole or in part
        likely = MAX_SHARE * seen
        certain, beyond_chance = found > MAX_SHARE * images * passes, found > likely + CHANCE * math.sqrt(likely)
        if hopeless or (seen >= JUDGED_FROM and (certain or beyond_chance)):
            names = ", ".join(sorted(set().union(*gather_objects(self._named)))[:3])
            raise UserError.on_all_ranks(
                f"{found:,} of {plural(seen, 'image')} seen {'is' if found == 1 else 'are'} broken (more than 1 % of "
                f"{images:,}), such as {names}: fix them and repeat the command to resume, or start another run "
                "without them (another --out, init=RUN for its weights)",
            )
        return new
