"""What users do with a model, an optimizer and a loop, and which algorithms take it."""
