"""Rewrite the journal of a study, chain and all, as only a forger or a test would."""

import sqlite3

from bestpolicy.study.journal import chained
from bestpolicy.study.store import _ROOM, Store


def rewrite(path, name, change):
    """Replace the rows of a study by what `change` makes of their list."""
    with Store(path) as store:
        number = store.find(name)
        rows, _, trouble = store.whole_rows(number)
    assert not trouble
    rows, chain = change(rows), b""
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM entry WHERE id >= ? AND id < ?", (number * _ROOM, (number + 1) * _ROOM))
        for position, (kind, content) in enumerate(rows):
            chain = chained(chain, kind, content)
            values = (number * _ROOM + position, kind, content, chain)
            database.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", values)
        database.execute("UPDATE study SET rows = ?, head = ? WHERE id = ?", (len(rows), chain, number))
    database.close()
