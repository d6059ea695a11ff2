"""Sequences to micro-batches in which a common beginning is computed once and nothing is padded.

The linear layers run on a flat array of tokens in which a prefix that several sequences share
stands once: each sequence is a path of indices into that array. Attention alone gathers paths of
like length into a right-padded block, where causal order makes a mask needless, and each token
takes its output from the path that owns it. Neighbours: `learner.py` and `sft.py` bring sequences
and read the loss positions; `models/transformer.py` calls `attend`. Left out: sharing of the
attention of a common prefix, which is small beside the linear layers at this project's lengths.

Legend: N packed tokens, T predicted tokens, P paths of a block, L its length, S slots of all
blocks, H query heads, K key and value heads, d head dimension.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

# A path joins a block while it fills this share of the block's longest.
MIN_FILL_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class Branch:
    """One sequence. `trained` is 1 where a token's own prediction counts; the first cannot.

    `start` is where the sequence begins in the caller's arrays of all tokens.
    """

    token_ids: Sequence[int] | npt.NDArray[Any]
    trained: Sequence[int] | npt.NDArray[Any]
    start: int


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Packed tokens, how to attend over them, and what they predict.

    Shapes: `token_ids_N`, `positions_N`, `owner_N` (N,); `blocks` (P, L) each; `predictor_T`
    (whose hidden state predicts), `target_T` (the token predicted), `source_T` (the target's place
    in the caller's arrays) (T,). All int64.
    """

    token_ids_N: Tensor
    positions_N: Tensor
    owner_N: Tensor
    blocks: tuple[Tensor, ...]
    predictor_T: Tensor
    target_T: Tensor
    source_T: Tensor

    def attend(self, layer: int, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor) -> Tensor:
        """Causal attention along every path; gives (N, H, d)."""
        tokens, heads, dim = q_NHd.shape
        flat = [x.flatten(1) for x in (q_NHd, k_NKd, v_NKd)]
        with torch.autocast("cpu", enabled=False):
            if k_NKd.dtype is not v_NKd.dtype or v_NKd.dtype is torch.bfloat16:
                # The CPU kernel's backward is slower in bfloat16 than in float32.
                flat = [x.float() for x in flat]
            outputs = [_attend_block(paths_PL, flat, dim) for paths_PL in self.blocks]
            out_SD = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            return functional.embedding(self.owner_N, out_SD).view(tokens, heads, dim)


def pack(families: Iterable[Sequence[Branch]], *, microbatch_tokens: int) -> Iterator[Microbatch]:
    """Pack families of sequences that may share beginnings, such as groups of one prompt.

    Within a family any common prefix is shared, sampled tokens too. A micro-batch holds at most
    `microbatch_tokens` packed tokens, or one longer sequence. Inputs behind the last trained
    position are cut, for nothing reads them; a sequence without one is left out.
    """
    packer = _Packer()
    for family in families:
        inputs = [(_cut_input(branch), branch) for branch in family if np.any(branch.trained)]
        # In lexicographic order a sequence's longest shared prefix is the one with its neighbour.
        inputs.sort(key=lambda pair: pair[0].tolist())
        packer.begin_family()
        for ids, branch in inputs:
            shared = packer.count_shared(ids)
            if packer.size and packer.size + len(ids) - shared > microbatch_tokens:
                yield packer.finish()
                packer, shared = _Packer(), 0
            packer.add(ids, shared, branch)
    if packer.size:
        yield packer.finish()


def _cut_input(branch: Branch) -> npt.NDArray[np.int64]:
    assert len(branch.token_ids) == len(branch.trained), "ids and marks differ in length"
    assert not branch.trained[0], "nothing precedes the first token, so nothing predicts it"
    last = int(np.flatnonzero(branch.trained)[-1])
    return np.asarray(branch.token_ids[:last], dtype=np.int64)


