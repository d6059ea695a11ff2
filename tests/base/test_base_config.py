import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.config import KnownNames, RunConfig, list_notices, load_config
from limosa.base.errors import ConfigError

KNOWN = KnownNames(
    domains={
        "code_engineering": ("easy", "medium", "hard"),
        "long_horizon_agent": ("short_traj", "long_traj"),
        "knowledge_research": ("single_hop", "two_hop"),
    },
    images=("sandbox-code:v3",),
    normalizations=("none", "zscore"),
    losses=("grpo", "dapo"),
    advantages=("grpo", "rloo"),
)

# The design's file, verbatim.
DESIGN = (Path(__file__).parents[1] / "design.yaml").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def load(path: Path, text: str) -> RunConfig:
    path.write_text(text, encoding="utf-8")
    return load_config(path, KNOWN)


def fail(path: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, text)
    assert str(path) in caught.value.what
    assert caught.value.hint
    return caught.value


def test_design_file_is_valid_as_it_stands(path: Path) -> None:
    config = load(path, DESIGN)
    assert config.rl.context_window == 1_000_000
    assert config.rl.rollout_batch == "dynamic"
    assert config.domains[0].curriculum == ("easy", "medium", "hard")
    assert config.domains[0].env_image == "sandbox-code:v3"
    assert config.domains[1].max_steps == 200
    assert config.domains[2].reward_normalization == "zscore"
    assert config.ratios == pytest.approx(
        {"code_engineering": 0.4375, "long_horizon_agent": 0.3125, "knowledge_research": 0.25}
    )


def test_normalised_ratios_are_noticed(path: Path) -> None:
    (notice,) = list_notices(load(path, DESIGN))
    for part in ("0.8", "code_engineering 0.4375", "knowledge_research 0.25"):
        assert part in notice
    assert list_notices(load(path, "domains: [{name: code_engineering}]")) == []


def test_a_config_cannot_be_changed(path: Path) -> None:
    config = load(path, DESIGN)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1  # type: ignore[misc]


