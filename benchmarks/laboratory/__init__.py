"""A laboratory in which many learners train as one batch of matrices."""
