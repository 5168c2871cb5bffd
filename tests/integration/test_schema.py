"""Migrations: equal to the tables, safe to run twice at once, and never backwards."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from team.log import projections
from team.log.database import Database
from team.log.schema import MIGRATIONS, known_revisions, migrate
from team.log.tables import PROJECTION_VERSION, Row
from team.model.errors import ConfigurationInvalid, StoreUnavailable
from tests.support.core import Core, together
from tests.support.postgres import PostgresProcess

Open = Callable[[str], Database]

STARTER = """
import sys
from team.log import revisions
from team.log.database import Database
from team.log.schema import migrate

database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate(database)
database.close()
"""

CATALOG = {
    # Not the statements themselves: a table that was altered has other words and another order of columns.
    "sqlite": [
        (
            'SELECT m.name, p.name, p.type, p."notnull", p.dflt_value, p.pk FROM sqlite_master m '
            "JOIN pragma_table_info(m.name) p WHERE m.type = 'table' AND m.name <> 'alembic_version'"
        ),
        (
            'SELECT m.name, l."unique", l.origin, l.partial, i.seqno, i.name FROM sqlite_master m '
            "JOIN pragma_index_list(m.name) l JOIN pragma_index_info(l.name) i "
            "WHERE m.type = 'table' AND m.name <> 'alembic_version'"
        ),
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
    ],
    "postgresql": [
        (
            "SELECT table_name, column_name, data_type, is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
        ),
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
        (
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'"
        ),
    ],
}


@pytest.fixture
def open_database() -> Iterator[Open]:
    opened: list[Database] = []

    def make(url: str) -> Database:
        opened.append(Database(url))
        return opened[-1]

    yield make
    for database in opened:
        database.close()


@pytest.fixture
def second_database_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[str]:
    """Another fresh database of the same kind."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'second.db'}"
        return
    server: PostgresProcess = request.getfixturevalue("postgres")
    url = server.create_database()
    yield url
    server.drop_database(url)


def catalog(database: Database) -> list[list[str]]:
    """Everything that the database itself says of its tables, constraints and indexes, however it was made."""
    with database.reading() as connection:
        return [
            sorted(str(tuple(row)) for row in connection.execute(text(query)))
            for query in CATALOG[connection.dialect.name]
        ]


def value(database: Database, query: str) -> Any:
    with database.reading() as connection:
        return connection.execute(text(query)).scalar_one()


def test_a_migrated_store_equals_the_tables(database_url: str, second_database_url: str, open_database: Open) -> None:
    migrated, created = open_database(database_url), open_database(second_database_url)
    migrate(migrated)
    created.writing(Row.metadata.create_all)

    assert catalog(migrated) == catalog(created)
    assert len(catalog(migrated)[0]) > len(Row.metadata.tables)
    with migrated.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []


def test_the_comparison_sees_a_lost_partial_index(
    database_url: str, second_database_url: str, open_database: Open
) -> None:
    migrated, created = open_database(database_url), open_database(second_database_url)
    migrate(migrated)
    created.writing(Row.metadata.create_all)

    def weaken(connection: Connection) -> None:
        connection.execute(text("DROP INDEX ix_event_visible"))
        connection.execute(text("CREATE INDEX ix_event_visible ON event (session_id, seq)"))

    migrated.writing(weaken)
    assert catalog(migrated) != catalog(created)


def test_revision_files_form_one_line_that_starts_with_their_numbers() -> None:
    script = ScriptDirectory(str(MIGRATIONS))
    revisions = [revision.revision for revision in script.walk_revisions()][::-1]
    assert revisions == known_revisions()
    assert script.get_heads() == [known_revisions()[-1]]


def test_an_empty_store_is_made_once_and_an_up_to_date_one_is_left_alone(
    database_url: str, open_database: Open
) -> None:
    database = open_database(database_url)
    migrate(database)
    assert value(database, "SELECT version_num FROM alembic_version") == known_revisions()[-1]
    database.writing(lambda c: c.execute(text("INSERT INTO meta (key, value) VALUES ('kept', 'yes')")))

    before = catalog(database)
    migrate(database)
    assert catalog(database) == before
    assert value(database, "SELECT value FROM meta WHERE key = 'kept'") == "yes"


