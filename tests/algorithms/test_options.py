"""Options: names, types and ranges, with messages that help."""

import math
from typing import Any

import pytest

from espnet_distopt.algorithms.block.options import BmufAdamConfig, BmufConfig
from espnet_distopt.algorithms.gossip.adpsgd import AdpsgdConfig
from espnet_distopt.algorithms.options import configure
from espnet_distopt.algorithms.synchronous.allreduce import AllReduceConfig
from espnet_distopt.errors import InputError

WRONG: list[tuple[type, dict[str, Any], str]] = [
    (
        BmufConfig,
        {"perid": 4},
        r"unknown option 'perid'; did you mean period\? .*period=8",
    ),
    (BmufConfig, {3: 4}, "unknown option '3'"),
    (AllReduceConfig, {"period": 4}, r"unknown option 'period'\. .*: none"),
    (BmufConfig, {"period": "8"}, "period must be an integer, not '8'"),
    (BmufConfig, {"period": 8.0}, "period must be an integer, not 8.0"),
    (BmufConfig, {"period": True}, "period must be an integer, not True"),
    (BmufConfig, {"period": None}, "period must be an integer, not None"),
    (BmufConfig, {"period": 0}, "period must be >= 1, not 0"),
    (BmufConfig, {"momentum": "auto"}, "momentum must be a number or null"),
    (BmufConfig, {"momentum": 1.0}, r"momentum must be in \[0, 1\), not 1.0"),
    (BmufConfig, {"momentum": -0.1}, r"momentum must be in \[0, 1\)"),
    (BmufConfig, {"momentum": math.nan}, r"momentum must be in \[0, 1\)"),
    (BmufConfig, {"momentum": True}, "momentum must be a number or null"),
    (BmufConfig, {"block_lr": 0}, "block_lr must be > 0"),
    (BmufConfig, {"block_lr": "1e-3"}, "block_lr must be a number, not '1e-3'"),
    (BmufConfig, {"warmup": -1}, "warmup must be >= 0"),
    (BmufConfig, {"nesterov": "yes"}, "nesterov must be true or false"),
    (BmufConfig, {"nesterov": 1}, "nesterov must be true or false"),
    (BmufConfig, {"moments": "mean"}, "moments must be one of extrapolate, average"),
    (BmufConfig, {"moments": ["local"]}, "moments must be one of"),
    (AdpsgdConfig, {"max_staleness": 0}, "max_staleness must be >= 1"),
    (AdpsgdConfig, {"seed": "a"}, "seed must be an integer"),
    (AdpsgdConfig, {"from_consensus": None}, "from_consensus must be true or false"),
]


@pytest.mark.parametrize(("config", "conf", "words"), WRONG)
def test_wrong_options(config: type, conf: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^options of x: {words}") as caught:
        configure(config, conf, where="options of x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_block_lr_must_be_finite(value: float) -> None:
    with pytest.raises(InputError, match="block_lr"):
        configure(BmufConfig, {"block_lr": value}, where="here")


def test_right_options() -> None:
    conf = {"period": 4, "momentum": 0, "block_lr": 1, "moments": "reset"}
    config = configure(BmufConfig, conf, where="here")
    assert config == BmufConfig(period=4, momentum=0, block_lr=1, moments="reset")
    assert configure(BmufConfig, {"momentum": None}, where="here").momentum is None
    assert configure(AdpsgdConfig, {}, where="here") == AdpsgdConfig()


def test_bmuf_adam_extrapolates_by_default_and_bmuf_averages() -> None:
    assert BmufAdamConfig().moments == "extrapolate"
    assert BmufConfig().moments == "average"
