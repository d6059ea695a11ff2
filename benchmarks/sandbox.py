"""Speed of the bubblewrap boxes: creation, commands, end, and whole boxes a second.

python benchmarks/sandbox.py [--json] [--boxes 40] [--commands 300]
"""

import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable

import click

from limosa.sandbox.bubblewrap import BubblewrapProvider

IMAGE = "sandbox-code:v3"
FIFTY_MB = "head -c 50000000 /dev/zero | tr '\\0' x"


async def measure_ms(run: Callable[[], Awaitable[object]], number: int) -> dict[str, float]:
    """Median and 95th percentile of the wall time of a call, in milliseconds."""
    times_ms = []
    for _ in range(number):
        start_s = time.perf_counter()
        await run()
        times_ms.append((time.perf_counter() - start_s) * 1e3)
    times_ms.sort()
    return {"p50": times_ms[number // 2], "p95": times_ms[number * 95 // 100]}


async def measure_boxes(boxes: int) -> dict[str, dict[str, float]]:
    """Creation and end of boxes, one after the other."""
    provider = BubblewrapProvider(boxes)
    await (await provider.create(IMAGE)).kill()
    made = []

    async def create() -> None:
        made.append(await provider.create(IMAGE))

    async def kill() -> None:
        await made.pop().kill()

    rows = {
        "create_ms": await measure_ms(create, boxes),
        "kill_ms": await measure_ms(kill, boxes),
    }
    await provider.close()
    return rows


async def measure_commands(commands: int) -> dict[str, dict[str, float]]:
    """Commands and transfers in one box."""
    provider = BubblewrapProvider(1)
    box = await provider.create(IMAGE)
    await box.shell("true")
    files = {f"{number % 10}/{number}": b"x" * 1000 for number in range(100)}
    rows = {
        "shell_echo_ms": await measure_ms(lambda: box.shell("echo hi"), commands),
        "shell_ls_ms": await measure_ms(lambda: box.shell("ls"), commands // 3),
        "exec_echo_ms": await measure_ms(lambda: box.exec("echo hi"), commands // 3),
        "exec_python_ms": await measure_ms(lambda: box.exec(["python3", "-c", ""]), commands // 10),
        "put_100_files_ms": await measure_ms(lambda: box.put(files), commands // 10),
        "get_100_files_ms": await measure_ms(box.get, commands // 10),
        "shell_50_mb_ms": await measure_ms(lambda: box.shell(FIFTY_MB), 5),
    }
    await provider.close()
    return rows


async def measure_throughput(workers: int, boxes: int) -> float:
    """Boxes made, used for one command, and ended a second, by so many workers."""
    provider = BubblewrapProvider(workers)
    await (await provider.create(IMAGE)).kill()

    async def work() -> None:
        for _ in range(boxes // workers):
            box = await provider.create(IMAGE)
            result = await box.exec("echo hi")
            assert result.output == "hi\n", result
            await box.kill()

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    rate = boxes // workers * workers / (time.perf_counter() - start_s)
    await provider.close()
    return rate


async def measure(boxes: int, commands: int) -> dict[str, object]:
    """All of it, as one JSON object."""
    rows: dict[str, object] = {"cpus": os.cpu_count(), "kernel": platform.release()}
    rows.update(await measure_boxes(boxes))
    rows.update(await measure_commands(commands))
    for workers in (1, 2, 8):
        rows[f"boxes_per_s_{workers}"] = await measure_throughput(workers, boxes)
    return rows


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--boxes", default=40, show_default=True, help="Boxes made for each figure.")
@click.option("--commands", default=300, show_default=True, help="Commands run for each figure.")
def main(as_json: bool, boxes: int, commands: int) -> None:
    """Measure the boxes on this machine."""
    rows = asyncio.run(measure(boxes, commands))
    if as_json:
        click.echo(json.dumps(rows))
        return
    for name, value in rows.items():
        if isinstance(value, dict):
            click.echo(f"{name:<20} p50 {value['p50']:8.2f}   p95 {value['p95']:8.2f}")
        else:
            click.echo(
                f"{name:<20} {value:.1f}" if isinstance(value, float) else f"{name:<20} {value}"
            )


if __name__ == "__main__":
    main()
