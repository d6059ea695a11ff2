from dataclasses import replace

import pytest

from limosa.base.task import Task
from limosa.domains import versions
from limosa.domains.versions import environment_version, read_source

TASK = Task("code_engineering", "easy", 1, "Do it.", {"files": {"amber.txt": "cedar"}})
POLICY = {"network": False, "tool_timeout_s": 5.0}
BASE = environment_version("digest", TASK, "def verify(): ...", POLICY)


def test_equal_parts_give_an_equal_hash():
    again = Task.from_json(TASK.to_json())
    shuffled = dict(reversed(POLICY.items()))
    assert environment_version("digest", again, "def verify(): ...", shuffled) == BASE
    assert len(BASE) == 64
    assert int(BASE, 16) >= 0


@pytest.mark.parametrize(
    "other",
    [
        environment_version("other", TASK, "def verify(): ...", POLICY),
        environment_version("digest", replace(TASK, seed=2), "def verify(): ...", POLICY),
        environment_version("digest", TASK, "def verify(): pass", POLICY),
        environment_version("digest", TASK, "def verify(): ...", {**POLICY, "network": True}),
    ],
)
def test_every_part_counts(other: str):
    assert other != BASE


def test_the_schema_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "SCHEMA", versions.SCHEMA + 1)  # as an edit of the file would
    assert environment_version("digest", TASK, "def verify(): ...", POLICY) != BASE


def test_source_is_the_text_of_the_modules():
    assert "def environment_version" in read_source(versions)
    assert read_source(versions, versions).count("def environment_version") == 2
