"""Optimizers that neither torch nor ESPnet has."""
