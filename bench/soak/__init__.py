"""A soak: a worker's mixed load while its sidecar is killed, stopped and restarted."""
