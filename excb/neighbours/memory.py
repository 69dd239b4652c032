"""The memory that a search will hold, computed before anything is allocated."""

from dataclasses import dataclass

from excb.console import plural
from excb.neighbours.tiling import MERGED, working_bytes


@dataclass(frozen=True)
class SearchMemory:
    """Bytes that a search will hold in memory in each process."""

    bank: int  # the process's part of the bank, if it is in memory, and the lengths of its rows
    queries: int
    tiles: int  # everything temporary
    answer: int  # the neighbours, and what merging those of several processes takes
    total: int
    text: str  # all this as a message


def search_memory(N: int, D: int, Q: int, k: int, *, processes: int = 1, streamed: bool = False) -> SearchMemory:
    """Plan the search for k neighbours of Q queries among N bank rows, all float32 of width D.

    Args:
        N: bank rows.
        D: feature width.
        Q: queries.
        k: neighbours.
        processes: number of processes that share the bank.
        streamed: the bank is read from a disk in tiles, and does not count.
    """
    part = -(-N // processes)
    bank = part * 28 + (0 if streamed else part * D * 4)
    queries = Q * (D * 4 + 16)
    tiles = working_bytes(part, D, Q, min(k, part))
    answer = Q * k * 16 + (0 if processes == 1 else Q * k * 16 + 3 * processes * min(Q, MERGED) * k * 16)
    total = bank + queries + tiles + answer
    each = "" if processes == 1 else f" in each of {plural(processes, 'process', 'processes')}"
    text = (
        f"k-NN: bank {N:,} x {D} {_size(bank)}{' read in tiles' if streamed else ''}, {plural(Q, 'query', 'queries')} "
        f"{_size(queries)}, tiles {_size(tiles)}, {plural(k, 'neighbour')} each {_size(answer)}; in all "
        f"{_size(total)}{each}"
    )
    return SearchMemory(bank, queries, tiles, answer, total, text)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
