"""The policy: its schema, its file, its compiled form, and its reloads."""
