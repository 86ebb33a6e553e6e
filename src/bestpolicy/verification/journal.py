"""Was what a certificate rests on fixed before its samples were drawn? The study's file shows it.

The file is a journal of rows, each with SHA-256(chain of the row before, kind, 0, content); a certificate names the
chain of the first row (the root: problem and settings), that of its own moment (the head) and the number of rows up to
there. Here the rows are read anew, the chain is recomputed, and what was asked, decided and told is compared with the
certificate:

- problem, δ, algorithm, parameters and seed are those of the first row;
- the design and the list of pairs stand in the first request, before any answer;
- a lag's prior and values stand in a request, after just as many samples as the certificate says, and its samples are
  the sum of answers that follow;
- weights of samples in the regression stand before the samples;
- for Theorem U all that its lag has fixed stands in a request, as above, and the first request has no design;
- for Theorems I and UD so does what bets on each batch rest on, before its answers (`journal_bets`);
- for Theorem O the policy was named in a request, as the so-manyth, and its returns are those of all episodes that were
  asked of it from there on.

Nobody can change such a row afterwards and keep the head. Whoever makes up a whole study can make up its journal as
well: give the head to somebody else while the study runs, and even that is excluded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from math import isfinite, prod
from typing import Any
from urllib.parse import quote

import numpy as np

from bestpolicy.errors import InvalidInput
from bestpolicy.verification import hull_gaps
from bestpolicy.verification.hull import check_order
from bestpolicy.verification.journal_bets import require_batches, require_lag
from bestpolicy.verification.reading import Budget, Floats, Ints, Node, Rejected
from bestpolicy.verification.tables import FIELDS

_ROOM = 2**40  # row p of study n has the id n·2⁴⁰ + p
_LARGEST_ROW = 2**30 - 1
_NEXT_OF_TABLE = 0.35  # of δ that is left after a lag of Theorem U
_TABLE = "CREATE TABLE entry (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, content BLOB NOT NULL, chain BLOB NOT NULL)"
_ROUNDING = 1e-9  # relative error of sums of rewards that were added up in another order

Row = tuple[str, bytes]


def check_journal(document: Node, path: str | os.PathLike[str]) -> None:
    """Raise `Rejected` unless the study in the file shows what the certificate says.

    Parameters
    ----------
    document : Node
        The certificate.
    path : path
        The file of studies.
    """
    chain = document.child("run").child("chain")
    rows = _rows_of_the_study(path, chain, document.budget)
    story = _Story(rows, document)
    story.check_settings()
    if document.child("proof").fields:
        story.check_samples()


def _rows_of_the_study(path: str | os.PathLike[str], chain: Node, budget: Budget) -> list[Row]:
    """Return the rows up to the certificate's, having recomputed their chain."""
    root, head, count = chain.text("root"), chain.text("head"), chain.whole("rows", 1)
    name = os.fsdecode(path)
    if not os.path.isfile(name):
        raise InvalidInput(f"no such file: {name}. Give the file of studies that the certificate comes from.")
    budget.hold(os.path.getsize(name) / 8, "the file of studies")
    for options in ("?mode=ro", "?mode=ro&immutable=1"):  # the second where no file may be made beside it
        try:
            return _read(f"file:{quote(os.path.abspath(name))}{options}", root, head, count)
        except sqlite3.OperationalError:
            continue
        except sqlite3.Error as error:
            raise InvalidInput(f"{name} cannot be read as a file of studies ({error}).") from None
    raise InvalidInput(f"{name} cannot be read as a file of studies.")


def _read(address: str, root: str, head: str, count: int) -> list[Row]:
    database = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
        database.text_factory = lambda content: content.decode("utf-8", "replace")
        steps = iter(range(1000))
        database.set_progress_handler(lambda: next(steps, None) is None, 10**6)
        listed = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'entry'").fetchall()
        if [(kind, " ".join(str(sql).split())) for kind, sql in listed] != [("table", _TABLE)]:
            raise Rejected("the file of studies has no journal, so it cannot show the order of things")
        firsts = database.execute(
            f"SELECT id, kind, content FROM entry WHERE id % {_ROOM} = 0 AND typeof(content) = 'blob'"
        )
        roots = {_chained(b"", kind, bytes(content)).hex(): number for number, kind, content in firsts}
        if root not in roots:
            raise Rejected("the file of studies does not hold the study that the certificate comes from")
        number = roots[root]
        rows: list[Row] = []
        known = b""
        for _, kind, content in database.execute(
            "SELECT id, kind, content FROM entry WHERE id >= ? AND id < ? ORDER BY id", (number, number + count)
        ):
            if type(content) is not bytes:
                break
            known = _chained(known, kind, content)
            rows.append((kind, content))
        if len(rows) != count or known.hex() != head:
            raise Rejected(
                "the study in the file is not as it was when the certificate was written (its chain differs)"
            )
        return rows
    finally:
        database.close()


