"""Kaldi data directories and arks."""
