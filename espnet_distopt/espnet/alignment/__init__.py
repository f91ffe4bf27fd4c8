"""Word times from a CTC model of ESPnet."""
