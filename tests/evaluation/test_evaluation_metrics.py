from limosa.base.trajectory import Outcome, ToolEvent
from limosa.evaluation.metrics import summarise
from limosa.evaluation.statistics import wilson_interval


def make_event(*, is_error):
    return ToolEvent(0, "bash", {}, "", is_error, 0.1)


def test_a_summary_counts_every_outcome_and_leaves_the_invalid_out(make_trajectory):
    events = (make_event(is_error=True), make_event(is_error=False))
    summary = summarise(
        [
            make_trajectory(events=events, turns=3),
            make_trajectory(outcome=Outcome.FAILED, reward=0.25, turns=1, sampled=(0, 0, 0, 0, 1)),
            make_trajectory(outcome=Outcome.TRUNCATED, reward=0.0, turns=5),
            make_trajectory(outcome=Outcome.TIMED_OUT, reward=0.0, turns=3),
            make_trajectory(outcome=Outcome.INVALID, reward=0.0, turns=100, events=events * 50),
        ]
    )
    assert (summary.n, summary.solved, summary.success, summary.invalid) == (4, 1, 0.25, 1)
    assert summary.ci == wilson_interval(1, 4)
    assert summary.outcomes == dict.fromkeys(
        ("solved", "failed", "truncated", "timed_out", "invalid"), 1
    )
    assert summary.mean_reward == 1.25 / 4
    assert summary.mean_turns == 3.0
    assert summary.mean_tool_calls == 0.5
    assert summary.tool_error_ratio == 0.5
    assert summary.mean_output_tokens == 7 / 4


def test_nothing_valid_gives_no_rate_rather_than_zero(make_trajectory):
    summary = summarise([make_trajectory(outcome=Outcome.INVALID)])
    assert (summary.n, summary.success, summary.mean_reward) == (0, None, None)
    assert summary.tool_error_ratio is None
    assert summary.ci == (0.0, 1.0)
    assert summary.invalid == 1
