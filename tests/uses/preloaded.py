"""The fork server imports this module, because the first compilation takes seconds."""

import torch

from tests.uses import table

__all__ = ["table"]

torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.ones(1, 1))
