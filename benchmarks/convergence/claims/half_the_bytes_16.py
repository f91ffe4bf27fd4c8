"""With 16 learners, averages of blocks in bfloat16 send half the bytes at no loss.

The claim is this project's own, see `half_the_bytes`. Such trainings take four times as
long, and so there are half as many. Five seeds left an interval from -4.2 to +14.9 %.
"""

from convergence.half_the_bytes import claim

CLAIM = claim(learners=16, seeds=range(16))