ONE = "domains: [{name: code_engineering%s}]\n%s"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # unknown keys, at every depth, with the nearest known one
        (ONE % ("", "modle: x"), ["'modle'", "'x'", "did you mean 'model'?", "evaluation"]),
        (ONE % (", ratio: 1", ""), ["'domains.0.ratio'", "1", "sampling_ratio"]),
        (ONE % ("", "rl: {group_sise: 4}"), ["'rl.group_sise'", "4", "'group_size'?"]),
        # ratios
        (ONE % (", sampling_ratio: -0.5", ""), ["domains.0.sampling_ratio", "-0.5", "0"]),
        (ONE % (", sampling_ratio: 0", ""), ["domains.sampling_ratio", "zero", "0.0", "positive"]),
        (ONE % (", sampling_ratio: .inf", ""), ["domains.0.sampling_ratio", "inf", "finite"]),
        (ONE % (", sampling_ratio: .nan", ""), ["domains.0.sampling_ratio", "nan"]),
        (ONE % (", sampling_ratio: yes", ""), ["domains.0.sampling_ratio", "True", "number"]),
        (ONE % (", sampling_ratio: much", ""), ["domains.0.sampling_ratio", "'much'", "number"]),
        # names
        ("domains: [{name: code_enginering}]", ["domains.0.name", "'code_enginering'"]),
        ("domains: [{name: code_enginering}]", ["long_horizon_agent", "'code_engineering'?"]),
        (ONE % (", curriculum: [easy, hrad]", ""), ["curriculum", "'hrad'", "medium", "'hard'?"]),
        (ONE % (", curriculum: [easy, easy]", ""), ["domains.0.curriculum", "'easy'", "twice"]),
        (ONE % (", env_image: sandbox-code:v4", ""), ["env_image", "v4", "sandbox-code:v3"]),
        (ONE % (", reward_normalization: zcore", ""), ["reward_norm", "'zcore'", "'zscore'?"]),
        (ONE % ("", "rl: {loss: ppo}"), ["rl.loss", "'ppo'", "grpo, dapo"]),
        (ONE % ("", "rl: {advantage: gae}"), ["rl.advantage", "'gae'", "rloo"]),
        ("domains: [{name: code_engineering}, {name: code_engineering}]", ["twice", "once"]),
        # shapes and ranges
        ("rl: {}", ["'domains'", "missing"]),
        ("domains: [{sampling_ratio: 1}]", ["'domains.0.name'", "missing"]),
        ("domains: []", ["domains is []", "a list with at least 1 in it", "hint:", "see exampl"]),
        (ONE % ("", "rl: {steps: 0}"), ["leave the key out for its default"]),
        (ONE % ("", "rl: {rollout_batch: big}"), ["leave the key out for its default"]),
        ("domains: [3]", ["domains.0 is 3", "see examples/quickstart.yaml"]),
        ("domains: code_engineering", ["domains", "'code_engineering'", "list"]),
        ("domains: [code_engineering]", ["domains.0", "'code_engineering'", "mapping"]),
        (ONE % ("", "rl:"), ["rl is None", "mapping"]),
        (ONE % ("", "rl: {steps: 0}"), ["rl.steps", "0", "greater than 0"]),
        (ONE % ("", "rl: {steps: true}"), ["rl.steps", "True", "number"]),
        (ONE % ("", "rl: {steps: 2.5}"), ["rl.steps", "2.5", "whole number"]),
        (ONE % ("", "rl: {rollout_batch: big}"), ["rl.rollout_batch is 'big'"]),
        (ONE % ("", "rl: {rollout_batch: big}"), ["expected a whole number or 'dynamic'"]),
        (ONE % ("", "rl: {framework: sync}"), ["rl.framework", "'sync'", "async_actor_learner"]),
        (ONE % ("", "rl: {steps: 0, group_size: 1}"), ["rl.steps", "1 more", "rl.group_size"]),
        (ONE % ("", "seed: -1"), ["seed", "-1"]),
        # YAML
        ("domains: [", ["YAML", "line"]),
        ("a: 1\nb: 2\na: 3\n", ["'a'", "twice", "line 3"]),
        (ONE % ("", "rl: {steps: 1, steps: 2}"), ["'steps'", "twice"]),
        ("when: 2020-13-45", ["YAML", "month"]),
        (ONE % ("", "1: 2"), ["YAML", "key 1", "text", "line 2"]),
        (ONE % ("", "rl: {on: 2}"), ["YAML", "key True", "text", "line 2"]),
        ("? [a]\n: b", ["YAML", "key"]),
        ("a: !!python/object/apply:os.getcwd []", ["YAML", "tag"]),
        ("- a", ["list", "mapping"]),
        ("just text", ["text", "mapping"]),
        ("", ["empty", "mapping"]),
        ("# nothing", ["empty", "mapping"]),
    ],
)
def test_errors_name_key_value_accepted_and_hint(path: Path, text: str, parts: list[str]) -> None:
    message = str(fail(path, text))
    for part in parts:
        assert part in message, message
    assert "For further information" not in message and "Traceback" not in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read") as caught:
            load_config(path, KNOWN)
        assert "examples/quickstart.yaml" in caught.value.hint
    (tmp_path / "latin.yaml").write_bytes(b"model: caf\xe9")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "latin.yaml", KNOWN)


def test_merge_keys_and_short_exponents_work(path: Path) -> None:
    text = (
        "domains:\n  - &one {name: code_engineering, loss_weight: 0.5}\n"
        "  - {<<: *one, name: knowledge_research}\nrl: {learning_rate: 3e-4}\n"
    )
    config = load(path, text)
    assert config.domains[1].name == "knowledge_research"
    assert config.domains[1].loss_weight == 0.5
    assert config.rl.learning_rate == 3e-4


@given(ratios=st.lists(st.floats(0, 1e6), min_size=1, max_size=3))
def test_ratios_are_shares(ratios: list[float]) -> None:
    domains = [
        {"name": name, "sampling_ratio": ratio}
        for name, ratio in zip(KNOWN.domains, ratios, strict=False)
    ]
    config = RunConfig.model_validate({"domains": domains})
    if sum(ratios) == 0:
        return  # refused by load_config, see above
    shares = list(config.ratios.values())
    assert math.isclose(sum(shares), 1.0)
    assert all(0.0 <= share <= 1.0 for share in shares)


@given(
    steps=st.integers(1, 10**6),
    batch=st.one_of(st.just("dynamic"), st.integers(1, 4096)),
    rate=st.floats(1e-9, 10, allow_nan=False),
    stages=st.lists(st.sampled_from(["easy", "medium", "hard"]), unique=True),
)
def test_what_is_written_out_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    steps: int,
    batch: int | str,
    rate: float,
    stages: list[str],
) -> None:
    value = {
        "domains": [{"name": "code_engineering", "curriculum": stages}],
        "rl": {"steps": steps, "rollout_batch": batch, "learning_rate": rate},
    }
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    config = load(path, yaml.safe_dump(value))
    assert load(path, yaml.safe_dump(config.model_dump(mode="json"))) == config
