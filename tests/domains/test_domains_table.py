import subprocess
import sys

import pytest

from limosa.base.errors import UserError
from limosa.domains.table import DOMAINS, known_domains, load_domain


@pytest.mark.parametrize("name", list(DOMAINS))
def test_a_domain_loads_and_makes_tasks_of_its_stages(name: str):
    domain = load_domain(name)
    assert domain.name == name
    for stage in domain.stages:
        task = domain.make_task(stage, 5)
        assert (task.domain, task.stage, task.seed) == (name, stage, 5)
        assert task == domain.make_task(stage, 5)


def test_an_unknown_domain_lists_the_known_ones():
    with pytest.raises(UserError, match="long_horizon_agent") as caught:
        load_domain("code_engineer")
    assert "code_engineer" in caught.value.what


def test_an_unknown_stage_lists_the_known_ones():
    with pytest.raises(UserError, match="easy, medium, hard"):
        load_domain("code_engineering").make_task("hardest", 1)


def test_known_domains_name_their_stages():
    assert known_domains()["code_engineering"] == ("easy", "medium", "hard")
    assert known_domains()["long_horizon_agent"] == ("short_traj", "long_traj")


def test_domains_never_import_torch():
    text = "import sys; from limosa.domains.table import known_domains; known_domains()"
    check = f"{text}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
