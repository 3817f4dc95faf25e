"""What asking the sidecar costs, beside a bare gRPC echo, the same decision in process, and raw sockets."""
