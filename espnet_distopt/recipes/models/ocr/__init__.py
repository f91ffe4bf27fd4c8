"""The package adds text lines to ESPnet: a task, its data and its decoding."""
