"""Reads telephone speech (SPHERE, shorten, G.711) and cuts it into utterances."""
