"""The persistent shell of a box: directory, variables and background jobs survive a command.

A bash loop reads a command from descriptor 8, evaluates it with its input empty and its output in
a pipe, and writes a status to descriptor 9. Each command has a number that cannot be guessed, so
that a forged or late status of an earlier command is never taken for the current one's; both
descriptors are closed for the command itself. A command that ends the shell (`exit 3`) gives its
exit code, and the next command starts a new shell. Used by `bubblewrap.py`. Leaves out terminals:
a program that wants one runs without.
"""

import asyncio
import secrets

from limosa.base.errors import SandboxError
from limosa.base.interfaces import ExecResult
from limosa.sandbox.box import KILL_PAUSES_S, Box
from limosa.sandbox.limits import Limits, to_ulimit
from limosa.sandbox.pipes import DRAIN_READS, BoundedOutput, Feed, StatusLines, close_fds

TIMED_OUT_CODE = 124
SIGNALLED_CODE = 128
KILLED_CODE = 137
START_S = 20.0
END = b"end "
RESTART_NOTICE = "[the shell ended; the next command starts a new one]\n"
# The loop itself: `eval` under redirections that bash undoes afterwards, whatever the command did
# to its own descriptors.
LOOP = (
    "while builtin read -r -d '' -u 8 __limosa_n && IFS= builtin read -r -d '' -u 8 __limosa_c; "
    'do builtin eval "$__limosa_c" </dev/null >&7 2>&7 7>&- 8<&- 9>&-; '
    'builtin printf "%s %s\\n" "$__limosa_n" "$?" >&9; done'
)


class Shell:
    """One shell process at a time in a box, started when first needed."""

    def __init__(self, box: Box, limits: Limits) -> None:
        self._box = box
        self._limits = limits
        self._command_fd = -1
        self._output_fd = -1
        self._status: StatusLines | None = None
        self._pids: set[int] = set()

    async def run(self, command: str, *, timeout_s: float) -> ExecResult:
        """Evaluate a command. Raises: SandboxError where the box is dead."""
        if "\0" in command:
            return ExecResult(2, "bash: a command cannot contain a NUL character\n")
        await self._box.settle()
        if self._status is not None and has_ended(self._status):
            self.close()
        before = self._box.processes()
        try:
            if self._status is None:
                line, output = await self._start()
                self._pids = self._box.processes() - before
                before = before | self._pids
                if not line or line.startswith(END):
                    return await self._to_result(line, output)
            return await self._evaluate(command, before, timeout_s)
        except BaseException:
            # Cancelled, or the box is dead: nothing that began here may go on.
            self._box.abandon_since(before - self._pids)
            self.close()
            raise

    async def _start(self) -> tuple[bytes | None, BoundedOutput]:
        """Start a shell and wait until it has done nothing once."""
        job = self._box.next_job()
        self._command_fd = self._box.open_fifo(f"{job}.cmd", write=True)
        self._output_fd = self._box.open_fifo(f"{job}.out")
        self._status = StatusLines(self._box.open_fifo(f"{job}.st"))
        self._box.send(
            f"exec 9>$D/{job}.st; {to_ulimit(self._limits)}; "
            f'bash --norc --noprofile -c "$LOOP" bash 8<$D/{job}.cmd 7>$D/{job}.out '
            '>&7 2>&7; echo "end $?" >&9'
        )
        output = BoundedOutput(self._output_fd, self._limits.output_bytes)
        try:
            async with asyncio.timeout(START_S):
                line = await self._exchange(b"start", output, ":")
        except TimeoutError:
            self._box.destroy()
            raise SandboxError(f"the shell did not start within {START_S:g} s") from None
        self._box.remove_files(*(f"{job}.{kind}" for kind in ("cmd", "out", "st")))
        return line, output

    async def _evaluate(self, command: str, before: set[int], timeout_s: float) -> ExecResult:
        """Run a command in the shell that is up; `before` outlives a time-out."""
        number = secrets.token_hex(8).encode()
        output = BoundedOutput(self._output_fd, self._limits.output_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._exchange(number, output, command)
        except TimeoutError:
            return await self._end_late(number, before, output)
        return await self._to_result(line, output)

    async def _end_late(self, number: bytes, before: set[int], output: BoundedOutput) -> ExecResult:
        """End a command that is out of time, and the shell only where it must be."""
        line = await self._interrupt(number, before, output)
        output.drain()
        notice = ""
        if line is None or line.startswith(END):
            await self._box.end_since(before - self._pids)
            self.close()
            notice = RESTART_NOTICE
        await self._box.probe()
        return ExecResult(TIMED_OUT_CODE, output.text() + notice, output.cut_bytes, timed_out=True)

    async def _exchange(
        self, number: bytes, output: BoundedOutput, command: str | None = None
    ) -> bytes | None:
        """Send a command, or none where it was sent, and wait for its status or the shell's end."""
        assert self._status is not None, "no shell was started"
        accepted = (number + b" ", END)
        feed = None
        if command is not None:
            data = number + b"\0" + command.encode(errors="replace") + b"\0"
            feed = Feed(self._command_fd, data)
        return await self._box.wait_status(
            self._status, lambda line: line.startswith(accepted), output, feed
        )

    async def _interrupt(
        self, number: bytes, before: set[int], output: BoundedOutput
    ) -> bytes | None:
        """Kill what a command started, so that the shell goes on; None where it does not."""
        for pause_s in KILL_PAUSES_S:
            self._box.kill_since(before)
            try:
                async with asyncio.timeout(pause_s):
                    line = await self._exchange(number, output)
            except TimeoutError:
                continue
            await self._box.end_since(before)
            return line
        return None

    async def _to_result(self, line: bytes | None, output: BoundedOutput) -> ExecResult:
        """What a status line says; an ended shell is forgotten, a suspicious end probed."""
        output.drain()
        code = parse_code(line.split()[-1] if line else b"")
        notice = ""
        if line is None or line.startswith(END):
            self.close()
            notice = RESTART_NOTICE
        if code >= SIGNALLED_CODE:
            await self._box.probe()
        self._box.check()
        return ExecResult(code, output.text() + notice, output.cut_bytes)

    def close(self) -> None:
        """Forget the shell, and end it where it still runs."""
        if self._box.alive:
            self._box.kill(self._pids)
        if self._status is not None:
            close_fds(self._command_fd, self._output_fd, self._status.fd)
        self._status = None
        self._pids = set()


def has_ended(status: StatusLines) -> bool:
    """Whether a shell reported its end since the last command; late statuses are dropped."""
    for _ in range(DRAIN_READS):
        lines = status.read()
        if any(line.startswith(END) for line in lines):
            return True
        if not lines:
            break
    return status.ended


def parse_code(word: bytes) -> int:
    """An exit code as a status says it; what is none counts as killed."""
    return int(word) if word.isdigit() and len(word) <= 3 else KILLED_CODE
