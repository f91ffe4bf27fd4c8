"""The LDC's corpora of telephone speech: Switchboard, Fisher, eval2000, rt03."""
