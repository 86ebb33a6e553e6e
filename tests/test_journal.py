"""What is stored proves itself: flipped bits, edited numbers, lost rows and hostile files do not get through."""

import json
import random
import sqlite3
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import bestpolicy as bp
from bestpolicy.report.accounts import from_store
from bestpolicy.study.database import Database
from bestpolicy.study.journal import pack, tally_from_bytes, tally_to_bytes, unpack
from bestpolicy.study.store import Store
from tests.journals import rewrite

MODEL = bp.ExactSimulator(bp.instances.load("two-state"))
ASKED = {"epsilon": 0.2, "delta": 0.1, "algorithm": "tight", "seed": 1}


@cache
def _two_studies() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        bp.identify(MODEL, **ASKED, store=path, name="whole")
        study = bp.Study(MODEL.problem, **ASKED | {"epsilon": 0.01}, store=path, name="cut")
        while len(study.checks) < 8:
            for query in study.ask():
                study.tell(query, MODEL.sample(query.pulls, query.rng()))
        study.close()
        return path.read_bytes()


def two_studies(path):
    """Write a file with a study that has ended and one that has not."""
    path.write_bytes(_two_studies())
    return path


def everything(path):
    """Return every number that users get to see of a file."""
    known = [repr(one) for one in bp.studies(path)]
    for name in ("whole", "cut"):
        study = bp.Study.resume(path, name)
        known.append([(check.to_dict(), check.policy.tolist()) for check in study.checks])
        known.append([(query.index, query.pulls.counts.tolist()) for query in study.ask()])
        known.append({key: value for key, value in study.result().to_dict().items() if key != "seconds"})
        study.close()
        account = from_store(path, name)
        known.append((account.samples, account.epsilon, account.outcome, account.tally.next_rewards.tolist()))
    return known


def test_bits_that_flip_change_nothing_or_are_noticed(tmp_path):
    content = two_studies(tmp_path / "whole.db").read_bytes()
    expected, store = everything(tmp_path / "whole.db"), tmp_path / "flipped.db"
    generator, errors = random.Random(0), []
    for _ in range(60):
        flipped = bytearray(content)
        place = generator.randrange(len(content))
        flipped[place] ^= 1 << generator.randrange(8)
        store.write_bytes(flipped)
        try:
            assert everything(store) == expected, place
        except bp.BestPolicyError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert not [error for error in errors if "\n" in error]


def test_a_damaged_name_of_a_table_is_one_error(tmp_path):
    """SQLite quotes it, though it is no text any more."""
    content = bytearray(two_studies(tmp_path / "run.db").read_bytes())
    content[content.index(b"CREATE TABLE study") + len("CREATE TABLE st")] ^= 128
    (tmp_path / "damaged.db").write_bytes(content)
    for use in (bp.studies, bp.Study.resume):
        with pytest.raises(bp.StoreError):
            use(tmp_path / "damaged.db")


@pytest.mark.parametrize("kind", ["begun", "problem", "asked", "answer", "look", "ended"])
def test_an_edited_row_is_refused_and_what_stands_before_it_can_be_rescued(tmp_path, kind):
    store = two_studies(tmp_path / "run.db")
    with sqlite3.connect(store) as database:
        number, content = database.execute(
            "SELECT id, content FROM entry WHERE kind = ? ORDER BY id LIMIT 1 OFFSET ?", (kind, 3 * (kind == "answer"))
        ).fetchone()
        database.execute("UPDATE entry SET content = ? WHERE id = ?", (content[:-9] + b"\x01" + content[-8:], number))
    database.close()
    position = number - 2**40
    for use in (bp.studies, lambda path: bp.Study.resume(path, "whole"), lambda path: from_store(path, "whole")):
        with pytest.raises(bp.StoreError, match=f"row {position} of study 1"):
            use(store)
    if kind != "begun":
        assert bp.Study.resume(store, "cut").samples > 0  # the other one is whole
    rescued = bp.rescue(store, tmp_path / "rescued.db")
    assert [one.name for one in rescued] == (["cut"] if kind in ("begun", "problem") else ["whole", "cut"])
    if kind not in ("begun", "problem"):
        if kind == "answer":
            assert rescued[0].answers == 3
        result = bp.drive(bp.Study.resume(tmp_path / "rescued.db", "whole"), MODEL)
        assert result.samples == bp.identify(MODEL, **ASKED).samples
    with pytest.raises(bp.InvalidInput, match="already"):
        bp.rescue(store, tmp_path / "rescued.db")


