import errno
import json
import math
import os
import resource
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.errors import UserError
from limosa.store.journal import Journal, read_journal, to_json_text, write_atomically

LINES = [{"kind": "a", "text": "ü\n"}, {"kind": "b"}, {"kind": "c", "n": 3}]


@given(cut=st.integers(min_value=0, max_value=200))
def test_any_cut_of_the_file_reads_as_whole_lines_and_a_torn_rest(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    journal = Journal(path)
    for line in LINES:
        journal.append(line)
    journal.close()
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = data.count(b"\n")
    torn = len(data) - (data.rfind(b"\n") + 1)

    read = read_journal(path)
    assert list(read.lines) == LINES[:whole]
    assert read.torn_bytes == torn

    again = Journal(path)
    assert again.cut_bytes == torn
    again.append({"kind": "next"})
    again.close()
    read = read_journal(path)
    assert list(read.lines) == [*LINES[:whole], {"kind": "next"}]
    assert read.torn_bytes == 0


def test_a_torn_line_longer_than_the_search_block_is_cut_whole(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"x" * 200_000)
    journal = Journal(path)
    journal.close()
    assert journal.cut_bytes == 200_000
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"a":1}\nnot json\n{"a":2}\n')
    with pytest.raises(UserError, match=r"j\.jsonl:2.*\n.*hint"):
        read_journal(path)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="hint"):
        read_journal(tmp_path / "none.jsonl")


def test_floats_that_json_cannot_say_become_text():
    value = {"loss": math.nan, "deep": [{"x": -math.inf}, (1.5,)], "path": "nan"}
    assert json.loads(to_json_text(value)) == {
        "loss": "nan",
        "deep": [{"x": "-inf"}, [1.5]],
        "path": "nan",
    }


def test_an_atomic_write_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "state.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_atomically(path, "old")

    def fail(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)  # a test cannot fill the disk
    with pytest.raises(OSError, match=r"No space left on device: '.*/state\.json'"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_cut_by_a_full_disk_is_taken_back(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    journal.append({"n": 1})
    size = (tmp_path / "j.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:  # a bound on the file's size cuts the write short as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
        with pytest.raises(OSError, match=r"j\.jsonl"):
            journal.append({"text": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    journal.append({"n": 2})
    journal.close()
    assert read_journal(tmp_path / "j.jsonl").lines == ({"n": 1}, {"n": 2})
