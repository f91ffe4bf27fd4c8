"""Models of the recipes: text lines, hybrid systems, and words from a CTC output."""
