"""Synchronous Adam degrades and BMUF-Adam does not, with a BLSTM and CTC.

See `bmuf_adam_sync`.
"""

from dataclasses import replace

from convergence.claims.bmuf_adam_sync import claim, comparisons
from convergence.claims.no_loss_adam import ALONE
from convergence.training import STRINGS

RATES = (0.001, 0.002, 0.004)
SYNCHRONOUS_RATES = (0.002, 0.004, 0.008)

CLAIM = claim(
    comparisons(
        replace(ALONE, lr=0.0, samples=32_768, problem=STRINGS),
        (16,),
        RATES,
        SYNCHRONOUS_RATES,
    ),
    STRINGS,
)