def test_rows_that_are_lost_are_missed(tmp_path):
    store = two_studies(tmp_path / "run.db")
    with sqlite3.connect(store) as database:
        database.execute("DELETE FROM entry WHERE id = (SELECT MAX(id) FROM entry)")
    database.close()
    with pytest.raises(bp.StoreError, match=r"row \d+ of study 2 is missing.* answers before it"):
        bp.Study.resume(store, "cut")


def test_a_study_begins_whole_or_not_at_all(tmp_path, monkeypatch):
    """Killed at any statement of its beginning, it leaves the other studies of the file as they are."""
    store = two_studies(tmp_path / "run.db")
    expected, execute = everything(store), Database.execute
    for last in range(20):
        left = iter(range(last))

        def until_killed(database, *what, left=left):
            if next(left, None) is None and what[0].startswith(("INSERT", "UPDATE")):
                raise KeyboardInterrupt
            return execute(database, *what)

        with monkeypatch.context() as patch:
            patch.setattr(Database, "execute", until_killed)
            with suppress(KeyboardInterrupt):
                bp.Study(MODEL.problem, **ASKED, store=store, name=f"new {last}").close()
        names = [one.name for one in bp.studies(store)]
        assert names[:2] == ["whole", "cut"]
    assert 2 < len(names) < 22
    for name in names[2:]:  # even one that has not asked yet
        assert bp.drive(bp.Study.resume(store, name), MODEL).certified
    assert everything(store)[-8:] == expected[-8:]  # the first numbers list the new ones, too


def test_a_study_that_was_let_go_is_taken_again(tmp_path):
    study = bp.Study(MODEL.problem, **ASKED, store=tmp_path / "run.db")
    study.close()
    result = bp.drive(study, MODEL)
    assert bp.Study.resume(tmp_path / "run.db").result().to_dict() == result.to_dict()


def test_two_cannot_go_on_with_the_same_study(tmp_path):
    study = bp.Study(MODEL.problem, **ASKED, store=tmp_path / "run.db")
    study.close()
    bp.drive(bp.Study.resume(tmp_path / "run.db"), MODEL)
    (query,) = study.ask()
    with pytest.raises(bp.StoreError, match="has been changed"):
        study.tell(query, MODEL.sample(query.pulls, query.rng()))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW endless AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM study; END",
        "CREATE TABLE other (x)",
        "CREATE INDEX i ON entry (kind)",
        "ALTER TABLE entry ADD COLUMN more AS (kind || content)",
        "ALTER TABLE entry RENAME TO entries",
        "DROP TABLE study",
        "CREATE VIRTUAL TABLE v USING fts5(x)",
    ],
)
def test_a_file_with_anything_but_our_tables_is_refused(tmp_path, statement):
    store = two_studies(tmp_path / "run.db")
    with sqlite3.connect(store) as database:
        database.execute(statement)
    database.close()
    for use in (bp.studies, lambda path: bp.Study.resume(path, "cut"), lambda path: Store(path, write=True)):
        with pytest.raises(bp.StoreError, match="damaged"):
            use(store)


def test_an_endless_view_in_place_of_a_table_does_not_hang(tmp_path):
    store = two_studies(tmp_path / "run.db")
    with sqlite3.connect(store) as database:
        database.execute("DROP TABLE study")
        database.execute(
            "CREATE VIEW study AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
            "SELECT id, 1 AS rows, x'' AS head FROM n"
        )
    database.close()
    with pytest.raises(bp.StoreError, match="none that we make"):
        bp.studies(store)


