"""Drivers: what carries out the effects that an algorithm yields."""
