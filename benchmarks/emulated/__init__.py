"""Real processes, with emulated computing and links: what the timings share."""
