"""Extrapolating Adam's moments is better than averaging them with 64 learners, too.

See `bmuf_adam_moments`. Block momentum builds up over as many blocks as there are
learners, so these trainings have twice as many blocks as learners.
"""

from convergence.claims.bmuf_adam_moments import claim

CLAIM = claim({64: 128})
