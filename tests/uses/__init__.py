"""These tests check what users may do in their training loop with each algorithm."""
