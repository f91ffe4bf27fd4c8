"""Readers and writers of speech and text-line corpora, and of Kaldi's files."""
