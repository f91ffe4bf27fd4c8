"""The package predicts step times that others have published."""
