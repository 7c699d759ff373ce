"""Behaviour of real worker processes, named like the feature list."""
