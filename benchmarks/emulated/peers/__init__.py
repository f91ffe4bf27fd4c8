"""Other implementations, one file each, as `methods.Training`s."""
