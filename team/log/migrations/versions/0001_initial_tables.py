"""Initial tables. There is no way back: older code refuses a newer store."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "call",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("result_seq", sa.Integer(), nullable=True),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "call_id", name=op.f("pk_call")),
        sa.UniqueConstraint(
            "session_id", "turn_id", "step", "index", name=op.f("uq_call_session_id_turn_id_step_index")
        ),
    )
    op.create_table(
        "claim",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("claimed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "epoch", name=op.f("pk_claim")),
    )
    op.create_index(op.f("ix_claim_session_id"), "claim", ["session_id"], unique=False)
    op.create_table(
        "event",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("time", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("visible", sa.Boolean(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("pk_event")),
    )
    op.create_index(
        "ix_event_visible",
        "event",
        ["session_id", "seq"],
        unique=False,
        postgresql_where=sa.text("visible"),
        sqlite_where=sa.text("visible"),
    )
    op.create_table(
        "file",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "path", name=op.f("pk_file")),
    )
    op.create_table(
        "idempotency",
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("request", sa.String(), nullable=False),
        sa.Column("response", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_created_at"), "idempotency", ["created_at"], unique=False)
    op.create_table(
        "inbox",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("sender_turn", sa.String(), nullable=True),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "message_id", name=op.f("pk_inbox")),
    )
    op.create_index(
        "ix_inbox_pending",
        "inbox",
        ["session_id", "seq"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
        sqlite_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_inbox_sender_turn", "inbox", ["session_id", "sender_turn"], unique=False)
    op.create_table(
        "member",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("member_id", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "name", name=op.f("pk_member")),
    )
    op.create_index(op.f("ix_member_member_id"), "member", ["member_id"], unique=False)
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "operation",
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("call_key", sa.String(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "name", name=op.f("pk_operation")),
    )
    op.create_table(
        "run",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("member", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("next_dispatch_at", sa.Float(), nullable=True),
        sa.Column("dispatches", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_run")),
        sa.UniqueConstraint("request_id", name=op.f("uq_run_request_id")),
    )
    op.create_index("ix_run_dispatch", "run", ["state", "next_dispatch_at"], unique=False)
    op.create_index("ix_run_lease", "run", ["state", "lease_until"], unique=False)
    op.create_index(op.f("ix_run_session_id"), "run", ["session_id"], unique=False)
    op.create_index(op.f("ix_run_team_id"), "run", ["team_id"], unique=False)
    op.create_table(
        "session",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("root_id", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("created_order", sa.Float(), nullable=False),
        sa.Column("header", sa.String(), nullable=False),
        sa.Column("head", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("guard_turn", sa.String(), nullable=True),
        sa.Column("guard_epoch", sa.Integer(), nullable=True),
        sa.Column("guard_until", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
    )
    op.create_index(op.f("ix_session_parent_id"), "session", ["parent_id"], unique=False)
    op.create_index("ix_session_root", "session", ["root_id", "depth", "created_order"], unique=False)
    op.create_table(
        "task",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=True),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_task")),
    )
    op.create_table(
        "team",
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("edge_counter", sa.Integer(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", name=op.f("pk_team")),
    )
    op.create_table(
        "turn",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_turn")),
    )
    op.create_index("ix_turn_session", "turn", ["session_id", "ordinal"], unique=False)
    op.create_index(
        "uq_turn_open",
        "turn",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("phase <> 'ended'"),
        sqlite_where=sa.text("phase <> 'ended'"),
    )
    op.create_table(
        "wait",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=True),
        sa.Column("counter", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "step", "index", name=op.f("pk_wait")),
    )
    op.create_index("ix_wait_deadline", "wait", ["deadline"], unique=False)
    op.create_index("ix_wait_team", "wait", ["team_id", "counter"], unique=False)
    op.create_table(
        "worker",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("last_seen", sa.Float(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_worker")),
    )
    op.create_table(
        "write",
        sa.Column("turn_id", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("response", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "epoch", "number", name=op.f("pk_write")),
    )
    op.create_index(op.f("ix_write_created_at"), "write", ["created_at"], unique=False)
