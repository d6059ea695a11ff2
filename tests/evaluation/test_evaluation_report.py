import dataclasses
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console

from limosa.base.trajectory import Outcome
from limosa.evaluation.report import count_train_outcomes, make_report, write_html, write_picture
from limosa.evaluation.statistics import newcombe_interval, wilson_interval
from limosa.evaluation.table import print_table
from limosa.store.run import RunFolder

HOSTILE = (
    '</pre><script>alert("x")</script><img src=http://evil.example/a onerror=x> {{7919*7919}} &'
)
TRAIN = {"solved": 5, "failed": 2, "truncated": 1, "timed_out": 0, "invalid": 1}
FINDING = {
    "domain": "code_engineering",
    "checked": 2,
    "sound": 1,
    "unsound": 1,
    "infrastructure": 0,
    "rejected": [
        {
            "domain": "code_engineering",
            "stage": "easy",
            "seed": 3,
            "task_hash": "ab" * 32,
            "status": "unsound",
            "reference_reward": None,
            "noop_reward": 0.0,
            "reason": HOSTILE,
        }
    ],
}


@pytest.fixture
def inputs(make_trajectory):
    def play(moment, domain, solved):
        return [
            make_trajectory(
                id=f"{moment}{index}",
                domain=domain,
                task_hash=f"{domain}{index}",
                stage="easy" if index % 2 else "hard",
                outcome=Outcome.SOLVED if index < solved else Outcome.FAILED,
                reward=float(index < solved),
            )
            for index in range(8)
        ]

    before = [*play("b", "code_engineering", 2), *play("b", "reasoning", 1)]
    after = [*play("a", "code_engineering", 6), *play("a", "reasoning", 5)]
    after[0] = dataclasses.replace(after[0], outcome=Outcome.INVALID, reward=0.0)
    return {
        "name": "quickstart",
        "config": {
            "domains": [{"name": "code_engineering"}, {"name": "reasoning"}],
            "model": HOSTILE,
        },
        "wall_s": 271.5,
        "policy_version": 3,
        "checkpoint": "runs/quickstart/checkpoints/step-3",
        "before": before,
        "after": after,
        "train_outcomes": {"code_engineering": TRAIN},
        "steps": [
            {
                "step": step,
                "reward/code_engineering": 0.2 * step,
                "success/code_engineering": 0.1 * step,
                "reward/reasoning": float("nan"),
                "entropy": 0.5,
                "grad_norm": "nan",
            }
            for step in (1, 2, 3)
        ],
        "phases": {"quality": 8.0, "training": 200.0},
        "findings": [FINDING],
        "decode": lambda ids: "".join(f"<{token}>" for token in ids),
    }


def test_the_report_holds_what_json_promises(inputs):
    report = make_report(**inputs)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    code = report["domains"]["code_engineering"]
    # The first task, solved before, stayed invalid after: it is in neither rate.
    assert (code["success_before"], code["success_after"], code["n"]) == (1 / 7, 5 / 7, 7)
    assert code["unpaired"] == 1
    assert code["ci_before"] == list(wilson_interval(1, 7))
    assert code["ci_after"] == list(wilson_interval(5, 7))
    assert code["ci_change"] == list(newcombe_interval((1, 7), (5, 7)))
    assert code["after"]["invalid"] == 1
    assert (code["before"]["n"], code["before"]["success"]) == (8, 0.25)
    overall = report["overall"]
    assert (overall["success_before"], overall["success_after"]) == (2 / 15, 10 / 15)
    assert (overall["n"], overall["unpaired"]) == (15, 1)
    assert overall["change"] == 10 / 15 - 2 / 15
    for key in ("wall_s", "policy_version", "checkpoint"):
        assert report[key] == inputs[key]


def test_tasks_that_differ_between_the_evaluations_are_never_compared(inputs, tmp_path):
    inputs["after"] = [t for t in inputs["after"] if t.task_hash != "reasoning0"]
    inputs["before"] = [t for t in inputs["before"] if t.task_hash != "reasoning7"]
    report = make_report(**inputs)
    reasoning = report["domains"]["reasoning"]
    assert (reasoning["success_before"], reasoning["success_after"]) == (0.0, 4 / 6)
    assert (reasoning["n"], reasoning["unpaired"]) == (6, 2)
    assert {s: (r["n"], r["unpaired"]) for s, r in reasoning["stages"].items()} == {
        "hard": (3, 1),
        "easy": (3, 1),
    }
    assert report["overall"]["unpaired"] == 3
    write_html(report, tmp_path / "report.html")
    assert "3 left out." in (tmp_path / "report.html").read_text()


def test_every_trajectory_is_counted_once(inputs):
    report = make_report(**inputs)
    assert report["trajectories_by_phase"]["train"] == TRAIN
    assert report["trajectories_by_phase"]["eval_before"]["solved"] == 3
    assert report["trajectories_by_phase"]["eval_after"]["invalid"] == 1
    assert sum(report["trajectories"].values()) == 16 + 9 + 16
    assert report["overall"]["trajectories"] == report["trajectories"]
    for outcome, count in report["trajectories"].items():
        assert count == sum(d["trajectories"][outcome] for d in report["domains"].values())


def test_stages_are_compared_apart(inputs):
    stages = make_report(**inputs)["domains"]["reasoning"]["stages"]
    assert {s: (r["success_before"], r["success_after"], r["n"]) for s, r in stages.items()} == {
        "hard": (0.25, 0.75, 4),
        "easy": (0.0, 0.5, 4),
    }


