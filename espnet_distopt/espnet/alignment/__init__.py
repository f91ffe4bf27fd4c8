"""The package computes word times from an ESPnet model that has a CTC output."""
