"""The domain that the tour shows is whole: it registers, and it passes the gate."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from limosa.base.interfaces import Domain
from limosa.base.task import make_seed
from limosa.base.testing import FakeProvider
from limosa.domains import table
from limosa.quality.finding import Status
from limosa.quality.gate import apply_gate, check_domain

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")


def test_the_tours_domain_is_as_clean_as_make_test_wants_it(tmp_path: Path) -> None:
    file = tmp_path / "spelling.py"
    file.write_text(re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)[0], encoding="utf-8")
    for check in (["check"], ["format", "--check"]):
        options = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
        subprocess.run([sys.executable, "-m", "ruff", *check, *options, str(file)], check=True)


async def test_the_tours_domain_passes_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)[0]
    name, target = re.findall(r'^"(\w+)": "limosa\.domains\.([\w:]+)",$', TOUR, re.MULTILINE)[0]
    (tmp_path / "spelling.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    # The file lies outside the package here, so its line names it without the package.
    monkeypatch.setattr(table, "DOMAINS", {**table.DOMAINS, name: target})
    domain: Domain = table.load_domain(name)
    assert table.known_domains()[name] == ("only",)
    tasks = [domain.make_task("only", make_seed("train", index)) for index in range(5)]
    held_out = {domain.make_task("only", make_seed("eval", i)).data["word"] for i in range(99)}
    trained = {domain.make_task("only", make_seed("train", i)).data["word"] for i in range(999)}
    assert not held_out & trained
    finding = await check_domain(domain, tasks, FakeProvider(), jobs=2)
    apply_gate([finding], 0.0)
    assert finding.count(Status.SOUND) == 5
    sys.modules.pop("spelling")
