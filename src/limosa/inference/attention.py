"""The attention strategy of one step: write new keys and values, then attend over the slots.

Neighbours: `cache.py` holds the tensors, `models/transformer.py` calls `attend` once a layer. Left
out: anything sparse or quantised.

Legend: N packed tokens (M decoding ones, then prefills), H query heads, K key and value heads,
G = H / K, d head dimension, T positions, W slots of one run, P new tokens of one prefill.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from limosa.inference.batch import Batch, Prefill
from limosa.inference.cache import KvCache

# Positions that one attention call costs as much as: below that, masking beats another call.
CALL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring slots that are attended over as one view; rows of unused ones are padding."""

    first_slot: int
    last_slot: int
    first_row: int
    length: int


def split_runs(slots: list[int], lengths: list[int]) -> list[Run]:
    """Cover ascending decoding slots by runs, weighing masked positions against calls."""
    runs: list[Run] = []
    for slot, length in zip(slots, lengths, strict=True):
        row = 0
        if runs:
            last = runs[-1]
            longest = max(last.length, length)
            before = _count_slots(last) * last.length
            wasted = (slot - last.first_slot + 1) * longest - before - length
            if wasted <= CALL_TOKENS:
                runs[-1] = Run(last.first_slot, slot, last.first_row, longest)
                continue
            row = last.first_row + _count_slots(last)
        runs.append(Run(slot, slot, row, length))
    return runs


class StepAttention:
    """Attention over the cache for one batch; masks are made once and serve every layer."""

    def __init__(self, batch: Batch, cache: KvCache) -> None:
        self.cache = cache
        device = cache.device
        self.decoding = len(batch.decode_slots_M)
        slots, starts = batch.decode_slots_M.tolist(), batch.decode_starts_M.tolist()
        self.runs = split_runs(slots, [start + 1 for start in starts])
        rows = self.runs[-1].first_row + _count_slots(self.runs[-1]) if self.runs else 0
        self.padded_rows = rows if rows > self.decoding else 0
        row_of = _place_rows(self.runs, slots)
        self.rows_M = torch.tensor(row_of, dtype=torch.int64, device=device)
        self.biases = self._make_biases(row_of, starts, rows)
        self.prefills = batch.prefills
        self.masks = [_make_mask(p, device) for p in batch.prefills]
        capacity = cache.keys.shape[2]
        cells = [slot * capacity + start for slot, start in zip(slots, starts, strict=True)]
        for prefill in batch.prefills:
            first = prefill.slot * capacity + prefill.start
            cells.extend(range(first, first + len(prefill.ids_P)))
        self.cells_N = torch.tensor(cells, dtype=torch.int64, device=device)

    def attend(self, layer: int, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor) -> Tensor:
        """Store this layer's keys and values, and give what the queries attend to, (N, H, d)."""
        tokens = q_NHd.shape[0]
        self.cache.flat_keys[layer].index_copy_(0, self.cells_N, k_NKd.reshape(tokens, -1))
        self.cache.flat_values[layer].index_copy_(0, self.cells_N, v_NKd.reshape(tokens, -1))
        keys_STKd, values_STKd = self.cache.keys[layer], self.cache.values[layer]
        parts = [self._decode(q_NHd[: self.decoding], keys_STKd, values_STKd)] if self.runs else []
        row = self.decoding
        for prefill, mask in zip(self.prefills, self.masks, strict=True):
            count = len(prefill.ids_P)
            end = prefill.start + count
            keys_TKd = keys_STKd[prefill.slot, :end]
            values_TKd = values_STKd[prefill.slot, :end]
            parts.append(_attend_row(q_NHd[row : row + count], keys_TKd, values_TKd, mask))
            row += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, q_MHd: Tensor, keys_STKd: Tensor, values_STKd: Tensor) -> Tensor:
        heads, head_dim = q_MHd.shape[1:]
        if self.padded_rows:
            padded = q_MHd.new_zeros(self.padded_rows, heads, head_dim)
            q_MHd = padded.index_copy_(0, self.rows_M, q_MHd)
        kv_heads = keys_STKd.shape[2]
        # The queries that share a key head become rows of one product.
        q_MKGd = q_MHd.view(-1, kv_heads, heads // kv_heads, head_dim)
        outs = []
        for run, bias in zip(self.runs, self.biases, strict=True):
            span = slice(run.first_slot, run.last_slot + 1)
            out_WKGd = scaled_dot_product_attention(
                q_MKGd[run.first_row : run.first_row + _count_slots(run)],
                keys_STKd[span, : run.length].transpose(1, 2),
                values_STKd[span, : run.length].transpose(1, 2),
                attn_mask=bias,
            )
            outs.append(out_WKGd.reshape(-1, heads, head_dim))
        out_MHd = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out_MHd.index_select(0, self.rows_M) if self.padded_rows else out_MHd

    def _make_biases(self, row_of: list[int], starts: list[int], rows: int) -> list[Tensor]:
        ends = [0] * rows  # padding sees one position, so that its softmax is defined
        for row, start in zip(row_of, starts, strict=True):
            ends[row] = start
        device = self.cache.device
        ends_M1 = torch.tensor(ends, device=device)[:, None]
        biases = []
        for run in self.runs:
            part_W1 = ends_M1[run.first_row : run.first_row + _count_slots(run)]
            hidden_WT = torch.arange(run.length, device=device) > part_W1
            bias_WT = torch.zeros(hidden_WT.shape, device=device)
            biases.append(bias_WT.masked_fill_(hidden_WT, -torch.inf)[:, None, None, :])
        return biases


def _count_slots(run: Run) -> int:
    return run.last_slot - run.first_slot + 1


def _make_mask(prefill: Prefill, device: torch.device) -> Tensor | None:
    """Causal with an offset; None where the prefill begins the sequence and plain causal does."""
    count = len(prefill.ids_P)
    if prefill.start == 0:
        return None
    mask_PT = torch.full((count, prefill.start + count), -torch.inf, device=device)
    return mask_PT.triu_(prefill.start + 1)


def _attend_row(
    q_PHd: Tensor, keys_TKd: Tensor, values_TKd: Tensor, mask_PT: Tensor | None
) -> Tensor:
    out_HPd = scaled_dot_product_attention(
        q_PHd.transpose(0, 1)[None],
        keys_TKd.transpose(0, 1)[None],
        values_TKd.transpose(0, 1)[None],
        attn_mask=mask_PT,
        is_causal=mask_PT is None,
        enable_gqa=True,
    )[0]
    return out_HPd.transpose(0, 1)


def _place_rows(runs: list[Run], slots: list[int]) -> list[int]:
    """The row of each decoding slot among the runs' rows."""
    rows, index = [], 0
    for slot in slots:
        while slot > runs[index].last_slot:
            index += 1
        rows.append(runs[index].first_row + slot - runs[index].first_slot)
    return rows
