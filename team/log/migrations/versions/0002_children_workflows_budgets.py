"""Awaited children, paused workflows, budgets of a Team, queues of a worker."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FILLED = (
    ("session", "tokens", sa.BigInteger(), "0"),
    ("team", "run_since", sa.Float(), "0"),
    ("team", "run_tokens", sa.BigInteger(), "0"),
    ("team", "run_turns", sa.Integer(), "0"),
    ("worker", "queues", sa.String(), "turns"),
)


def upgrade() -> None:
    op.create_table(
        "delegation",
        sa.Column("child_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("ended_turn", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("child_id", name=op.f("pk_delegation")),
    )
    op.create_index("ix_delegation_call", "delegation", ["turn_id", "step", "index"], unique=False)
    op.create_table(
        "workflow",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("due", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("busy_until", sa.Float(), nullable=True),
        sa.Column("engine", sa.String(), nullable=True),
        sa.Column("snapshot", sa.LargeBinary(), nullable=True),
        sa.Column("pending", sa.String(), nullable=False),
        sa.Column("delivered", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "step", "index", name=op.f("pk_workflow")),
    )
    op.create_index("ix_workflow_due", "workflow", ["due", "busy_until"], unique=False)
    # The rebuild of the projections, which a new version of them forces, fills in what the heads have counted.
    for table, column, kind, value in FILLED:
        op.add_column(table, sa.Column(column, kind, nullable=False, server_default=value))
    # The value is for rows that are there: from now on every insertion says its own.
    for table in dict.fromkeys(table for table, *_ in FILLED):
        with op.batch_alter_table(table) as batch:
            for column, kind in [(column, kind) for owner, column, kind, _ in FILLED if owner == table]:
                batch.alter_column(column, existing_type=kind, existing_nullable=False, server_default=None)
    with op.batch_alter_table("operation") as operation:
        operation.alter_column("lease_until", existing_type=sa.Float(), nullable=True)
    with op.batch_alter_table("wait") as wait:
        wait.alter_column("deadline", existing_type=sa.Float(), nullable=True)
