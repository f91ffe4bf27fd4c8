"""Readers and writers that the recipes share: data directories, arks, corpora."""
