"""Virtual learners on small problems of real speech: what the experiments share."""
