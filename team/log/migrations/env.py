"""What Alembic runs: the migrations of the connection that its caller has opened."""

from alembic import context

from team.log.revisions import render_item
from team.log.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_item=render_item,
)
with context.begin_transaction():
    context.run_migrations()
