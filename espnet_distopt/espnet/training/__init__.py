"""ESPnet's training with the communication of an algorithm."""