class _Packer:
    """A micro-batch in the making."""

    def __init__(self) -> None:
        self.size = 0
        self._ids: list[npt.NDArray[np.int64]] = []
        self._positions: list[npt.NDArray[np.int64]] = []
        self._paths: list[npt.NDArray[np.int64]] = []
        self._owned: list[int] = []
        self._predictors: list[npt.NDArray[np.int64]] = []
        self._targets: list[npt.NDArray[np.int64]] = []
        self._sources: list[npt.NDArray[np.int64]] = []
        self._previous = np.empty(0, np.int64)

    def begin_family(self) -> None:
        self._previous = np.empty(0, np.int64)

    def count_shared(self, ids: npt.NDArray[np.int64]) -> int:
        """How many first tokens the sequence has in common with the one before it."""
        bound = min(len(ids), len(self._previous))
        differs = np.flatnonzero(ids[:bound] != self._previous[:bound])
        return int(differs[0]) if len(differs) else bound

    def add(self, ids: npt.NDArray[np.int64], shared: int, branch: Branch) -> None:
        """Append the tokens that are not shared, and the whole sequence as a path."""
        fresh = np.arange(self.size, self.size + len(ids) - shared)
        path = np.concatenate((self._paths[-1][:shared], fresh)) if shared else fresh
        places = np.flatnonzero(branch.trained)
        self._ids.append(ids[shared:])
        self._positions.append(np.arange(shared, len(ids)))
        self._paths.append(path)
        self._owned.append(shared)
        self._predictors.append(path[places - 1])
        self._targets.append(np.asarray(branch.token_ids, dtype=np.int64)[places])
        self._sources.append(branch.start + places)
        self.size += len(fresh)
        self._previous = ids

    def finish(self) -> Microbatch:
        blocks, owner_N = self._lay_out_blocks()
        return Microbatch(
            token_ids_N=torch.from_numpy(np.concatenate(self._ids)),
            positions_N=torch.from_numpy(np.concatenate(self._positions)),
            owner_N=torch.from_numpy(owner_N),
            blocks=blocks,
            predictor_T=torch.from_numpy(np.concatenate(self._predictors)),
            target_T=torch.from_numpy(np.concatenate(self._targets)),
            source_T=torch.from_numpy(np.concatenate(self._sources)),
        )

    def _lay_out_blocks(self) -> tuple[tuple[Tensor, ...], npt.NDArray[np.int64]]:
        """Paths by falling length into blocks, and the slot from which each token reads."""
        owner_N = np.empty(self.size, np.int64)
        blocks: list[Tensor] = []
        order = sorted(range(len(self._paths)), key=lambda i: -len(self._paths[i]))
        slots = 0
        while order:
            length = len(self._paths[order[0]])
            count = sum(1 for i in order if len(self._paths[i]) >= MIN_FILL_RATIO * length)
            # Padding reads token 0; its outputs are read by nobody, so its gradient is zero.
            block_PL = np.zeros((count, length), np.int64)
            for row, index in enumerate(order[:count]):
                path, owned = self._paths[index], self._owned[index]
                block_PL[row, : len(path)] = path
                first = slots + row * length
                owner_N[path[owned:]] = np.arange(first + owned, first + len(path))
            blocks.append(torch.from_numpy(block_PL))
            slots += count * length
            order = order[count:]
        return tuple(blocks), owner_N


def _attend_block(paths_PL: Tensor, flat: Sequence[Tensor], dim: int) -> Tensor:
    """Attention of one block; gives (P * L, H * d).

    `embedding` is a gather whose backward adds rows much faster than that of indexing.
    """
    paths, length = paths_PL.shape
    q_PHLd, k_PKLd, v_PKLd = (
        functional.embedding(paths_PL, x).view(paths, length, -1, dim).transpose(1, 2) for x in flat
    )
    out_PHLd = functional.scaled_dot_product_attention(
        q_PHLd, k_PKLd, v_PKLd, is_causal=True, enable_gqa=q_PHLd.shape[1] != k_PKLd.shape[1]
    )
    return out_PHLd.transpose(1, 2).reshape(paths * length, -1)
