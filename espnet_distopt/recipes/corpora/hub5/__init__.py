"""Reads and writes the files of NIST's Hub5 evaluations: PEM, STM, GLM, CTM."""
