"""Word and character error rates: sclite where it is installed, jiwer otherwise."""
