"""Test vectors of the identity rules, for this sidecar and any other implementation of the contract."""
