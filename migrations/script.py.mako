"""${message}."""

from __future__ import annotations

from typing import Any

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say what it adds or changes."""
    names = given_names()


def downgrade() -> None:
    """Take it back."""
    names = given_names()


def given_names() -> Any:
    """Return the names of the installation that is migrated."""
    config = op.get_context().config
    assert config is not None
    return config.attributes["names"]
