"""Alembic's entry point: runs the migrations on the connection that `migrate` passes in."""

from __future__ import annotations

from alembic import context

from workers.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
