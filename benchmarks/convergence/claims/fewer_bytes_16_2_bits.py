"""With 16 learners, changes in two bits send 100 times fewer bytes at no loss.

The claim is this project's own; see `fewer_bytes_16`, which sends as many bytes in
eight bits and loses something.
"""

from convergence.claims.fewer_bytes_16 import FEWER as EIGHT_BITS
from convergence.compressed import Setting, claim, comparison

FEWER = Setting(8, 0.0195, bits=2)
"""With k = 5, a chunk takes 10.25 bytes, and 10 in eight bits with k = 4."""

CLAIM = claim(
    learners=16,
    times=100,
    setting=FEWER,
    seeds=range(10, 15),
    note="The row for contrast asks what two bits change at equal bytes.",
    contrast=(comparison(16, FEWER, EIGHT_BITS, counts=False),),
)
