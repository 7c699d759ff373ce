"""One suite, run on every database: tests ask for `database_url`."""
