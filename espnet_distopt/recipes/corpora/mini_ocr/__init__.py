"""Makes a small corpus of text lines: printed ones, and handwritten digits."""
