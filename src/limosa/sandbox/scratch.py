"""The folder of a provider on the host; what a killed owner left there, the next provider removes.

The owner holds a lock on a file in the folder; the kernel drops it when the owner dies, however it
dies. Boxes die with their owner, but for one in the first moments of its start: bubblewrap's inner
half then waits for ever for its killed outer half, before it runs anything. Used by
`bubblewrap.py`. Leaves out folders without the lock's file, which are somebody else's.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "limosa-boxes-"
LOCK_FILE = "lock"


class ScratchFolder:
    """A fresh private folder below `parent`, the system's folder for such things by default."""

    def __init__(self, parent: Path | None) -> None:
        parent = (parent or Path(tempfile.gettempdir())).absolute()
        sweep_stale(parent)
        self._folder = tempfile.TemporaryDirectory(
            prefix=PREFIX, dir=parent, ignore_cleanup_errors=True
        )
        self.path = Path(self._folder.name)
        # Locked before it has the name that the sweep looks for.
        unnamed = self.path / f"{LOCK_FILE}.part"
        self._lock = unnamed.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK_FILE)

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._folder.cleanup()
        self._lock.close()


def sweep_stale(parent: Path) -> None:
    """Remove the folders whose owner is dead, and end what is left of boxes; only this user's."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / LOCK_FILE).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_orphans(folder)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # without a lock, gone meanwhile, or in use


def end_orphans(folder: Path) -> None:
    """Kill every bubblewrap whose command line mounts something of a folder."""
    mounted = os.fsencode(folder) + b"/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Opened before the look, so that it is the process looked at which is killed.
            fd = os.pidfd_open(int(process.name))
            try:
                is_bubblewrap = (process / "comm").read_bytes() == b"bwrap\n"
                if is_bubblewrap and mounted in (process / "cmdline").read_bytes():
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
