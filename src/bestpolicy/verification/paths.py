"""Theorem UD, recomputed: what a policy loses along the best path is one number, in one unknown direction. Discounted.

Fixed by the lag: Σ0 > 0, sizes s_m with shares q_m, and what `doubts` needs. Fixed before a batch (`bets`): T_k =
f·J̃G⁻¹φ_k/ṽ_k, f ≤ 1 a factor of the batch (`caution`). Sums over the samples: b = ΣTr, B = ΣT(φ - γφ_π(s'))ᵀ, N =
Σf. With probability at least 1 - δ', at all times and for all policies,

    uᵀξ^π ≤ uᵀξ̃ + |u|_Σt  for the one u = Σ occ_k c_k,   Σ occ_k (p_k - φ_kᵀm̃ᵀ)Z ≤ Σ occ_k W_k(Z)  for all Z,

occ the discounted visits of an optimal policy from the state where most is lost: there the loss is uᵀξ^π. Here ξ̃ =
ξ̂ - (Bξ̂ - b)/N, Σ_t = (1+c)Σ0^½[((l/s)I + sQ̃)/N]²Σ0^½ + (1+1/c)DMDᵀ, D = I - B/N, Q̃ = Σ0^-½ΣψZ̄TTᵀΣ0^-½, ψ at
s|T|_{Σ0⁻¹}R < 0.9, Z̄ = (√Σζ(ξ̂)² + √drift)², l = log 1/(0.85δ'q(π)q_m); W of `doubts` with 0.05δ'q(π). (The first by
Lemma E and Ville's inequality for the direction u, Theorem P and Lemma N with 0.05δ'q(π) each, and Cauchy and
Schwarz.) So for any Z, with gain_k = c_kᵀξ̃ + |c_k|_Σt,

    V* - V^π ≤ max(0, max Z + res/(1-γ)),   res = max_k [gain_k + γ(φ_kᵀm̃ᵀZ + W_k(Z)) - Z(s_k)],

as occ telescopes under the truth. Any m, c and Z will do; they are searched for here anew.

|u|_Σt ≤ |Σ occ_k e_k| if e_k are y_k = Σ_t^½c_k in some basis, or three coordinates of it and the length of the rest.
|x| ≤ max_i V_iᵀx for points V_i of R⁴ with the unit ball in their convex hull: quaternions of the binary icosahedral
group (the vertices of a 600-cell) over the distance of its cells from the centre. So with gain_k = c_kᵀξ̃ + e_kᵀV_i
the largest of the bounds over i holds as well.
"""

from __future__ import annotations

from math import inf, log

import numpy as np

from bestpolicy.verification.bets import EIGENVALUES, Batch
from bestpolicy.verification.case import Case
from bestpolicy.verification.claim import Claim
from bestpolicy.verification.doubts import Doubt, read_doubt
from bestpolicy.verification.intersection import BOLDEST, SIZES, Proof
from bestpolicy.verification.reading import Floats, Ints, Node, Rejected
from bestpolicy.verification.rounding import EPS, MARGIN

_SHARES = (0.85, 0.05, 0.05, 0.05)  # bets, ellipsoids, kernel, box
_MIXES = (0.05, 0.1, 0.2, 0.35, 0.6)
_IMPROVEMENTS = 30
_NETS = 12  # sizes and c for which vectors of a path are added up


def certified_epsilon(case: Case, claim: Claim, proof: Node, policy: Ints) -> tuple[float, int, list[str]]:
    """Return the ε that the samples certify, their number, and what has to be taken on trust."""
    if case.horizon is not None:
        raise Rejected("Theorem UD is for discounted problems")
    read = Proof(case, claim, proof, policy)
    if not len(read.rivals):
        return 0.0, read.used, read.trusted
    dimension = read.model.rows.shape[1]
    sigma, gamma = (_positive(read.lag, name, dimension) for name in ("sigma", "gamma"))
    doubt = read_doubt(read, gamma, _SHARES[2])
    centre, forms = _gains(read, sigma)
    points, limit = _icosians(), float(case.limits[0])
    found = []
    for form in forms:
        values, vectors = np.linalg.eigh(form)
        rows = read.differences @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        lengths = np.linalg.norm(rows, axis=1) * (1 + 1e-9)
        found.append((_along_paths(read, centre + lengths, doubt), rows, lengths))
    found.sort(key=lambda one: one[0])
    best = min(found[0][0], inf) if found else inf
    apart = dimension if doubt.spikes is None else dimension + 2 * len(case.features)
    case.budget.work(100 * _NETS * len(points) * case.mask.size * apart, "its paths")
    for _, rows, lengths in found[:_NETS]:
        if not claim.target < best <= limit:  # this will do, or nothing does
            break
        short = _shortened(rows, np.maximum(centre + lengths, 0.0) / np.maximum(lengths, 1e-300))
        worst = 0.0
        for point in points:
            worst = max(worst, _along_paths(read, centre + short @ point + 1e-9 * lengths, doubt))
            if worst >= best:
                break
        best = min(best, worst)
    return best, read.used, read.trusted


