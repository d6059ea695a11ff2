"""Which slot a request gets, what of it stays computed, and that growing keeps what was there."""

import pytest
import torch

from limosa.inference.batch import Copy
from limosa.inference.cache import KvCache
from limosa.inference.slots import SlotTable, to_ids
from limosa.models.config import TransformerConfig


def take(table, name, ids):
    slot = table.take(name, to_ids(ids))
    if slot is not None:
        table.computed_S[slot] = len(ids)  # as if a step had run
    return slot


def test_the_longest_idle_conversation_makes_room():
    table = SlotTable(3, 64)
    slots = {name: take(table, name, [1, 2, i]) for i, name in enumerate("abc")}
    assert table.take("d", to_ids([5])) is None  # all are busy
    for name in "bca":
        table.retire(name, keep=True)
    assert table.idle_conversations == ["b", "c", "a"]
    assert take(table, "b", [1, 2, 0]) == slots["b"]  # back in time
    assert take(table, "d", [5]) == slots["c"]
    assert table.evictions == 1
    table.check_integrity({"b": slots["b"], "d": slots["c"]})
    with pytest.raises(AssertionError):
        table.check_integrity({})


def test_a_freed_slot_goes_to_who_shares_most_of_it():
    table = SlotTable(4, 64)
    for index, ids in enumerate(([1, 1, 1, 1], [2, 2, 2, 2], [2, 2, 3, 3])):
        assert take(table, f"c{index}", ids) == index
    for index in range(3):
        table.retire(f"c{index}", keep=False)
    assert table.take("new", to_ids([2, 2, 2, 9])) == 1
    assert table.computed_S[1] == 3
    table.invalidate()
    assert table.take("other", to_ids([2, 2, 3, 3])) == 0  # nothing is computed: lowest first


def test_the_last_token_is_never_taken_as_computed():
    table = SlotTable(1, 64)
    take(table, "a", [1, 2, 3])
    table.retire("a", keep=True)
    assert table.take("a", to_ids([1, 2, 3])) == 0 and table.computed_S[0] == 2


def test_growing_keeps_keys_and_values():
    config = TransformerConfig(61, 48, 64, 2, 6, 2, 8)
    cache = KvCache(config, torch.device("cpu"), 100)
    cache.reserve(2, 10)
    cache.keys[:, 1, :10] = torch.randn(2, 10, 2, 8)
    kept = cache.keys[:, 1, :10].clone()
    cache.copy(Copy(1, 0, 2, 7))
    cache.reserve(5, 90)
    assert cache.keys.shape[1] == 5 and 90 <= cache.keys.shape[2] <= 100
    assert torch.equal(cache.keys[:, 1, :10], kept)
    assert torch.equal(cache.keys[:, 0, 2:7], kept[:, 2:7])
    assert cache.keys[:, 0, 7:].abs().sum() == 0 and torch.isfinite(cache.values).all()
    cache.flat_keys[1][0] = 4.0  # the flat views are of the new tensors
    assert (cache.keys[1, 0, 0] == 4.0).all()
