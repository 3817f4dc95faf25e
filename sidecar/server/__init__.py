"""The gRPC and HTTP servers: RPCs, listeners, health, TLS and draining."""
