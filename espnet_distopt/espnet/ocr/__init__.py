"""Text lines in ESPnet: a task, its data and its decoding."""
