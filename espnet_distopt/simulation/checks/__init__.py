"""The package checks what must hold in every simulated run."""
