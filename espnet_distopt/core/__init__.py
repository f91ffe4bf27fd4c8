"""The vocabulary of algorithms: effects, learners, topologies and a model's tensors."""
