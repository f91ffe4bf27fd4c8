"""Settings of the whole test suite: one thread, the same examples every time."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")
