"""The package is the adapter to ESPnet; only it and `bin` import ESPnet."""