def _icosians() -> Floats:
    """The group that two quaternions generate, (120, 4), over the distance of the cells between them."""
    golden = (1 + 5**0.5) / 2
    known = [np.array([1.0, 0.0, 0.0, 0.0])]
    generators = [np.array([1.0, 1.0, 1.0, 1.0]) / 2, np.array([golden, 1.0, 1 / golden, 0.0]) / 2]
    for one in known:  # it grows while it is read
        for other in generators:
            product = _product(one, other)
            if min(float(np.abs(product - old).max()) for old in known) > 1e-6:
                known.append(product)
    points = np.array(known)
    nearest = np.sort(points @ points[0])[-2]  # of two vertices of an edge
    ring = points[points @ points[0] > nearest - 1e-6]
    second = ring[np.argmax(ring @ points[0] < 1 - 1e-6)]
    third = next(p for p in ring if p @ second > nearest - 1e-6 and p @ second < 1 - 1e-6 and p @ points[0] < 1 - 1e-6)
    fourth = next(p for p in ring if all(nearest - 1e-6 < p @ q < 1 - 1e-6 for q in (points[0], second, third)))
    middle = (points[0] + second + third + fourth) / 4
    found: Floats = points / float(np.linalg.norm(middle)) * (1 + 1e-9)
    return found


def _product(p: Floats, q: Floats) -> Floats:
    """Of quaternions."""
    real, vector = p[0] * q[0] - p[1:] @ q[1:], p[0] * q[1:] + q[0] * p[1:] + np.cross(p[1:], q[1:])
    return np.array([real, *vector])


def _shortened(rows: Floats, weights: Floats) -> Floats:
    """Vectors of R⁴ whose sums are at least as long as those of the rows."""
    found = np.zeros((len(rows), 4))
    if rows.shape[1] <= 4:
        found[:, : rows.shape[1]] = rows
        return found
    _, basis = np.linalg.eigh(rows.T @ (weights[:, None] * rows))
    turned = rows @ basis[:, ::-1]
    found[:, :3], found[:, 3] = turned[:, :3], np.linalg.norm(turned[:, 3:], axis=1)
    return found


def _positive(node: Node, name: str, dimension: int) -> Floats:
    matrix = node.array(name, "f", (dimension, dimension))
    if np.abs(matrix - matrix.T).max() > 1e-9 * np.abs(matrix).max() or not np.linalg.eigvalsh(matrix)[0] > 0:
        raise Rejected(f"{name!r} of the lag is not positive definite")
    half: Floats = (matrix + matrix.T) / 2
    return half


