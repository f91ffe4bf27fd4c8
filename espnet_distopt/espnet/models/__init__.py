"""The package has the encoders that ESPnet lacks."""
