"""What a call of the sidecar costs, beside a bare gRPC echo, the decision in process, and raw sockets."""
