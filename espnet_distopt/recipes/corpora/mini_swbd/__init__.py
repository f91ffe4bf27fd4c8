"""A synthetic corpus of telephone speech, on discs as the LDC's."""
