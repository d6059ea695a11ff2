"""The names that a run file may use, gathered from the tables of the rooms; imports no torch."""

from limosa.base.config import KnownNames
from limosa.domains.table import known_domains
from limosa.sandbox.images import known_images
from limosa.training.names import ADVANTAGE_NAMES, LOSS_NAMES, NORMALIZATION_NAMES


def load_known_names() -> KnownNames:
    """Every name that `load_config` accepts."""
    return KnownNames(
        domains=known_domains(),
        images=known_images(),
        normalizations=NORMALIZATION_NAMES,
        losses=LOSS_NAMES,
        advantages=ADVANTAGE_NAMES,
    )
