"""What differs from one database to the next, as answers to capabilities and as statements."""
