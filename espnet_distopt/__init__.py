"""Asynchronous and communication-efficient data-parallel trainers for ESPnet."""
