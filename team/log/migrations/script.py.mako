"""${message.capitalize()}. There is no way back: older code refuses a newer store."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${"\n".join(line for line in (upgrades or "pass").split("\n") if "# ###" not in line).strip()}
