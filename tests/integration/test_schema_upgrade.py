"""A store of the first revision, with a Team whose run was stopped half-way, is brought to the newest and goes on."""

import sqlite3
from pathlib import Path

from config.settings import Settings
from team.log.database import Database
from team.log.schema import known_revisions, migrate
from team.service.sessions import SessionService
from team.service.store import Store
from team.tools.catalog import request_header

STORE = Path(__file__).parent / "stores" / "0001.sql"


def test_an_older_store_is_upgraded_with_its_open_turns(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    connection = sqlite3.connect(path)
    connection.executescript(STORE.read_text(encoding="utf-8"))
    events = connection.execute("SELECT session_id, seq, type, data FROM event ORDER BY session_id, seq").fetchall()
    turns = connection.execute("SELECT turn_id, state FROM run ORDER BY turn_id").fetchall()
    connection.close()
    assert turns

    database = Database(f"sqlite:///{path}")
    try:
        migrate(database)
        settings = Settings(data_dir=tmp_path, workspace_root=tmp_path)
        store = Store(database, settings, request_header, lambda _effects: None, "workspace")
        report = SessionService(store).doctor()
        assert report.ok, report
        with database.reading() as reading:
            revision = reading.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
            kept = reading.exec_driver_sql(
                "SELECT session_id, seq, type, data FROM event ORDER BY session_id, seq"
            ).all()
            open_turns = reading.exec_driver_sql("SELECT turn_id, state FROM run ORDER BY turn_id").all()
            invitations = reading.exec_driver_sql("SELECT count(*) FROM invite").scalar_one()
        assert revision == known_revisions()[-1]
        assert invitations == 0
        assert [tuple(row) for row in kept] == events
        assert [tuple(row) for row in open_turns] == turns
    finally:
        database.close()