def _chained(before: bytes, kind: str, content: bytes) -> bytes:
    return hashlib.sha256(before + str(kind).encode() + b"\0" + content).digest()


def _drawn(content: bytes) -> dict[str, Any]:
    mark = b"drawn 1\n"
    if not content.startswith(mark):
        raise Rejected("an answer in the study's file is of another kind")
    return _unpacked(content[len(mark) :])


class _Story:
    """What the rows say, in their order."""

    def __init__(self, rows: list[Row], document: Node) -> None:
        self.document, self.rows = document, rows
        problem = document.child("problem")
        if problem.has("description"):  # states that nobody lists
            self.states, self.actions = 0, problem.whole("actions", 1, 10**6)
        elif problem.has("tabular"):
            size = problem.child("tabular")
            self.states, self.actions = size.whole("states", 1, 2**27), size.whole("actions", 1, 2**27)
        else:
            self.states, self.actions = problem.array("features", "f", (None, None, None)).shape[:2]
        horizon = document.child("problem").fields.get("horizon")
        self.stages = 1 if horizon is None else int(horizon)

    def check_settings(self) -> None:
        """Compare what was settled before the first sample."""
        begun = json.loads(self.rows[0][1])
        settings, run, claim = begun["settings"], self.document.child("run"), self.document.child("claim")
        told = {
            "fingerprint": (begun["fingerprint"], self.document.child("problem").text("fingerprint")),
            "delta": (settings["delta"], claim.fields["delta"]),
            "algorithm": (settings["algorithm"], run.fields["algorithm"]),
            "seed": (settings["seed"], run.fields["seed"]),
            "asked_epsilon": (settings.get("asked_epsilon", settings.get("epsilon")), claim.fields["asked_epsilon"]),
        }
        for name, value in settings["parameters"].items():
            infinite = isinstance(value, float) and not isfinite(value)
            told[name] = (str(value) if infinite else value, run.fields["parameters"].get(name))
        start = settings.get("start")
        start = None if start == "reset" else start
        if start is not None and not isinstance(start, list):
            start = np.eye(1, self.states, int(start))[0].tolist()
        stated = claim.array("start", "f", (self.states,)).tolist() if claim.has("start") else None
        if claim.fields["theorem"] in ("U", "O") or stated is not None:
            told["start"] = (start, stated)
        for name, (here, there) in told.items():
            if here != there:
                raise Rejected(f"{name} was {here!r:.60} when the study began, the certificate says {there!r:.60}")

    def check_samples(self) -> None:
        """Compare what was fixed, and what was sampled since, with the proof."""
        proof = self.document.child("proof")
        requests = [(place, _unpacked(content)) for place, (kind, content) in enumerate(self.rows) if kind == "asked"]
        if not requests or any(kind == "answer" for kind, _ in self.rows[: requests[0][0]]):
            raise Rejected("the file of studies does not show what was asked before the first answer")
        if self.document.child("claim").fields["theorem"] in ("F±", "H"):
            told = [
                (place, _drawn(content[16:])) for place, (kind, content) in enumerate(self.rows) if kind == "answer"
            ]
            if self.document.child("claim").fields["theorem"] == "H":
                hull_gaps.check_order(requests, told, self.document)
            else:
                check_order(requests, told, proof)
            return
        if self.document.child("claim").fields["theorem"] == "O":
            self._check_episodes(dict(requests), proof)
            return
        if self.document.child("claim").fields["theorem"] in ("I", "UD"):
            self._check_design(requests[0][1], proof)
            begin = self._find_lag(requests, proof)
            require_lag(dict(requests)[begin]["decided"]["lag"], self.document)
            require_batches(self.document, self._asked_since(begin, dict(requests)))
            return
        if self.document.child("claim").fields["theorem"] == "U":
            self._check_fresh(self._find_lag_of_table(requests, proof), proof)
            return
        self._check_design(requests[0][1], proof)
        begin = self._find_lag(requests, proof) if proof.has("lag") else 0
        self._check_sums(requests, proof, begin)

    def _check_episodes(self, requests: dict[int, dict[str, Any]], proof: Node) -> None:
        """Theorem O: the episodes are all that were told up to its look, and the policy's own those asked of it."""
        samples, own = proof.child("samples"), proof.child("policy")
        pairs, cells = samples.array("pairs", "i", (None,)), samples.array("cells", "i", (None,))
        counts, rewards = samples.array("counts", "i", (len(cells),)), samples.array("rewards", "f", (len(cells),))
        stage, rest = np.divmod(cells, max(1, len(pairs)) * self.states)
        index = self._cell(stage, pairs[rest // self.states], rest % self.states).tolist()
        policy = self.document.child("claim").array("policy", "i", (self.stages, self.states))
        wanted, number, named, asked = int(counts.sum()), own.whole("number", 1), 0, False
        lost = samples.array("broken", "i", (None, 2)).tolist()
        sums, mine, broken = _Sums(self), np.zeros(3), list[list[int]]()
        for place, (kind, content) in enumerate(self.rows):
            if kind == "asked":
                decided = requests[place]["decided"]
                named += "named" in decided
                if "named" in decided and (named == number) != np.array_equal(decided["named"], policy):
                    raise Rejected(f"the policy is not the one that the study named as number {number}")
                same = np.array_equal(requests[place]["episodes"]["policy"], policy)
                asked = named >= number and same
                if same and not asked and requests[place]["decided"].get("candidate"):
                    raise Rejected("episodes count for the policy that were asked before it was named")
            elif kind == "answer" and (sums.samples < wanted or len(broken) < len(lost)):
                tally = Told(content[16:])
                sums.add(tally, None)
                broken += tally.broken.tolist()
                if asked:
                    mine += [tally.episodes, tally.rewards.sum() - tally.forfeited, tally.squared_returns]
        if sums.samples != wanted or sums.counts != dict(zip(index, counts.tolist(), strict=True)):
            raise Rejected("the samples of the proof are not those that the study was told")
        if sorted(broken) != sorted(lost):
            raise Rejected("the episodes that broke off are not those that the study was told")
        played = own.child("samples")
        cells, counts = played.array("cells", "i", (None,)), played.array("counts", "i", (None,))
        begun = len(played.array("pairs", "i", (None,))) * self.states
        episodes = counts[cells < begun].sum() + (played.array("broken", "i", (None, 2))[:, 0] == 0).sum()
        returns = played.array("rewards", "f", (len(cells),)).sum() - own.number("forfeited", 0.0, 1e300)
        stated = np.array([episodes, returns, own.number("squares", 0.0, 1e300)])
        told = np.array([sums.rewards.get(cell, 0.0) for cell in index])
        for here, there in ((mine, stated), (told, rewards)):
            if (np.abs(here - there) > _ROUNDING * (1 + np.abs(there))).any():
                raise Rejected("the returns of the proof are not those that the study was told")

    def _check_design(self, first: dict[str, Any], proof: Node) -> None:
        pairs = np.flatnonzero(self._mask())
        design = first["decided"]["design"]
        mine = (pairs[np.asarray(design["indices"])], np.asarray(design["weights"]))
        theirs = (proof.array("design_pairs", "i", (None,)), proof.array("design_weights", "f", (None,)))
        if not all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)):
            raise Rejected("the design is not the one that the study had decided on before the first sample")
        listed = proof.child("samples").array("pairs", "i", (None,))
        if not np.isin(listed, first["pulls"]["pairs"]).all():
            raise Rejected("the proof has pairs that were not on the list when the study began")

    def _mask(self) -> Any:
        problem = self.document.child("problem")
        shape = (self.states, self.actions)
        return problem.array("mask", "b", shape) if problem.has("mask") else np.ones(shape, np.bool_)

    def _open(self) -> Any:
        """The mask without ends, which are not sampled for Theorem U."""
        problem, mask = self.document.child("problem"), self._mask()
        if problem.has("ends"):
            mask[problem.child("ends").array("states", "i", (None,))] = False
        return mask

    def _find_lag(self, requests: list[tuple[int, dict[str, Any]]], proof: Node) -> int:
        """Return the place of the row that decided the lag of the proof."""
        lag = proof.child("lag")
        number, started = lag.whole("number", 1), lag.whole("started", 0)
        lags = {past["number"]: (place, past) for place, past in self._lags_of_features(requests)}
        if number not in lags:
            raise Rejected(f"lag {number} was not decided on in the study's file")
        place, past = lags[number]
        told = self._told_before(place)
        if past["started"] != started or told != started:
            raise Rejected(f"lag {number} began after {told:,} samples, not after {started:,}")
        prior = proof.child("prior")
        fixed = [
            (past["prior"][name], prior.array(name, "f", np.shape(past["prior"][name]))) for name in ("base", "shares")
        ]
        fixed.append((past["prior"]["capacity"], prior.fields["capacity"]))
        if proof.has("values"):
            fixed.append((past["values"], proof.array("values", "f", np.shape(past["values"]))))
        if not all(np.array_equal(one, other) for one, other in fixed):
            raise Rejected(f"what lag {number} rests on is not what was decided when it began")
        return place

    def _lags_of_features(self, requests: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
        """Lags that have their number among what they fix; those of Theorem U have it beside that, or have none."""
        lags = [(place, one["decided"].get("lag")) for place, one in requests]
        return [(place, lag) for place, lag in lags if lag and "number" in lag]

    def _asked_since(self, begin: int, requests: dict[int, dict[str, Any]]) -> list[tuple[dict[str, Any], list[Told]]]:
        """Requests from a row on, with the answers that came before the next one."""
        found = list[tuple[dict[str, Any], list[Told]]]()
        for place, (kind, content) in enumerate(self.rows[begin:], begin):
            if kind == "asked":
                found.append((requests[place], []))
            elif kind == "answer":
                found[-1][1].append(Told(content[16:]))
        return found

    def _told_before(self, place: int) -> int:
        """Number of samples that a row came after."""
        return sum(
            int(Told(content[16 * (kind == "answer") :]).counts.sum())
            for kind, content in self.rows[:place]
            if kind in ("answer", "own data")
        )

    def _find_lag_of_table(self, requests: list[tuple[int, dict[str, Any]]], proof: Node) -> int:
        """Return the place of the row that decided what Theorem U has fixed."""
        lag = proof.child("lag")
        number, started = lag.whole("number", 1), lag.whole("started", 0)
        lags = dict[Any, tuple[int, dict[str, Any]]]()
        for place, one in requests:
            if "lag" in one["decided"] and "number" not in one["decided"]["lag"]:
                own = one["decided"].get("number", len(lags) + 1)  # older files have no numbers
                if not isinstance(own, int) or own in lags:
                    raise Rejected("two lags of the study's file have the same number, or one has none")
                lags[own] = (place, one["decided"]["lag"])
        if number not in lags:
            raise Rejected(f"lag {number} was not decided on in the study's file")
        place, past = lags[number]
        spent = sum(float(one["delta"]) for before, one in self._lags_of_features(requests) if before < place)
        left = 1 - spent / self.document.child("claim").number("delta", 0.0, 1.0)
        if _NEXT_OF_TABLE ** (number - 1) > left * (1 + 1e-9):
            raise Rejected(f"lag {number} and those after it would spend what lags of Theorem I have spent")
        told = self._told_before(place)
        if told != started:
            raise Rejected(f"lag {number} began after {told:,} samples, not after {started:,}")
        pairs = np.flatnonzero(self._open())
        policy = pairs[np.asarray(past["policy"]) % len(pairs)] % self.actions
        claimed = self.document.child("claim").array("policy", "i", (self.stages, self.states))
        decided = claimed[:, self._open().any(axis=1)].reshape(-1)
        same = past["delta"] == lag.fields["delta"] and np.array_equal(policy, decided)
        for name in FIELDS:
            if name != "delta":
                kind = "i" if np.asarray(past[name]).dtype.kind == "i" else "f"
                same = same and np.array_equal(past[name], lag.array(name, kind, np.shape(past[name])))
        if not same:
            raise Rejected(f"what lag {number} rests on is not what was decided when it began")
        return place

    def _check_fresh(self, begin: int, proof: Node) -> None:
        """The samples of Theorem U are all that were told since its lag was decided, up to its look."""
        samples, pairs = proof.child("samples"), np.flatnonzero(self._open())
        cells, counts = samples.array("cells", "i", (None,)), samples.array("counts", "i", (None,))
        rewards = samples.array("rewards", "f", (len(cells),))
        squares = samples.array("squares", "f", (self.stages * len(pairs),))
        own_squares, told, wanted = np.zeros_like(squares), list[Told](), int(counts.sum())
        for kind, content in self.rows[begin:]:
            if kind == "answer" and sum(int(tally.counts.sum()) for tally in told) < wanted:
                told.append(Told(content[16:]))
        keys, number, sums = [], [], []
        for tally in told:
            place = np.searchsorted(pairs, tally.pair)
            keys.append((tally.stage * len(pairs) + place) * self.states + tally.state)
            number.append(tally.counts)
            sums.append(tally.rewards)
            row = np.arange(self.stages)[:, None] * len(pairs) + np.searchsorted(pairs, tally.pairs)
            np.add.at(own_squares, row, tally.squares)
        known, place = np.unique(np.concatenate([*keys, np.zeros(0, np.int64)]), return_inverse=True)
        mine = np.zeros(len(known), np.int64)
        np.add.at(mine, place, np.concatenate([*number, np.zeros(0, np.int64)]))
        if not (np.array_equal(known, cells) and np.array_equal(mine, counts)):
            raise Rejected("the samples of the proof are not those that the study was told since they were decided on")
        earned = np.bincount(place, np.concatenate([*sums, np.zeros(0)]), len(known))
        for here, there in ((earned, rewards), (own_squares, squares)):
            if (np.abs(here - there) > _ROUNDING * (1 + np.abs(there))).any():
                raise Rejected("the rewards of the proof are not those that the study was told")

    def _check_sums(self, requests: list[tuple[int, dict[str, Any]]], proof: Node, begin: int) -> None:
        """The samples of the proof are all that were told since, up to one of the looks."""
        samples = proof.child("samples")
        pairs = samples.array("pairs", "i", (None,))
        cells, counts = samples.array("cells", "i", (None,)), samples.array("counts", "i", (None,))
        rewards = samples.array("rewards", "f", (None,))
        stage, rest = np.divmod(cells, max(1, len(pairs)) * self.states)
        pair, state = pairs[rest // self.states], rest % self.states
        index = self._cell(stage, pair, state).tolist()

        sums = _Sums(self)
        if begin == 0:
            for kind, content in self.rows:
                if kind == "own data":
                    sums.add(Told(content), None)
        weights: dict[tuple[int, int], float] = {}
        wanted, complete = int(counts.sum()), sums.samples == int(counts.sum())
        decided = dict(requests)
        for place, (kind, content) in enumerate(self.rows):
            if complete:
                break
            if kind == "asked":
                direction = decided[place]["decided"].get("sampling")
                if direction is not None:
                    weights = self._weights(direction["weights"], requests[0][1]["pulls"]["pairs"])
            elif kind == "answer" and place >= begin:
                sums.add(Told(content[16:]), weights)
                complete = sums.samples == wanted
        if not complete or sums.counts != dict(zip(index, counts.tolist(), strict=True)):
            raise Rejected("the samples of the proof are not those that the study was told since they were decided on")
        for cell, reward in zip(index, rewards.tolist(), strict=True):
            if abs(sums.rewards.get(cell, 0.0) - reward) > _ROUNDING * (1 + abs(reward)):
                raise Rejected("the rewards of the proof are not those that the study was told")
        if samples.has("weighted"):
            stated = samples.child("weighted").array("weights", "f", (self.stages, len(pairs)))
            mine = np.array([[sums.weighted.get((h, int(p)), 0.0) for p in pairs] for h in range(self.stages)])
            if not np.allclose(stated, mine, rtol=_ROUNDING, atol=_ROUNDING):
                raise Rejected("the weights of the samples are not those that were decided on before they were drawn")

    def _weights(self, weights: Floats, pairs: Ints) -> dict[tuple[int, int], float]:
        return {(h, int(pair)): float(weights[h, k]) for h in range(self.stages) for k, pair in enumerate(pairs)}

    def _cell(self, stage: Ints, pair: Ints, state: Ints) -> Ints:
        cell: Ints = (stage * (self.states * self.actions) + pair) * self.states + state
        return cell


class _Sums:
    """Counts and rewards by (stage, pair, next state), and Σ 1/u by (stage, pair)."""

    def __init__(self, story: _Story) -> None:
        self.story, self.samples = story, 0
        self.counts: dict[int, int] = {}
        self.rewards: dict[int, float] = {}
        self.weighted: dict[tuple[int, int], float] = {}

    def add(self, tally: Told, weights: dict[tuple[int, int], float] | None) -> None:
        self.samples += int(tally.counts.sum())
        cells = self.story._cell(tally.stage, tally.pair, tally.state)
        rows = zip(
            cells.tolist(),
            tally.counts.tolist(),
            tally.rewards.tolist(),
            tally.stage.tolist(),
            tally.pair.tolist(),
            strict=True,
        )
        for cell, count, reward, stage, pair in rows:
            self.counts[cell] = self.counts.get(cell, 0) + count
            self.rewards[cell] = self.rewards.get(cell, 0.0) + reward
            place = (stage, pair)
            self.weighted[place] = self.weighted.get(place, 0.0) + count / (weights or {}).get(place, 1.0)


class Told:
    """Samples as a row holds them: counts and sums of rewards of the (stage, pair, next state) that occurred."""

    def __init__(self, data: bytes) -> None:
        self.squared_returns, self.forfeited, self.broken = 0.0, 0.0, np.zeros((0, 2), np.int64)
        if data[:8] == b"tally 3\n":  # of episodes: what is known of them as a whole comes first
            end = 16 + int.from_bytes(data[8:16], "little")
            known = _unpacked(data[16:end])
            self.squared_returns, self.forfeited = float(known["squared_returns"]), float(known["forfeited"])
            self.broken, data = known["broken"].reshape(-1, 2), data[end:]
        if data[:8] != b"tally 2\n" or len(data) < 40:
            raise Rejected("the file of studies is of an older version, whose answers cannot be compared")
        stages, pairs, states, used = np.frombuffer(data, "<i8", 4, 8).tolist()
        if min(stages, pairs, states, used) < 0 or len(data) != 40 + 8 * (pairs + 3 * used + stages * pairs):
            raise Rejected("an answer in the file of studies is not one")
        whole = np.frombuffer(data, "<i8", pairs + 2 * used, 40)
        cells, self.counts = whole[pairs : pairs + used], whole[pairs + used :]
        self.rewards = np.frombuffer(data, "<f8", used, 40 + 8 * len(whole))
        self.pairs = whole[:pairs]
        self.squares = np.frombuffer(data, "<f8", stages * pairs, 40 + 8 * (len(whole) + used)).reshape(stages, pairs)
        self.stage, rest = np.divmod(cells, max(1, pairs * states))
        self.pair, self.state = whole[:pairs][rest // max(1, states)], rest % max(1, states)

    @property
    def episodes(self) -> int:
        """Number of episodes, those that broke off included."""
        return int(self.counts[self.stage == 0].sum()) + int((self.broken[:, 0] == 0).sum())


def _unpacked(data: bytes) -> dict[str, Any]:
    """Nested objects of numbers, texts and arrays: the length of their outline, the outline in JSON, the arrays."""
    place = 8 + int.from_bytes(data[:8], "little")

    def filled(node: Any) -> Any:
        nonlocal place
        if not isinstance(node, dict):
            return node
        if list(node) != ["array"]:
            return {key: filled(value) for key, value in node.items()}
        dtype, *shape = node["array"]
        array = np.frombuffer(data, {"<i8": "<i8", "<f8": "<f8", "|b1": "|b1"}[dtype], prod(shape), place)
        place += array.nbytes
        return array.reshape(shape)

    content = filled(json.loads(data[8:place]))
    if not isinstance(content, dict):
        raise Rejected("a request in the file of studies is not one")
    return content
