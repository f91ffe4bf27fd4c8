"""What recipes need: corpora, HMMs, scoring, models. No trainer imports it."""
