"""The package runs other implementations, the peers; each module begins one of them."""
