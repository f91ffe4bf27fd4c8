"""Synthetic discs of the size of the LDC's, for the benchmark of the data stages."""
