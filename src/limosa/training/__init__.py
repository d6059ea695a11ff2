"""Supervised fine-tuning and reinforcement learning: conversations and groups become weights.

Floor 3: meets the sampler and the dispatcher only through `base/interfaces.py`. `names.py` is all
that a check of a run file needs; everything else may import torch.
"""
