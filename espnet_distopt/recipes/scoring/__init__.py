"""Counts word and character errors, by sclite where it is installed, else by jiwer."""
