import copy
import dataclasses

import pytest
import torch

from limosa.base.config import DomainConfig, RlConfig
from limosa.base.errors import UserError
from limosa.models.transformer import attend_causally
from limosa.training.learner import RlLearner

DOMAINS = (DomainConfig(name="maze"), DomainConfig(name="code", reward_normalization="zscore"))


def make_learner(model, domains=DOMAINS, **changes):
    config = RlConfig(**{"learning_rate": 1e-2, "warmup_steps": 0, **changes})
    return RlLearner(copy.deepcopy(model), config, domains, tokenizer_from=None)


def compute_slow_loss(model, groups, *, low=0.2, high=0.28):
    """DAPO as its paper writes it: one trajectory at a time, no packing, plain autograd."""
    total, count = 0.0, 0
    for group in groups:
        rewards = torch.tensor([t.reward for t in group.trajectories])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            ids = torch.tensor(trajectory.token_ids)
            hidden = model(ids, torch.arange(len(ids)), attend_causally)
            logits = model.project(hidden) / trajectory.temperature
            for place, sampled in enumerate(trajectory.sampled):
                if sampled:
                    logp = logits[place - 1].log_softmax(-1)[ids[place]]
                    ratio = (logp - trajectory.logprobs[place]).exp()
                    bounded = ratio.clamp(1 - low, 1 + high)
                    total = total - torch.min(ratio * advantage, bounded * advantage)
                    count += 1
    return total / count


@pytest.mark.parametrize("microbatch_tokens", [8192, 60])
def test_update_equals_the_slow_reference(tiny_model, play_group, microbatch_tokens):
    sampler = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in sampler.parameters():
            parameter.mul_(1.1)
    groups = [play_group(sampler, 1, temperature=0.7), play_group(sampler, 2, size=4)]
    learner = make_learner(
        tiny_model, microbatch_tokens=microbatch_tokens, importance_cap=1e9, max_grad_norm=1e9
    )
    slow = copy.deepcopy(tiny_model)
    loss = compute_slow_loss(slow, groups)
    loss.backward()
    squares = sum(p.grad.square().sum() for p in slow.parameters())
    metrics = learner.step(groups).metrics
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(squares.sqrt().item(), rel=1e-4)
    assert metrics["clip_fraction"] > 0


@pytest.mark.parametrize(("loss", "is_held_twice"), [("cispo", False), ("dapo", True)])
def test_a_loss_that_truncates_the_importance_is_not_truncated_again(
    tiny_model, play_group, loss, is_held_twice
):
    sampler = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for parameter in sampler.parameters():
            parameter.mul_(1.1)
    groups = [play_group(sampler, 1)]
    low, high = (
        make_learner(tiny_model, loss=loss, importance_cap=cap).step(groups) for cap in (1.05, 1e9)
    )
    assert low.metrics["importance"] < high.metrics["importance"]
    assert (low.metrics["loss"] != high.metrics["loss"]) == is_held_twice
    assert (low.checksum != high.checksum) == is_held_twice


def test_a_constant_divisor_is_no_larger_than_the_models_context(tiny_model, play_group):
    groups = [play_group(tiny_model, 1)]
    asked, known = (
        make_learner(tiny_model, loss="dr_grpo", context_window=tokens).step(groups).metrics
        for tokens in (1_000_000, tiny_model.config.max_position_embeddings)
    )
    assert asked["grad_norm"] == known["grad_norm"] > 1e-4
    half = make_learner(tiny_model, loss="dr_grpo", context_window=1024).step(groups).metrics
    assert half["grad_norm"] == pytest.approx(2 * known["grad_norm"], rel=1e-4)


def test_fresh_samples_have_unit_importance_and_no_divergence(tiny_model, play_group):
    metrics = make_learner(tiny_model).step([play_group(tiny_model, 1, temperature=1.3)]).metrics
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl_k1"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["kl_k3"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["staleness_max"] == 0.0
    assert metrics["tokens_packed"] < metrics["tokens"]


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
def test_learning_raises_the_reward(tiny_model, play_group, loss):
    """Rewarded for the token 7: its share among the samples must rise."""
    learner = make_learner(tiny_model, loss=loss, learning_rate=3e-2)

    def score(ids):
        return float(ids.count(7) > 0)

    rewards = []
    for step in range(8):
        groups = [
            play_group(learner.model, 10 * step + i, version=learner.version, score=score)
            for i in range(3)
        ]
        rewards.append(learner.step(groups).metrics["reward_trained/maze"])
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_flat_groups_change_nothing_and_are_counted(tiny_model, play_group):
    learner = make_learner(tiny_model)
    before = copy.deepcopy(learner.model.state_dict())
    stats = learner.step([play_group(tiny_model, 1, score=lambda ids: 1.0)])
    assert stats.version == 1
    assert stats.metrics["skipped_no_signal"] == 1
    assert stats.metrics["reward_trained/maze"] == 1.0
    assert all(torch.equal(before[name], t) for name, t in learner.model.state_dict().items())


