"""What one step computes: plain numbers that cross from the scheduler to the tensors.

Neighbours: `scheduler.py` writes a batch, `attention.py` and `engine.py` read it. Left out: which
request a row belongs to beyond its place in `sampled`.

Legend: M decoding slots, N sampled rows, P new tokens of one prefill.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copy:
    """Keys and values of positions [start, stop) that another slot has computed already."""

    source: int
    target: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """New tokens of one slot, from position `start`."""

    slot: int
    start: int
    ids_P: Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged forward: a token for each decoding slot, ascending, then the prefills' tokens.

    `rows_N` are the packed rows whose next token is sampled. Copies happen first, in their order.
    """

    copies: tuple[Copy, ...]
    decode_slots_M: Ints
    decode_starts_M: Ints
    decode_ids_M: Ints
    prefills: tuple[Prefill, ...]
    rows_N: Ints
    seeds_N: npt.NDArray[np.uint64]
    indices_N: Ints
    temperatures_N: npt.NDArray[np.float64]
    slots: int
    length: int

    @property
    def prefill_tokens(self) -> int:
        """Tokens that are computed without one being sampled for each."""
        return sum(len(p.ids_P) for p in self.prefills)
