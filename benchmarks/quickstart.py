"""The quickstart on several seeds: wall time, and success before and after on held-out tasks.

    .venv/bin/python benchmarks/quickstart.py --seeds 0 1 2 --out benchmarks/results/quickstart.json

Each run is a whole `limosa train`, one after the other, on an otherwise idle machine. `--picture`
draws the bars and curves of the first run, as the README shows them.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from limosa.evaluation.report import write_picture

ROOT = Path(__file__).parents[1]
KEPT = ("success_before", "success_after", "ci_before", "ci_after", "n", "change", "ci_change")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--file", type=Path, default=ROOT / "examples" / "quickstart.yaml")
    parser.add_argument("--out", type=Path, help="where the JSON goes; else standard output")
    parser.add_argument("--picture", type=Path, help="a PNG of the first run")
    options = parser.parse_args()
    reports = [train(options.file, seed) for seed in options.seeds]
    runs = [shorten(r, seed) for r, seed in zip(reports, options.seeds, strict=True)]
    if options.picture:
        write_picture(reports[0], options.picture)
    result = {
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/quickstart.py --seeds " + " ".join(map(str, options.seeds)),
        "machine": describe_machine(),
        "runs": runs,
        "met": [is_met(r) for r in runs],
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)


def train(file: Path, seed: int) -> dict[str, Any]:
    """The report of one training."""
    limosa = str(Path(sys.executable).with_name("limosa"))
    with tempfile.TemporaryDirectory() as folder:
        command = [limosa, "train", str(file), "--seed", str(seed), "--out", folder, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def shorten(report: dict[str, Any], seed: int) -> dict[str, Any]:
    """What is kept of a report."""
    parts = {"overall": report["overall"], **report["domains"]}
    return {
        "seed": seed,
        "wall_s": round(report["wall_s"], 1),
        "phases_s": {name: round(s, 1) for name, s in report["phases"].items()},
        "trajectories": report["trajectories"],
        **{name: {key: part[key] for key in KEPT} for name, part in parts.items()},
    }


def is_met(run: dict[str, Any]) -> dict[str, bool]:
    """What the project promises of a quickstart, line by line."""
    overall = run["overall"]
    domains = [
        v for k, v in run.items() if isinstance(v, dict) and "change" in v and k != "overall"
    ]
    return {
        "within_eight_minutes": run["wall_s"] <= 480,
        "up_by_25_points": overall["change"] >= 0.25,
        "intervals_apart": overall["ci_before"][1] < overall["ci_after"][0],
        "no_domain_falls": all(d["change"] >= 0 for d in domains),
        "starts_between_15_and_60_percent": all(
            0.15 <= d["success_before"] <= 0.6 for d in domains
        ),
    }


def describe_machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
