"""Draws follow the distribution, depend on seed and index only, and log-probabilities match."""

import numpy as np
import pytest
import torch

from limosa.base.errors import EngineError
from limosa.inference.sampler import draw_uniforms, fold_seed, sample


def _draw(seeds, indices):
    return draw_uniforms(np.array(seeds, dtype=np.uint64), np.array(indices, dtype=np.int64))


def test_uniforms_are_uniform_and_uncorrelated():
    for grid in (_draw([5] * 20000, range(20000)), _draw(range(20000), [0] * 20000)):
        counts = np.histogram(grid, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-squared, 19 degrees, p = 0.0007
        assert abs(np.corrcoef(grid[1:], grid[:-1])[0, 1]) < 0.03


def test_uniforms_do_not_depend_on_company():
    together = _draw([3, 9, 3], [0, 4, 1])
    assert [_draw([s], [i])[0] for s, i in ((3, 0), (9, 4), (3, 1))] == together.tolist()
    assert len({fold_seed(s) for s in (0, -1, 1 << 64, 5, (1 << 70) + 5)}) == 5


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_distribution(temperature):
    logits_V = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf])
    count = 20000
    ids, logprobs = sample(
        logits_V.expand(count, -1), np.full(count, temperature), _draw([1] * count, range(count))
    )
    want_V = (logits_V / temperature).softmax(-1)
    got_V = torch.bincount(torch.tensor(ids), minlength=5) / count
    torch.testing.assert_close(got_V, want_V, atol=0.01, rtol=0)
    torch.testing.assert_close(torch.tensor(logprobs), want_V.log()[ids], atol=1e-5, rtol=0)


def test_extremes_never_draw_the_impossible():
    logits_NV = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    ids, logprobs = sample(logits_NV, np.ones(2), np.array([0.5 / 2**32, 1 - 0.5 / 2**32]))
    assert ids == [1, 1] and logprobs == [0.0, 0.0]


def test_rows_keep_their_own_temperature():
    logits_NV = torch.tensor([[1.0, 2.0, 0.0]] * 3)
    ids, logprobs = sample(logits_NV, np.array([0.0, 1.0, 2.0]), np.array([0.01, 0.01, 0.01]))
    assert ids == [1, 0, 0]
    plain, soft = logits_NV[0].log_softmax(-1), (logits_NV[0] / 2).log_softmax(-1)
    torch.testing.assert_close(torch.tensor(logprobs), torch.stack([plain[1], plain[0], soft[0]]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_are_refused(value):
    with pytest.raises(EngineError, match="not finite"):
        sample(torch.tensor([[0.0, value]]), np.ones(1), np.array([0.5]))