def test_flat_groups_leave_no_trace_in_the_update(tiny_model, play_group):
    live, flat = play_group(tiny_model, 1), play_group(tiny_model, 2, score=lambda ids: 0.0)
    assert make_learner(tiny_model).step([live, flat]).checksum == (
        make_learner(tiny_model).step([live]).checksum
    )


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(tiny_model, play_group):
    group = play_group(tiny_model, 1)
    first = group.trajectories[0]
    poisoned = dataclasses.replace(first, logprobs=(float("nan"),) * len(first.logprobs))
    bad = dataclasses.replace(group, trajectories=(poisoned, *group.trajectories[1:]))
    learner = make_learner(tiny_model)
    before = copy.deepcopy(learner.model.state_dict())
    assert learner.step([bad]).metrics["skipped_nonfinite"] == 1
    assert all(torch.equal(before[name], t) for name, t in learner.model.state_dict().items())
    assert learner.step([group]).metrics["grad_norm"] > 0


def test_an_empty_batch_is_an_error(tiny_model):
    with pytest.raises(AssertionError, match="at least one trajectory"):
        make_learner(tiny_model).step([])


def test_loss_weight_scales_a_domain(tiny_model, play_group):
    groups = [play_group(tiny_model, 1, domain="maze")]
    half = (DomainConfig(name="maze", loss_weight=0.5),)
    full = make_learner(tiny_model).step(groups).metrics["grad_norm"]
    scaled = make_learner(tiny_model, domains=half).step(groups).metrics["grad_norm"]
    assert scaled == pytest.approx(full / 2, rel=1e-4)


def test_reference_holds_the_policy_back(tiny_model, play_group):
    groups = [play_group(tiny_model, 1)]
    learner = make_learner(tiny_model, kl_coefficient=10.0)
    first = learner.step(groups).metrics
    second = learner.step(groups).metrics
    assert first["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl_reference"] > 1e-4
    assert second["staleness_mean"] == 1.0


def test_warmup_and_staleness_are_reported(tiny_model, play_group):
    learner = make_learner(tiny_model, warmup_steps=4)
    rates = [learner.step([play_group(tiny_model, i)]).metrics["learning_rate"] for i in range(5)]
    assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2])


def test_restored_learner_goes_on_bit_for_bit(tiny_model, play_group, tmp_path):
    groups = [
        [play_group(tiny_model, 2 * i), play_group(tiny_model, 2 * i + 1, domain="code", size=4)]
        for i in range(4)
    ]
    straight = make_learner(tiny_model, advantage="mean", warmup_steps=3)
    straight.step(groups[0])
    straight.step(groups[1])
    straight.save(tmp_path / "checkpoint")
    again = make_learner(tiny_model, advantage="mean", warmup_steps=3)
    again.restore(tmp_path / "checkpoint")
    for batch in groups[2:]:
        expected, got = straight.step(batch), again.step(batch)
        assert got.checksum == expected.checksum
        assert got.version == expected.version
        assert got.metrics["loss"] == expected.metrics["loss"]


def test_restore_names_what_is_missing(tiny_model, tmp_path):
    with pytest.raises(UserError, match="learner state"):
        make_learner(tiny_model).restore(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "empty", "keys"])
def test_restore_names_a_damaged_state(tiny_model, tmp_path, damage):
    learner = make_learner(tiny_model)
    learner.save(tmp_path)
    path = tmp_path / "learner.pt"
    if damage == "keys":
        torch.save({"version": 1}, path)
    else:
        path.write_bytes(path.read_bytes()[: 1000 if damage == "truncated" else 0])
    with pytest.raises(
        UserError, match=r"learner\.pt cannot be read: .*\nhint: resume from an old"
    ):
        make_learner(tiny_model).restore(tmp_path)
