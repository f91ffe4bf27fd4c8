"""The package starts real processes whose computing and links are emulated."""
