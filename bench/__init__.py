"""Measurements of the project, each beside what a user would otherwise write."""
