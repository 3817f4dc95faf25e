"""What the sidecar reports about itself: metrics, logs and traces."""
