import random

import pytest
import torch
from torch.nn import functional

from limosa.models.config import TransformerConfig
from limosa.models.transformer import attend_causally, make_model
from limosa.training.packing import Branch, pack
from limosa.training.projection import compute_logprobs


def make_tiny_model(kv_heads=2):
    config = TransformerConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        head_dim=16,
        initializer_range=0.2,
    )
    return make_model(config, seed=0)


def make_families(seed=0):
    """Three groups: a shared prompt, replies that part at different places, one nested."""
    rng = random.Random(seed)
    families, start = [], 0
    for size in (4, 1, 5):
        prompt = [rng.randrange(50) for _ in range(rng.randint(5, 20))]
        family = []
        for _ in range(size):
            reply = [rng.randrange(3) for _ in range(rng.randint(1, 15))]
            ids = prompt + reply
            trained = [0] * len(prompt) + [rng.randint(0, 1) for _ in reply]
            trained[-1] = 1
            family.append(Branch(ids, trained, start))
            start += len(ids)
        families.append(family)
    return families, start


def compute_packed(model, families, total, weights, limit):
    logprobs = torch.zeros(total)
    for micro in pack(families, microbatch_tokens=limit):
        hidden = model(micro.token_ids_N, micro.positions_N, micro.attend)
        chosen = functional.embedding(micro.predictor_T, hidden)
        values, _ = compute_logprobs(chosen, model.output_weight, micro.target_T)
        (values * weights[micro.source_T]).sum().backward()
        logprobs[micro.source_T] = values.detach()
    return logprobs


def compute_one_by_one(model, families, total, weights):
    logprobs = torch.zeros(total)
    for branch in (b for family in families for b in family):
        ids = torch.tensor(branch.token_ids)
        hidden = model(ids, torch.arange(len(ids)), attend_causally)
        all_values = model.project(hidden).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
        mask = torch.tensor(branch.trained[1:]).bool()
        places = branch.start + 1 + torch.arange(len(ids) - 1)[mask]
        (all_values[mask] * weights[places]).sum().backward()
        logprobs[places] = all_values[mask].detach()
    return logprobs


@pytest.mark.parametrize(("kv_heads", "limit"), [(2, 10_000), (1, 10_000), (2, 40), (2, 1)])
def test_gradients_equal_the_unshared_computation(kv_heads, limit):
    families, total = make_families()
    weights = torch.randn(total, generator=torch.Generator().manual_seed(1))
    packed, plain = make_tiny_model(kv_heads), make_tiny_model(kv_heads)
    got = compute_packed(packed, families, total, weights, limit)
    expected = compute_one_by_one(plain, families, total, weights)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert (expected != 0).sum() > 20
    for (name, a), b in zip(packed.named_parameters(), plain.parameters(), strict=True):
        scale = b.grad.abs().max()
        torch.testing.assert_close(a.grad / scale, b.grad / scale, atol=1e-5, rtol=0, msg=name)


def test_shared_prefixes_stand_once_and_the_last_target_is_no_input():
    family = [
        Branch([7, 8, 9, 1, 2], [0, 0, 0, 1, 1], 0),
        Branch([7, 8, 9, 1, 3], [0] * 4 + [1], 5),
    ]
    (micro,) = pack([family], microbatch_tokens=100)
    assert micro.token_ids_N.tolist() == [7, 8, 9, 1]
    assert micro.source_T.tolist() == [3, 4, 9]
    assert micro.target_T.tolist() == [1, 2, 3]
    assert micro.predictor_T.tolist() == [2, 3, 3]


def test_microbatches_hold_their_bound_and_all_targets():
    families, _ = make_families(seed=3)
    micros = list(pack(families, microbatch_tokens=40))
    assert len(micros) > 1
    assert all(len(m.token_ids_N) <= 40 for m in micros)
    expected = [b.start + i for f in families for b in f for i, t in enumerate(b.trained) if t]
    assert sorted(torch.cat([m.source_T for m in micros]).tolist()) == expected


def test_other_families_share_nothing():
    twins = [[Branch([1, 2, 3], [0, 0, 1], 0)], [Branch([1, 2, 4], [0, 0, 1], 3)]]
    (micro,) = pack(twins, microbatch_tokens=100)
    assert micro.token_ids_N.tolist() == [1, 2, 1, 2]


def test_a_first_token_cannot_be_trained():
    with pytest.raises(AssertionError):
        list(pack([[Branch([1, 2], [1, 1], 0)]], microbatch_tokens=9))


def test_projection_matches_autograd_through_plain_logits():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.tensor([0, 10, 3, 3, 1, 9, 2])
    mix = torch.randn(2, 7, generator=generator, dtype=torch.float64)

    def reduce(logprobs, entropy):
        return (torch.stack((logprobs, entropy)) * mix).sum()

    exact = torch.distributions.Categorical(logits=hidden @ weight.t())
    slow = reduce(exact.log_prob(target), exact.entropy())
    fast = reduce(*compute_logprobs(hidden, weight, target))
    assert fast.item() == pytest.approx(slow.item())
    for a, b in zip(
        torch.autograd.grad(fast, (hidden, weight)),
        torch.autograd.grad(slow, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    torch.autograd.gradcheck(lambda h, w: compute_logprobs(h, w, target)[0], (hidden, weight))
