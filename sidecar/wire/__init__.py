"""Between the contract's messages and the decision's values; checks every documented limit."""