def _roots(matrix: Floats) -> tuple[Floats, Floats]:
    """Symmetric root of a positive definite matrix, and its inverse."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T, vectors @ np.diag(1 / np.sqrt(values)) @ vectors.T


def _gains(read: Proof, sigma: Floats) -> tuple[Floats, list[Floats]]:
    """c_kᵀξ̃ of the rivals, and Σ_t for every usable size and c."""
    case, model, count = read.case, read.model, 0.0
    around, rounds = read.around(_SHARES[1], _SHARES[3])
    response, dimension = around.response, model.rows.shape[1]
    root, inverse = _roots(sigma)
    rewards, features, absolute = np.zeros(dimension), np.zeros((dimension, dimension)), 0.0
    sizes: Floats | None = None
    costs: list[Floats] = []
    bold = np.zeros(len(SIZES))
    for batch in read.bets:
        if not batch.usable:
            continue
        vectors, lengths = _vectors(batch, inverse)
        pulls = batch.pulls[0]
        up, down = batch.expected_reach()
        expected = max(float((lengths * np.maximum(up, down)[0]).max()), 1e-300)
        if sizes is None:
            nats = -log(_SHARES[0]) - read.log_share
            largest = np.sqrt(2 * (nats + 1.5) / (1.5 * read.started))
            sizes = SIZES * min(largest, read.first_caution / expected)
            costs = [np.zeros(sigma.shape) for _ in sizes]
        factor = min(1.0, read.caution / (float(sizes[0]) * expected))
        vectors, lengths = factor * vectors, factor * lengths
        rewards += vectors.T @ batch.rewards[0].sum(axis=1)
        features += vectors.T @ (pulls[:, None] * batch.rows - case.gamma * (batch.counts[0] @ batch.played[0]))
        count += factor * pulls.sum()
        absolute += float(pulls @ lengths)
        squares, _, up, down, drift = (each[0] for each in batch.seen(around))
        if dimension <= EIGENVALUES:
            shapes = around.root[0].T @ batch.moments()[0] @ around.root[0]
            drift = np.minimum(drift, case.gamma**2 * np.maximum(np.linalg.eigvalsh(shapes)[:, -1], 0.0))
        bound = (np.sqrt(squares) + np.sqrt(drift)) ** 2
        reach = lengths * np.maximum(up, down)
        bold = np.maximum(bold, sizes * reach.max())
        white = vectors @ inverse
        for cost, size in zip(costs, sizes, strict=True):
            x = np.minimum(size * reach, BOLDEST)
            psi = 0.5 + x / 3 + x**2 / (4 * (1 - x))
            cost += white.T @ ((psi * bound)[:, None] * white)
    if sizes is None:
        raise Rejected("no batch was bet on")
    centre = response.parameters[0] - (features @ response.parameters[0] - rewards) / count
    error = (np.eye(dimension) - features / count) @ response.links[0]
    matrices = list(around.matrices[:, 0])
    if around.block is not None:  # a cube lies in a ball
        matrices.append(dimension * around.block[0] @ around.block[0].T)
    second = min((error @ matrix @ error.T for matrix in matrices), key=lambda form: float(np.trace(form)))
    c = read.differences
    unit = (dimension + len(case.features) + len(model.rows)) * EPS * (1 + case.limits[0])
    shift = absolute / count * (response.equation_rounding[0] + MARGIN * unit)
    state, action = read.rivals[:, 1], read.rivals[:, 2]
    room = shift * np.linalg.norm(c @ root, axis=1) + rounds.margins[0][state, action]
    found = []
    for size, share, cost, top in zip(sizes, read.size_shares, costs, bold, strict=True):
        if top >= BOLDEST:
            continue
        nats = -log(_SHARES[0] * share) - read.log_share
        inner = (nats / size * np.eye(dimension) + size * cost) / count
        first = root @ inner
        found += [(1 + mix) * first @ first.T + (1 + 1 / mix) * second for mix in _MIXES]
    return c @ centre + room, found


def _vectors(batch: Batch, inverse: Floats) -> tuple[Floats, Floats]:
    """T (K, d), and their lengths in Σ0⁻¹."""
    assert batch.precision is not None
    assert batch.system is not None
    vectors = np.einsum("de,ef,kf->kd", batch.system, batch.precision[0], batch.rows, optimize=True)
    vectors = np.where(batch.shares[0][:, None] > 0, vectors / batch.variances[0][:, None], 0.0)
    return vectors, np.linalg.norm(vectors @ inverse, axis=1)


def _along_paths(read: Proof, rivals: Floats, doubt: Doubt) -> float:
    """The least bound over the functions that policy iteration passes, for gains of the rivals (J,)."""
    case, features, law = read.case, read.model.features, doubt.law
    gains = np.where(case.mask, 0.0, -inf)
    gains[read.rivals[:, 1], read.rivals[:, 2]] = rivals
    if gains.max() <= 0:
        return 0.0
    gamma, states = case.gamma, np.arange(len(features))
    values, best = np.zeros(len(features)), inf
    for _ in range(_IMPROVEMENTS):
        middle, wrong = (values.max() + values.min()) / 2, doubt.at(values)
        backed = gains + gamma * (features @ (law.T @ (values - middle)) + middle + wrong)
        rest = float((backed - values[:, None]).max()) + 1e-13 * case.limits[0]
        best = min(best, float(values.max()) + rest / (1 - gamma))
        chosen = backed.argmax(axis=1)
        played, fixed = features[states, chosen], gains[states, chosen] + gamma * wrong[states, chosen]
        system = np.eye(law.shape[1]) - gamma * (law.T @ played)
        if not np.linalg.cond(system) < 1e12:
            break
        values = fixed + gamma * played @ np.linalg.solve(system, law.T @ fixed)
        if not np.abs(values).max() < 100 * case.limits[0]:
            break
    return max(best, 0.0)