def test_an_up_to_date_store_is_not_written(
    database_url: str, open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(open_database(database_url))
    second = open_database(database_url)

    def forbid(_body: Callable[[Connection], Any]) -> Any:
        raise AssertionError("an up-to-date store was written")

    monkeypatch.setattr(second, "writing", forbid)
    migrate(second)


def test_threads_that_start_at_once_migrate_once(database_url: str, open_database: Open) -> None:
    databases = [open_database(database_url) for _ in range(4)]
    results = together(*(lambda database=database: migrate(database) for database in databases))
    assert results == [None] * 4
    assert value(databases[0], "SELECT count(*) FROM alembic_version") == 1


def test_processes_that_start_at_once_migrate_once(database_url: str, open_database: Open) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _out, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
    database = open_database(database_url)
    assert value(database, "SELECT version_num FROM alembic_version") == known_revisions()[-1]


def test_a_newer_store_is_refused_and_left_alone(database_url: str, open_database: Open) -> None:
    database = open_database(database_url)
    migrate(database)
    database.writing(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9000'")))
    before = catalog(database)

    newest = known_revisions()[-1]
    with pytest.raises(ConfigurationInvalid, match=rf"schema revision 9000.*up to {newest}.*a newer version wrote it"):
        migrate(database)
    assert catalog(database) == before
    assert value(database, "SELECT version_num FROM alembic_version") == "9000"


def test_a_database_of_something_else_is_refused_and_left_alone(database_url: str, open_database: Open) -> None:
    database = open_database(database_url)
    database.writing(lambda c: c.execute(text("CREATE TABLE task (title VARCHAR)")))
    with pytest.raises(ConfigurationInvalid, match="a table 'task' but no schema revision"):
        migrate(database)
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == ["task"]


def test_a_failed_migration_leaves_nothing_behind(
    database_url: str, open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_connection: Connection) -> list[str]:
        raise RuntimeError("the rebuild fails")

    monkeypatch.setattr(projections, "rebuild_outdated", fail)
    database = open_database(database_url)
    with pytest.raises(RuntimeError):
        migrate(database)
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == []


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, open_database: Open) -> None:
    file = tmp_path / "notes.db"
    file.write_text("these are notes, and many of them\n" * 100)
    with pytest.raises(ConfigurationInvalid, match=r"notes\.db cannot be brought up to date \(file is not a database"):
        migrate(open_database(f"sqlite:///{file}"))
    assert file.read_text().startswith("these are notes")


def test_a_user_without_rights_is_told_so(postgres_url: str, open_database: Open) -> None:
    owner = open_database(postgres_url)
    name = f"reader_{secrets.token_hex(6)}"
    owner.writing(lambda c: c.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'hidden'")))
    reader = open_database(str(owner.url.set(username=name, password="hidden").render_as_string(hide_password=False)))
    try:
        with pytest.raises(ConfigurationInvalid, match="permission denied") as refusal:
            migrate(reader)
        assert "hidden" not in refusal.value.message
    finally:
        reader.close()
        owner.writing(lambda c: c.execute(text(f"DROP ROLE {name}")))


def test_an_unreachable_database_is_a_retryable_error(open_database: Open) -> None:
    with pytest.raises(StoreUnavailable):
        migrate(open_database("postgresql+psycopg://nobody@127.0.0.1:1/none"))


def outdate(core: Core) -> None:
    """As an older version left it: another projection version, a head of another shape, another roster."""
    core.sql('UPDATE session SET head = \'{"shape":"of an older version"}\', seq = 0')
    core.sql("DELETE FROM member")
    core.sql("UPDATE task SET data = 'old', status = 'old'")
    core.sql("UPDATE meta SET value = '0' WHERE key = 'projection-version'")


@pytest.fixture
def busy_core(database_url: str, tmp_path: Path, open_database: Open) -> Iterator[Core]:
    """A store with a board, a running member, a parked one and a waiting message."""
    migrate(open_database(database_url))
    core = Core(database_url, tmp_path / "checkout")
    lead = core.lead("begin")
    core.act(lead, "team_task_create", subject="one", description="")
    core.spawn(lead, "writer")
    core.spawn(lead, "reader")
    core.agent(core.sessions.member_session(lead, "writer")).begin()
    assert core.agent(core.sessions.member_session(lead, "reader")).wait() == "parked"
    core.act(lead, "send_message", target="writer", message="hello")
    yield core
    core.close()


def test_projections_of_another_version_are_rebuilt_from_the_logs(busy_core: Core) -> None:
    core = busy_core
    lead = core.reading(lambda c: c.execute(text("SELECT id FROM session WHERE depth = 0")).scalar_one())
    before = core.act(lead, "list_agents"), core.act(lead, "team_task_list")
    outdate(core)

    migrate(core.database)
    assert core.sessions.doctor().ok
    assert (core.act(lead, "list_agents"), core.act(lead, "team_task_list")) == before
    assert value(core.database, "SELECT value FROM meta WHERE key = 'projection-version'") == str(PROJECTION_VERSION)


def test_a_damaged_session_does_not_keep_the_others_from_being_rebuilt(
    busy_core: Core, capsys: pytest.CaptureFixture[str]
) -> None:
    core = busy_core
    damaged = core.lead()
    core.insert_raw(damaged, "from/the-future", "{}")
    core.sql("UPDATE task SET data = 'old'")
    core.sql("UPDATE meta SET value = '0' WHERE key = 'projection-version'")

    migrate(core.database)
    checks = {check.id: check for check in core.sessions.doctor().sessions}
    assert [check.ok for check in checks.values()].count(False) == 1
    assert "'from/the-future'" in str(checks[damaged].fault)
    assert "'from/the-future'" in capsys.readouterr().out
