"""The package starts learners, kills one of them, and reads what followed."""
