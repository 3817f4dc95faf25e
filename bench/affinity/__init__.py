"""Predicts what conversation affinity gains on the topology of the source report; `make bench-affinity`.

Clients and sidecars are the real ones, each worker with a sidecar process of its own. Engines, network and
workload are models (`parameters.yaml`), so a figure in seconds is a prediction and never a measurement.
"""
