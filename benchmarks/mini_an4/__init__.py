"""ESPnet3's smallest recipe, mini_an4, trained by learners of chosen speeds."""
