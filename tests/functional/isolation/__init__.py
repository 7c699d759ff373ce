"""Attempts in processes of their own."""