def forged(kind, change):
    def changed(rows):
        place = next(i for i, row in enumerate(rows) if row[0] == kind)
        return [*rows[:place], (kind, change(rows[place][1])), *rows[place + 1 :]]

    return changed


def with_sizes(content, *sizes):
    start = 16 + len(b"tally 2\n")
    numbers = b"".join(size.to_bytes(8, "little", signed=True) for size in sizes)
    return content[:start] + numbers + content[start + len(numbers) :]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("begun", lambda content: b"{}"),
        ("begun", lambda content: b"[" * 10**5),
        ("begun", lambda content: content.replace(b'"seed": 1', b'"seed": 1e999')),
        ("begun", lambda content: content.replace(b'"asked_epsilon": 0.01', b'"asked_epsilon": NaN')),
        ("begun", lambda content: content.replace(b'"delta": 0.1', b'"delta": "0.1"')),
        ("begun", lambda content: content.replace(b'"algorithm": "tight"', b'"algorithm": ["tight"]')),
        ("problem", lambda content: b"PK"),
        ("asked", lambda content: b"\xff" * 8),
        ("asked", lambda content: pack({"position": 0})),
        ("asked", lambda content: pack(unpack(content) | {"pulls": {"pairs": 3, "counts": "x"}})),
        ("asked", lambda content: pack(unpack(content) | {"position": -7})),
        ("asked", lambda content: pack(unpack(content) | {"first": "x", "looks": {}})),
        ("answer", lambda content: content[:10]),
        ("answer", lambda content: with_sizes(content, 1, 2**40, 2**40, 0)),
        ("answer", lambda content: with_sizes(content, 2**62, 4, 2**62, 1)),
        ("answer", lambda content: content[:16] + b"hello"),
        ("look", lambda content: pack({"position": 0, "numbers": {"epsilon": "x"}})),
        ("look", lambda content: pack({"position": 0, "numbers": [1]})),
        ("ended", lambda content: b"[]"),
        ("ended", lambda content: b'{"outcome": "splendid"}'),
        ("ended", lambda content: json.dumps({"outcome": "certified"}).encode()),
        ("ended", lambda content: json.dumps(json.loads(content) | {"samples": 9}).encode()),
        ("ended", lambda content: json.dumps(json.loads(content) | {"epsilon": 1e-9}).encode()),
        ("asked", lambda content: pack(unpack(content) | {"decided": {"design": "x"}})),
    ],
)
def test_a_forged_journal_gives_one_clear_error(tmp_path, kind, change):
    """The chain is right here, what stands in the rows is not."""
    store = two_studies(tmp_path / "run.db")
    name, errors = "whole" if kind == "ended" else "cut", []
    rewrite(store, name, forged(kind, change))
    for use in (bp.studies, lambda path: bp.Study.resume(path, name), lambda path: from_store(path, name)):
        try:
            use(store)
        except bp.BestPolicyError as error:
            errors.append(str(error))
    assert errors
    assert not [error for error in errors if "\n" in error]


def test_a_tally_that_declares_too_much_is_not_made():
    tally = MODEL.sample(bp.Pulls([0, 1], [[5, 5]]), bp.Query(0, None, 0).rng())
    content = tally_to_bytes(tally)

    def declaring(states: int) -> bytes:
        return content[:8] + b"".join(n.to_bytes(8, "little") for n in (1, 2, states)) + content[32:]

    with pytest.raises(bp.StoreError, match="it would have"):
        tally_from_bytes(declaring(2**62))
    with pytest.raises(bp.InvalidInput, match=r"would take .* of memory"):
        tally_from_bytes(declaring(2**50)).next_counts  # noqa: B018


def test_a_tally_with_cells_out_of_order_is_damaged():
    content = tally_to_bytes(MODEL.sample(bp.Pulls([0, 1], [[50, 50]]), bp.Query(0, None, 0).rng()))
    cells = slice(8 + 8 * (4 + 2), 8 + 8 * (4 + 2) + 16)
    turned = content[: cells.start] + content[cells][8:] + content[cells][:8] + content[cells.stop :]
    with pytest.raises(bp.StoreError, match="not in order"):
        tally_from_bytes(turned)
