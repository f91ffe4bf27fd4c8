"""The vocabulary of algorithms: effects, learners, topologies, what a model holds."""
