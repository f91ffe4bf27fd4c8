"""Recordings that sound like nothing: ten patterns with noise, for tests."""

import torch
from convergence.stream_problems import FRAMES, MELS, Recordings


def sets() -> dict[str, Recordings]:
    source = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, FRAMES, MELS, generator=source)

    def made(each: int) -> Recordings:
        digits = torch.arange(10).repeat(each)
        noise = torch.randn(len(digits), FRAMES, MELS, generator=source)
        return Recordings(3 * (patterns[digits] + 0.3 * noise) - 7, digits)

    return {"train": made(20), "valid": made(5)}
