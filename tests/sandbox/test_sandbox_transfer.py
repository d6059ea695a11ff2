import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.errors import SandboxError, UserError
from limosa.sandbox.bubblewrap import BubblewrapSandbox
from limosa.sandbox.limits import Limits
from limosa.sandbox.transfer import TransferError, get_files, put_files, split_path

FEW = Limits(put_bytes=100, transfer_files=3)


@pytest.fixture
def work_fd(tmp_path: Path) -> int:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("host's own")
    return os.open(tmp_path / "work", os.O_PATH | os.O_DIRECTORY)


async def test_files_pass_in_and_out_of_a_box(box: BubblewrapSandbox) -> None:
    files = {
        "a.txt": b"one\n",
        "src/deep/b.bin": bytes(range(256)),
        "run.sh": b"#!/bin/sh\necho hi",
    }
    await box.put(files)
    result = await box.exec("cat a.txt; ./run.sh; id -u; stat -c %u:%a a.txt src/deep run.sh")
    assert result.output == "one\nhi\n1000\n1000:644\n1000:755\n1000:755\n"
    assert await box.get() == dict(sorted(files.items()))
    await box.shell("echo two >> a.txt; rm run.sh; mkdir empty; echo new > src/c")
    assert await box.get() == {
        "a.txt": b"one\ntwo\n",
        "src/c": b"new\n",
        "src/deep/b.bin": bytes(range(256)),
    }


async def test_traps_in_a_box_lead_nowhere(box: BubblewrapSandbox) -> None:
    await box.shell(
        "ln -s /etc/passwd link; ln -s / root; ln -s .. up; ln -s loop loop; mkfifo pipe; "
        "ln -s /dev/zero zero; mkdir d; ln -s / d/root; echo x > d/file; ln d/file hard"
    )
    assert await box.get() == {"d/file": b"x\n", "hard": b"x\n"}
    for path in ("root/tmp/x", "d/root/x", "up/x"):
        with pytest.raises(TransferError, match="cannot be written"):
            await box.put({path: b"x"})
    await box.put({"link": b"mine", "pipe": b"mine too"})
    found = await box.get()
    assert (found["link"], found["pipe"]) == (b"mine", b"mine too")
    assert "agent" in (await box.exec("cat /etc/passwd")).output


async def test_a_full_box_is_said_to_be_full(box: BubblewrapSandbox) -> None:
    await box.exec("head -c 60000000 /dev/zero > big; head -c 9000000 /dev/zero > more")
    with pytest.raises(TransferError, match="No space left"):
        await box.put({"x": b"x" * 1000})
    with pytest.raises(TransferError, match="more than 1048576 bytes"):
        await box.get()


def test_links_and_special_files_are_neither_followed_nor_opened(
    work_fd: int, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(work / "socket"))
    (work / "file").write_bytes(b"x")
    assert get_files(work_fd, Limits(), 10) == {"file": b"x"}
    put_files(work_fd, {"link": b"new"}, Limits())
    assert (tmp_path / "secret").read_text() == "host's own"
    with pytest.raises(TransferError):
        put_files(work_fd, {"folder/secret": b"new"}, Limits())
    assert (tmp_path / "secret").read_text() == "host's own"


def test_bytes_number_and_depth_are_bounded(work_fd: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too much"):
        put_files(work_fd, {"x": b"x" * 101}, FEW)
    with pytest.raises(UserError, match="too much"):
        put_files(work_fd, {str(number): b"" for number in range(4)}, FEW)
    assert get_files(work_fd, FEW, 0) == {}
    put_files(work_fd, {"a": b"12345", "b": b"67890"}, FEW)
    assert get_files(work_fd, FEW, 10) == {"a": b"12345", "b": b"67890"}
    with pytest.raises(TransferError, match="more than 9 bytes"):
        get_files(work_fd, FEW, 9)
    put_files(work_fd, {"c": b"", "d": b""}, FEW)
    with pytest.raises(TransferError, match="too many files"):
        get_files(work_fd, FEW, 10)
    (tmp_path / "work" / "a").unlink()
    os.truncate(tmp_path / "work" / "b", 1 << 40)
    with pytest.raises(TransferError, match="more than 100 bytes"):
        get_files(work_fd, FEW, 100)
    os.truncate(tmp_path / "work" / "b", 0)
    (tmp_path / "work" / "/".join(["d2"] * 70)).mkdir(parents=True)
    with pytest.raises(TransferError, match="deeper"):
        get_files(work_fd, Limits(), 100)


def test_transfers_leave_no_descriptor_open(work_fd: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    put_files(work_fd, {f"{number % 7}/{number}": b"x" for number in range(50)}, Limits())
    for max_bytes in (50, 49):
        try:
            assert len(get_files(work_fd, Limits(), max_bytes)) == 50
        except TransferError:
            assert max_bytes == 49
    with pytest.raises(TransferError):
        put_files(work_fd, {"1": b""}, Limits())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/passwd", "..", "a/../b", "./a", "a//b", "a/", "a\0b", "a/" * 70 + "a"]
)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(UserError):
        split_path(path)


@given(st.text(max_size=20))
def test_accepted_paths_stay_below(path: str) -> None:
    try:
        parts = split_path(path)
    except UserError:
        return
    assert "/".join(parts) == path
    assert os.path.normpath(path) == path and not path.startswith(("/", ".."))


async def test_a_dead_box_gives_and_takes_nothing(box: BubblewrapSandbox) -> None:
    await box.put({"x": b"x"})
    await box.kill()
    with pytest.raises(SandboxError, match="dead"):
        await box.get()
    with pytest.raises(SandboxError, match="dead"):
        await box.put({"y": b"y"})
