"""Test vectors of the identity rules, for this sidecar and for any other that speaks the contract."""
