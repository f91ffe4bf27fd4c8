"""With four learners, changes in two bits send 100 times fewer bytes at no loss.

The claim is this project's own; see `fewer_bytes`, which sends as many bytes in eight
bits, and so fewer changes. Its first seeds are taken.
"""

from convergence.claims.fewer_bytes import FEWER as EIGHT_BITS
from convergence.compressed import Setting, claim, comparison

FEWER = Setting(8, 0.1133, bits=2)
"""With k = 29, a chunk takes 40.25 bytes, and 40 in eight bits with k = 19."""

LEAST = Setting(8, 0.02, bits=2)

CLAIM = claim(
    learners=4,
    times=100,
    setting=FEWER,
    seeds=range(10, 20),
    note="The rows for contrast ask what two bits change at equal bytes, and how far "
    "they go.",
    contrast=(
        comparison(4, FEWER, EIGHT_BITS, counts=False),
        comparison(4, LEAST, counts=False),
    ),
)
