"""Acoustic-model pieces that ESPnet lacks."""
