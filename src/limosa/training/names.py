"""The names that a run file may use, without torch: `limosa check` reads them.

The tables themselves are `losses.LOSSES`, `advantages.ADVANTAGES` and `rewards.NORMALIZATIONS`; a
test holds that they agree with these tuples.
"""

LOSS_NAMES: tuple[str, ...] = ("grpo", "dapo", "dr_grpo", "gspo", "cispo")
ADVANTAGE_NAMES: tuple[str, ...] = ("grpo", "mean", "leave_one_out")
NORMALIZATION_NAMES: tuple[str, ...] = ("none", "zscore", "minmax")
