"""Optimizers that are in neither PyTorch nor ESPnet."""
