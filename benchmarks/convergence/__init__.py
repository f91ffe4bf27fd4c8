"""The package trains virtual learners on small problems of real speech."""
