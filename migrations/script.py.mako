"""${message}."""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    names = op.get_context().config.attributes["names"]


def downgrade() -> None:
    names = op.get_context().config.attributes["names"]
