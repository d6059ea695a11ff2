import subprocess
import sys

from limosa.training.advantages import ADVANTAGES
from limosa.training.losses import LOSSES
from limosa.training.names import ADVANTAGE_NAMES, LOSS_NAMES, NORMALIZATION_NAMES
from limosa.training.rewards import NORMALIZATIONS


def test_names_agree_with_the_tables():
    assert tuple(LOSSES) == LOSS_NAMES
    assert tuple(ADVANTAGES) == ADVANTAGE_NAMES
    assert tuple(NORMALIZATIONS) == NORMALIZATION_NAMES


def test_names_advantages_and_rewards_import_no_torch():
    modules = "limosa.training.names, limosa.training.advantages, limosa.training.rewards"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
