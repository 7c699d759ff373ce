"""Behaviour that needs no database."""
