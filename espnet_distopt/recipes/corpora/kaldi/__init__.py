"""Kaldi's files: data directories, their tables, and arks."""
