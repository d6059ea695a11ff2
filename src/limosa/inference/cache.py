"""Keys and values of every slot, in tensors that grow with what is used.

Neighbours: `slots.py` says what the positions mean, `attention.py` writes and reads them. Left
out: offloading and reduced precision.

Legend: Y layers, S slots, T positions, K key and value heads, d head dimension.
"""

import torch
from torch import Tensor

from limosa.inference.batch import Copy
from limosa.models.config import TransformerConfig


class KvCache:
    """Contiguous keys and values, position-major: a token's heads lie side by side.

    That order makes a write one row copy, and was the fastest to attend over.
    """

    def __init__(self, config: TransformerConfig, device: torch.device, max_length: int) -> None:
        self.config = config
        self.device = device
        self.max_length = max_length
        self.clear()

    def clear(self) -> None:
        """Drop everything and the memory with it."""
        self._allocate(0, 0)

    def reserve(self, slots: int, length: int) -> None:
        """Have room for `slots` of `length`; what was there stays."""
        old_slots, old_length = self.keys.shape[1:3]
        if slots <= old_slots and length <= old_length:
            return
        if length > old_length:
            length = min(max(length, old_length * 3 // 2, 64), self.max_length)
        keys, values = self.keys, self.values
        self._allocate(max(slots, old_slots), max(length, old_length))
        self.keys[:, :old_slots, :old_length] = keys
        self.values[:, :old_slots, :old_length] = values

    def copy(self, copy: Copy) -> None:
        """Copy positions of one slot to another, in all layers."""
        span = slice(copy.start, copy.stop)
        self.keys[:, copy.target, span] = self.keys[:, copy.source, span]
        self.values[:, copy.target, span] = self.values[:, copy.source, span]

    @property
    def size_bytes(self) -> int:
        """Memory of keys and values."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def _allocate(self, slots: int, length: int) -> None:
        config = self.config
        heads = (config.num_key_value_heads, config.head_dim)
        shape = (config.num_hidden_layers, slots, length, *heads)
        # Zeros, not empty: masked positions are multiplied by 0 and must be finite.
        self.keys = torch.zeros(shape, dtype=torch.float32, device=self.device)
        self.values = torch.zeros(shape, dtype=torch.float32, device=self.device)
        width = config.num_key_value_heads * config.head_dim
        flat = (config.num_hidden_layers, slots * length, width)
        self.flat_keys: tuple[Tensor, ...] = self.keys.view(flat).unbind(0)
        self.flat_values: tuple[Tensor, ...] = self.values.view(flat).unbind(0)
