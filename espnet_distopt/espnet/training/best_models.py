"""Which models ESPnet writes beside those of the epochs, when a training ends."""

import re
from collections.abc import Mapping
from typing import Any

from espnet_distopt.errors import InputError

DEFAULT = tuple(
    f"{phase}.{key}" for key in ("loss", "acc") for phase in ("train", "valid")
)
"""What ESPnet compares epochs by if `best_model_criterion` says nothing."""


def check_model(model: str, config: Mapping[str, Any]) -> None:
    """Refuse a model that a training with a configuration would not write.

    Args:
        model: the name of its file, as valid.loss.ave.pth. Names of another form, as
            latest.pth and 3epoch.pth, are not checked.
        config: the configuration of the training.

    Raises:
        InputError: epochs are not compared by what the name says.
    """
    named = re.fullmatch(r"(\w+\.\w+)\.(best|ave(_\d+best)?)\.pth", model)
    criteria = config.get("best_model_criterion")
    found = DEFAULT if criteria is None else [f"{c[0]}.{c[1]}" for c in criteria]
    if named is None or named[1] in found:
        return
    others = " or ".join(f"{each}.{named[2]}.pth" for each in found)
    raise InputError(
        f"the training will not write the model {model}, because its "
        f"best_model_criterion has no {named[1].replace('.', ' ')}: take {others}"
    )
