"""Placement by the sidecar: which attention-DP rank a conversation lives on.

A state machine in plain Python: no grpc, no protobuf, no I/O, and the clock is passed in. `placement` is its
whole surface; docs/placement.md states its rules.
"""
