"""Training loops: a session ties a learner to one, and lets a later run go on."""

from espnet_distopt.session.session import Session, steps_alone

__all__ = ["Session", "steps_alone"]
