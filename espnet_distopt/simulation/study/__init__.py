"""The package compares methods on a virtual cluster, for `bin.simulate`."""
