"""Runs the shop with a worker, on a machine that has nothing but Python: ``python -m example_app.demo``."""
