"""Reads the LDC's telephone speech: Switchboard, Fisher, eval2000 and rt03."""
