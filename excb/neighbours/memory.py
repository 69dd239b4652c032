"""How much memory a search will hold, known before anything is allocated."""

from dataclasses import dataclass

from excb.neighbours.tiling import MERGED, working_bytes


@dataclass(frozen=True)
class Plan:
    """What a search will hold in memory, in bytes, in each process.

    Attributes:
        bank: its part of the bank, if it is in memory, and the lengths of all rows.
        queries: all queries.
        tiles: everything temporary.
        answer: the neighbours, and what merging those of several processes takes.
        text: all this in one line.
    """

    bank: int
    queries: int
    tiles: int
    answer: int
    text: str

    @property
    def total(self) -> int:
        """All of it."""
        return self.bank + self.queries + self.tiles + self.answer


def plan(N: int, D: int, Q: int, k: int, *, processes: int = 1, streamed: bool = False) -> Plan:
    """Say what a search in float32 features will hold in memory, before anything is allocated.

    Args:
        N: bank rows.
        D: width.
        Q: queries.
        k: neighbours.
        processes: how many share the bank.
        streamed: the bank is read from a disk in tiles, and does not count.
    """
    part = -(-N // processes)
    bank = part * 16 + (0 if streamed else part * D * 4)
    queries = Q * (D * 4 + 16)
    tiles = working_bytes(part, D, Q, min(k, part))
    answer = Q * k * 16 + (0 if processes == 1 else Q * k * 16 + 3 * processes * min(Q, MERGED) * k * 16)
    each = "" if processes == 1 else f" in each of {processes} processes"
    text = (
        f"k-NN: bank {N:,} x {D} {_size(bank)}{' read in tiles' if streamed else ''}, {Q:,} queries {_size(queries)}, "
        f"tiles {_size(tiles)}, {k} neighbours each {_size(answer)}; "
        f"in all {_size(bank + queries + tiles + answer)}{each}"
    )
    return Plan(bank, queries, tiles, answer, text)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
