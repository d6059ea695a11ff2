"""Environment versions: one hash over everything that decides what a task's reward means.

Domains compute it when they make an environment; records hold only the hash. Leaves out tags.
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from limosa.base.task import Task

# Raised whenever the meaning of the hashed fields changes.
SCHEMA = 1


def environment_version(
    image_digest: str, task: Task, verifier_source: str, policy: Mapping[str, Any]
) -> str:
    """Hex sha256 over image, task, verifier source, and resource and network policy.

    `image_digest` is empty where a domain needs no sandbox; `policy` holds plain JSON values.
    """
    parts = {
        "schema": SCHEMA,
        "image": image_digest,
        "task": task.content_hash,
        "verifier": hashlib.sha256(verifier_source.encode()).hexdigest(),
        "policy": dict(policy),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def read_source(*modules: ModuleType) -> str:
    """The source text of modules, in the order given: what `verifier_source` is made of."""
    return "\n".join(inspect.getsource(module) for module in modules)