def test_curves_split_by_domain_and_keep_gaps(inputs):
    curves = make_report(**inputs)["curves"]
    assert curves["step"] == [1, 2, 3]
    assert curves["domains"]["code_engineering"]["success"] == [0.1, 0.2, 0.1 * 3]
    assert curves["domains"]["reasoning"] == {}
    assert curves["learner"] == {"entropy": [0.5, 0.5, 0.5]}
    inputs["steps"][1].pop("entropy")
    assert make_report(**inputs)["curves"]["learner"]["entropy"] == [0.5, None, 0.5]


def test_the_sample_is_a_task_that_was_learned_with_its_speakers(inputs):
    samples = make_report(**inputs)["samples"]["reasoning"]
    assert (samples["before"]["id"], samples["after"]["id"]) == ("b1", "a1")
    assert (samples["before"]["outcome"], samples["after"]["outcome"]) == ("failed", "solved")
    assert samples["after"]["segments"] == [
        {"by": "context", "text": "<1><2>"},
        {"by": "model", "text": "<3>"},
        {"by": "context", "text": "<4>"},
        {"by": "model", "text": "<5>"},
    ]


def test_a_long_sample_is_cut_and_says_so(inputs, make_trajectory):
    inputs["decode"] = lambda ids: "x" * 15_000
    segments = make_report(**inputs)["samples"]["reasoning"]["after"]["segments"]
    assert [len(s["text"]) for s in segments[:2]] == [15_000, 5_000]
    assert segments[2] == {
        "by": "note",
        "text": "… cut here: 10000 more characters, then 2 more tokens",
    }


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def page(inputs, tmp_path):
    inputs["decode"] = lambda ids: HOSTILE + "\ud800"
    inputs["name"] = HOSTILE
    inputs["config"]["domains"].append({"name": HOSTILE})
    inputs["before"].append(inputs["before"][0])
    path = tmp_path / "report.html"
    write_html(make_report(**inputs), path)
    parsed = _Page()
    parsed.feed(path.read_text(encoding="utf-8"))
    return parsed


def test_hostile_text_is_text_on_the_page(page):
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert page.text.count('<script>alert("x")</script>') >= 10
    assert "{{7919*7919}}" in page.text
    assert str(7919 * 7919) not in page.text


def test_the_page_loads_nothing_from_elsewhere(page):
    links = [(t, k, v) for t, k, v in page.attributes if k in {"src", "href", "xlink:href"}]
    assert [link for link in links if not link[2].startswith("#")] == []
    assert "link" not in page.tags
    styles = " ".join(v for _, k, v in page.attributes if k == "style")
    assert not re.search(r"url\((?!#)|@import", styles + page.text.replace(HOSTILE, ""))
    policy = [v for t, k, v in page.attributes if t == "meta" and k == "content"]
    assert any(v.startswith("default-src 'none'") for v in policy)


def test_the_page_shows_drawings_tables_and_findings(page):
    assert page.tags.count("svg") == 3
    for text in ("Wilson 95 %", "1 left out, with evidence", "4 min 32 s", "training"):
        assert text in page.text
    assert "ab" * 6 in page.text


def test_drawings_take_their_colours_from_the_page(inputs, tmp_path):
    path = tmp_path / "report.html"
    write_html(make_report(**inputs), path)
    svgs = re.findall(r"<svg.*?</svg>", path.read_text(), flags=re.DOTALL)
    assert len(svgs) == 3
    assert {v for svg in svgs for v in re.findall(r"var\(--([a-z0-9-]+)\)", svg)} >= {
        "ink",
        "grid",
        "before",
        "after",
        "series-0",
    }
    assert not [c for svg in svgs for c in re.findall(r"(?:fill|stroke): (#\w+)", svg)]


def test_a_run_that_was_stopped_early_still_reports(inputs, tmp_path):
    inputs |= {"after": [], "steps": [], "findings": [], "phases": {}, "train_outcomes": {}}
    report = make_report(**inputs)
    assert report["overall"]["success_after"] is None
    assert (report["overall"]["n"], report["overall"]["unpaired"]) == (0, 16)
    assert report["overall"]["before"]["success"] == 3 / 16
    assert report["overall"]["change"] is None
    assert report["samples"]["reasoning"]["after"] is None
    write_html(report, tmp_path / "report.html")
    write_picture(report, tmp_path / "picture.png")
    text = (tmp_path / "report.html").read_text()
    assert "No update was made." in text
    console = Console(width=120, record=True, stderr=True)
    print_table(report, console)
    assert "–" in console.export_text()


def test_the_picture_is_a_png(inputs, tmp_path):
    write_picture(make_report(**inputs), tmp_path / "picture.png")
    data = (tmp_path / "picture.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000


def test_the_last_table_goes_to_standard_error(inputs, capsys):
    print_table(make_report(**inputs), Console(stderr=True, width=120))
    captured = capsys.readouterr()
    assert captured.out == ""
    rows = {line.split()[1]: line for line in captured.err.splitlines() if "%" in line[5:]}
    assert "14 % (3 to 51)" in rows["code_engineering"]
    assert "71 % (36 to 92)" in rows["code_engineering"]
    assert "overall" in rows


def test_training_outcomes_are_counted_from_the_run(make_trajectory, tmp_path):
    with RunFolder.create(tmp_path, "run", "") as run:
        run.append_trajectory(make_trajectory(), phase="train")
        run.append_trajectory(make_trajectory(outcome=Outcome.INVALID), phase="train")
        run.append_trajectory(make_trajectory(), phase="eval_before")
    counts = count_train_outcomes(run.path)
    assert counts["code_engineering"] == {
        "solved": 1,
        "failed": 0,
        "truncated": 0,
        "timed_out": 0,
        "invalid": 1,
    }


def test_importing_the_report_leaves_matplotlib_alone():
    code = "import limosa.evaluation.report, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
