"""The one table of domains: name to class. Adding a domain is a file and a line here.

`cli` and `rollout` look domains up by name; a module is imported when its domain is asked for.
"""

import importlib
from collections.abc import Mapping

from limosa.base.errors import UserError
from limosa.base.interfaces import Domain

DOMAINS: Mapping[str, str] = {
    "code_engineering": "limosa.domains.code_engineering:CodeEngineering",
    "long_horizon_agent": "limosa.domains.long_horizon_agent:LongHorizonAgent",
    "knowledge_research": "limosa.domains.knowledge_research:KnowledgeResearch",
}


def load_domain(name: str) -> Domain:
    """The domain of a name. Raises: UserError listing the known names."""
    if name not in DOMAINS:
        hint = f"known domains: {', '.join(DOMAINS)}"
        raise UserError(f"domain {name!r} is not known", hint=hint)
    module, class_name = DOMAINS[name].split(":")
    domain: Domain = getattr(importlib.import_module(module), class_name)()
    return domain


def known_domains() -> dict[str, tuple[str, ...]]:
    """Every domain's name with its stages, easiest first."""
    return {name: tuple(load_domain(name).stages) for name in DOMAINS}
