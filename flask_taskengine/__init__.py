"""Durable tasks in a Flask application's own database."""
