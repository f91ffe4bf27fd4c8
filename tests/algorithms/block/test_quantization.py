"""Values in few bits (docs/algorithms/block.md, CB1)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.algorithms.block.quantization import QUANTIZERS


def test_two_bits_are_the_means_of_two_halves() -> None:
    values = torch.tensor([[1.0, -3.0, 2.0, 100.0], [0.5, 0.5, -0.5, 0.5]])
    message = QUANTIZERS[2].write(values)
    assert len(message) == 2 * (2 + 2) + 2  # Two means a chunk, four codes a byte.
    expected = torch.tensor([[2.0, -2.0, 2.0, 100.0], [0.5, 0.5, -0.5, 0.5]])
    assert torch.equal(QUANTIZERS[2].read(message, values), expected)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    chunks=st.integers(1, 5),
    kept=st.integers(1, 40),
    power=st.floats(0.1, 8),
    bits=st.sampled_from([8, 2]),
)
def test_what_arrives_is_nearer_than_nothing(
    seed: int, chunks: int, kept: int, power: float, bits: int
) -> None:
    """Error feedback needs this, also where a few values are far larger than others."""
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(chunks, kept, generator=source, dtype=torch.float64)
    values = values.sign() * values.abs() ** power
    message = QUANTIZERS[bits].write(values)
    assert len(message) == -(-chunks * QUANTIZERS[bits].nbytes(kept) // 1)
    lost = (QUANTIZERS[bits].read(message, values) - values).norm(dim=1)
    assert (lost <= 0.99 * values.norm(dim=1)).all()


@pytest.mark.parametrize("bits", [8, 2])
def test_equal_values_arrive_to_bfloat16(bits: int) -> None:
    values = torch.full((3, 7), 0.1)
    values[1] *= -1
    found = QUANTIZERS[bits].read(QUANTIZERS[bits].write(values), values)
    torch.testing.assert_close(found, values, rtol=2**-8, atol=0)
