"""Values and pure functions: ids, snapshots, views, events, errors, the fold and the history builder."""
