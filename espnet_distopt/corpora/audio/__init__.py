"""Telephone speech in files: SPHERE, shorten, G.711; cutting it into utterances."""
