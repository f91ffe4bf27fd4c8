"""ESPnet3's smallest recipe, whole: trained by two learners, decoded and scored."""

import os
from collections import Counter
from typing import Any

import pytest
import torch
from mini_an4 import OURS, PACKAGES, UTTERANCES, Recipe

COPIES = 3

pytestmark = [
    pytest.mark.recipes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PACKAGES.is_dir() and "CI" not in os.environ,
        reason="no ESPnet3: tools/setup.sh --dev installs it",
    ),
]

STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "adpsgd": {"_target_": OURS, "algorithm": "adpsgd"},
    "bmuf_adam": {"_target_": OURS, "algorithm": "bmuf_adam"},
}
SECONDS = {"adpsgd": [0.0, 0.5]}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Train a copy of the recipe by stock DDP and by two algorithms; score them all."""
    assert PACKAGES.is_dir(), "no ESPnet3: tools/setup.sh --dev installs it"
    made = Recipe(tmp_path_factory.mktemp("mini_an4") / "recipe", learners=2)
    for name, strategy in STRATEGIES.items():
        made.configure(name, strategy, SECONDS.get(name, [0.0, 0.0]))
    made.prepare("ddp", COPIES)
    made.train(*STRATEGIES)
    made.score(*STRATEGIES)
    return made


@pytest.mark.parametrize("name", STRATEGIES)
def test_stock_espnet3_decodes_and_scores_what_was_trained(
    recipe: Recipe, name: str
) -> None:
    exp = recipe.folder / "exp" / name
    assert "WER" in (exp / "i" / "metrics.json").read_text()
    kept = torch.load(exp / "last.ckpt", weights_only=False)["state_dict"]
    assert all(each.isfinite().all() for each in kept.values())


def test_a_slow_learner_has_few_batches_and_none_is_dropped(recipe: Recipe) -> None:
    fast, slow = recipe.utterances("adpsgd")
    assert Counter(fast + slow) == Counter(map(str, range(UTTERANCES * COPIES)))
    assert len(slow) < len(fast)


@pytest.mark.parametrize("name", ["ddp", "bmuf_adam"])
def test_learners_that_step_together_have_equally_many(
    recipe: Recipe, name: str
) -> None:
    first, second = recipe.utterances(name)
    assert len(first) == len(second) == UTTERANCES // 2 * COPIES
    assert not set(first) & set(second)
