"""What only PostgreSQL has: LISTEN, plans, storage, several isolation levels."""
