"""The tests of Flask-TaskEngine."""
