"""A synthetic corpus of text lines: printed, and handwritten digits."""
