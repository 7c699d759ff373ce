"""How the engine's rows are written: SQLAlchemy Core on a given Connection; nothing in here begins or commits."""
