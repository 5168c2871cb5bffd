"""The Team log in SQL: tables, the append transaction, projections, export and import."""
