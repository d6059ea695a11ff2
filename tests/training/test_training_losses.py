import json
import math
from pathlib import Path

import pytest
import torch

from limosa.training.losses import (
    LOSSES,
    Clip,
    SampledTokens,
    estimate_kl,
    truncate_importance,
    weigh_tokens,
)

REFERENCE = json.loads((Path(__file__).parent / "reference_losses.json").read_text())
MASK = torch.tensor(REFERENCE["mask"]).bool()
SYMMETRIC = Clip(0.2, 0.2)
HIGHER = Clip(0.2, 0.28)

CASES = [
    ("grpo(seq-mean-token-mean)", "grpo", SYMMETRIC, 0.0),
    ("dapo(token-mean, hi=.28)", "dapo", HIGHER, 0.0),
    ("bnpo==token-mean", "dapo", SYMMETRIC, 0.0),
    ("dr_grpo", "dr_grpo", SYMMETRIC, 0.0),
    ("gspo", "gspo", Clip(0.03, 0.04), 0.0),
    ("cispo(max 1.28, no lower)", "cispo", HIGHER, 0.0),
    ("dual-clip c=delta=3", "dapo", SYMMETRIC, 0.0),
    ("grpo+k3 beta=.04", "grpo", SYMMETRIC, 0.04),
]


def flatten(key):
    return torch.tensor(REFERENCE[key])[MASK]


def compute_loss(name, clip, kl_coefficient=0.0, cap=math.inf):
    """The loss and its gradient on the reference batch, through the functions the learner uses."""
    logprobs = torch.tensor(REFERENCE["new_logp"]).requires_grad_()
    lengths = MASK.sum(1).tolist()
    sequence = torch.arange(4).repeat_interleave(MASK.sum(1))
    advantages = torch.tensor(REFERENCE["adv"])[sequence]
    tokens = SampledTokens(logprobs[MASK], flatten("old_logp"), advantages, sequence)
    terms = LOSSES[name].terms(tokens, clip).losses_T
    if not LOSSES[name].holds_importance:
        factor, _ = truncate_importance(tokens.logprobs_T, tokens.behaviour_T, cap)
        terms = terms * factor
    if kl_coefficient:
        kl = estimate_kl(tokens.logprobs_T, flatten("ref_logp"), "k3")
        terms = terms + kl_coefficient * kl
    weights = weigh_tokens(lengths, LOSSES[name].aggregation, max_tokens=6)
    loss = (terms * torch.tensor(weights)[sequence]).sum()
    loss.backward()
    return loss.item(), logprobs.grad


@pytest.mark.parametrize(("case", "name", "clip", "kl"), CASES)
def test_losses_and_gradients_match_the_reference(case, name, clip, kl):
    expected = REFERENCE["cases"][case]
    loss, grad = compute_loss(name, clip, kl)
    assert loss == pytest.approx(expected["loss"], abs=1e-6)
    torch.testing.assert_close(grad, torch.tensor(expected["dloss_dlogp"]), atol=1e-6, rtol=0)


def test_every_reference_case_is_tested():
    assert {case for case, *_ in CASES} == set(REFERENCE["cases"])


def test_dapo_matches_plain_python():
    total, count = 0.0, 0
    for row in range(4):
        for column in range(6):
            if not REFERENCE["mask"][row][column]:
                continue
            new, old = (REFERENCE[k][row][column] for k in ("new_logp", "old_logp"))
            ratio, advantage = math.exp(new - old), REFERENCE["adv"][row]
            bounded = min(max(ratio, 0.8), 1.28)
            total -= min(ratio * advantage, bounded * advantage)
            count += 1
    assert compute_loss("dapo", HIGHER)[0] == pytest.approx(total / count, abs=1e-6)


def test_importance_cap_truncates_only_large_ratios():
    # The one token of the last sequence has a ratio of 1.703 and a negative advantage.
    _, plain = compute_loss("dapo", HIGHER)
    _, capped = compute_loss("dapo", HIGHER, cap=1.5)
    ratio = math.exp(REFERENCE["new_logp"][3][0] - REFERENCE["old_logp"][3][0])
    assert capped[3, 0] == pytest.approx(plain[3, 0].item() * 1.5 / ratio, rel=1e-5)
    same = torch.ones_like(MASK)
    same[3, 0] = False
    assert torch.equal(plain[same], capped[same])


def test_only_cispo_bounds_every_importance_by_itself():
    assert [name for name, loss in LOSSES.items() if loss.holds_importance] == ["cispo"]
    # A ratio far above the bound, with an advantage of either sign: the weight is the bound.
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    tokens = SampledTokens(
        logprobs, torch.tensor([-9.0, -9.0]), torch.tensor([1.0, -1.0]), torch.tensor([0, 1])
    )
    LOSSES["cispo"].terms(tokens, HIGHER).losses_T.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.28, 1.28])


def test_kl_estimators_against_the_exact_divergence():
    p = torch.tensor([0.5, 0.3, 0.2]).double()
    q = torch.tensor([0.4, 0.35, 0.25]).double()
    exact = (p * (p / q).log()).sum()
    for name in ("k1", "k3"):
        assert (p * estimate_kl(p.log(), q.log(), name)).sum() == pytest.approx(exact.item())
    assert (p * estimate_kl(p.log(), q.log(), "k2")).sum() == pytest.approx(exact.item(), rel=0.1)
    assert (estimate_kl(p.log(), q.log(), "k3") >= 0).all()


def test_sequences_without_sampled_tokens_count_for_nothing():
    assert weigh_tokens([2, 0, 4], "sequence_mean", max_tokens=9) == [0.25, 0.0, 0.125]
    assert weigh_tokens([2, 0, 4], "token_mean", max_tokens=9) == [1 / 6] * 3
    with pytest.raises(AssertionError):
        weigh_tokens([0], "token_mean", max_tokens=9)


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_that_the_sampler_all_but_excluded_spoils_no_update(name: str) -> None:
    logprobs_T = torch.tensor([-1.0, -1.0], requires_grad=True)
    behaviour_T = torch.tensor([-400.0, -1.0])
    tokens = SampledTokens(
        logprobs_T, behaviour_T, torch.tensor([-1.0, -1.0]), torch.zeros(2, dtype=torch.long)
    )
    factor_T, _ = truncate_importance(logprobs_T, behaviour_T, 2.0)
    (LOSSES[name].terms(tokens, Clip()).losses_T * factor_T).sum().backward()
    assert logprobs_T.grad is not None and logprobs_T.grad.isfinite().all()
