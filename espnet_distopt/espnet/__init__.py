"""The adapter: everything that knows ESPnet."""
