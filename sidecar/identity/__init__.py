"""Identifies the conversation of a request: the carriers, their catalogue, and which of them is selected."""
