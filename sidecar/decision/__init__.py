"""What to do with one engine request, and what became of it. Start at `service`."""
