"""Which conversation a request belongs to: the carriers, their catalogue, and which of them wins."""
