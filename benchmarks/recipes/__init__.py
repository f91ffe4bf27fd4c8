"""Trainings of whole recipes by real processes, compared seed by seed."""
