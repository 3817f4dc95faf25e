"""Compares placements of conversations on the ranks of a simulated engine; `make bench-placement`.

The sidecar's placement is the real one. Engine and workload are models: figures compare placements with one
another and say nothing about any real engine's latency.
"""
