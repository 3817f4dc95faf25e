"""What the two sides of the contract share: its vocabulary, limits, id rules, tokens and addresses.

Plain Python without dependencies. The messages themselves are in `routing_hints.v1`, generated from proto/.
"""
