"""Many ridge logistic regressions on the same rows at once, each solved until its gradient norm is within a tolerance.

Problem j minimises Σᵢ countᵢ·log(1+exp(xᵢ·θ)) + (λⱼ/2)‖θ‖² + cⱼ·θ over the coordinates of its mask. Labels and noise
are both in c (the labels add −Σ xᵢ over the positive rows), so repeats, classes and feature subsets differ in c, λ and
mask only, and share the products with the rows.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
# Rows are processed in blocks: margins stay in the cache, and rounding grows with the block's length, not with n.
_BLOCK_ROWS = 2048
_BLOCK_ENTRIES = 2**18
# Products of columns are kept for all rows if they take no more than this many numbers.
MOST_PRODUCTS = 2**24
_MEMORY = 12
_QUICK_ITERATIONS = 60
_MOST_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class Problems:
    """The problems to minimise: rows (n, d) are shared, everything else has one entry or one row per problem."""

    rows: Tensor
    counts: Tensor
    linear: Tensor
    ridge: Tensor
    tolerance: Tensor
    masks: Tensor

    def take(self, places: Tensor) -> "Problems":
        chosen = {name: getattr(self, name)[places] for name in ("linear", "ridge", "tolerance", "masks")}
        return replace(self, **chosen)

    def gradient(self, weights: Tensor) -> Tensor:
        total, _ = self._summed(weights, curvature=False)
        return self.finished(total, weights)

    def gradient_and_curvature(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients, and for each row the second derivative of its loss, summed over the problems."""
        total, curvature = self._summed(weights, curvature=True)
        return self.finished(total, weights), curvature

    def finished(self, total: Tensor, weights: Tensor) -> Tensor:
        """The gradient, from the rows' part of it."""
        return total.addcmul_(self.ridge[:, None], weights).add_(self.linear).mul_(self.masks)

    def _summed(self, weights: Tensor, curvature: bool) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(weights)
        bends = torch.zeros(len(self.rows) if curvature else 0, dtype=torch.float64)
        size = max(256, min(_BLOCK_ROWS, _BLOCK_ENTRIES // max(1, len(weights))))
        for start in range(0, len(self.rows), size):
            block, counts = self.rows[start : start + size], self.counts[start : start + size]
            chances = torch.sigmoid_(weights @ block.T)
            if curvature:
                bends[start : start + size] = counts * (chances.sum(0) - chances.square().sum(0))
            total.addmm_(chances.mul_(counts), block)
        return total, bends


def minimise(
    rows: Array, counts: Array, linear: Array, ridge: Array, tolerance: Array, masks: NDArray[np.bool_] | None = None
) -> Array:
    """θ of every problem (m, d), zero outside its mask, at which the gradient's norm is at most its tolerance.

    Iterates until all problems have converged: a damped Newton step always descends, so only rounding could prevent
    it, and `least_tolerance` is the tolerance below which it might.
    """
    mask = np.ones(linear.shape) if masks is None else masks
    tensors = [torch.from_numpy(np.ascontiguousarray(a, dtype=np.float64)) for a in (linear, ridge, tolerance, mask)]
    linear_, ridge_, tolerance_, mask_ = tensors
    shared = [torch.from_numpy(np.ascontiguousarray(a, dtype=np.float64)) for a in (rows, counts)]
    problems = Problems(shared[0], shared[1], linear_ * mask_, ridge_, tolerance_, mask_)
    n, d = rows.shape
    weights = torch.zeros_like(linear_)
    if n * d * (d + 1) // 2 <= MOST_PRODUCTS:
        _by_newton(problems, weights, _Products(problems.rows))
    else:
        together = max(1, min(len(linear), 2**27 // (8 * d * (2 * _MEMORY + d))))
        for part in torch.arange(len(linear)).split(together):
            own = problems.take(part)
            found = _by_shared_curvature(own)
            left = torch.nonzero(own.gradient(found).norm(dim=1) > own.tolerance)[:, 0]
            if len(left):
                rest = found[left]
                _by_newton(own.take(left), rest, _EachHessian(problems.rows))
                found[left] = rest
            weights[part] = found
    return weights.numpy()


def least_tolerance(n: int, d: int, ridge: float, noise_norm: float) -> float:
    """A generous bound on the rounding error of a computed gradient, for n rows of norm 1.

    The minimum is no higher than the objective at zero, (λ/2)‖θ‖² − ‖b‖‖θ‖ ≤ n·log 2, which bounds θ and so the error
    of the margins; the error of sums grows with the length of their blocks.
    """
    unit = float(np.finfo(np.float64).eps)
    reach = 2 * noise_norm / ridge + math.sqrt(2 * n * math.log(2) / ridge)
    return 4 * unit * ((_BLOCK_ROWS + n / 256) * n + noise_norm + ridge * reach + n * math.sqrt(d) * reach / 4)


def _block_sums(values: Tensor, rows: Tensor) -> Tensor:
    """values @ rows, block by block: rounding errors grow with the length of a block only."""
    total = torch.zeros(len(values), rows.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), _BLOCK_ROWS):
        total.addmm_(values[:, start : start + _BLOCK_ROWS], rows[start : start + _BLOCK_ROWS])
    return total


class _Products:
    """Hessians of all problems by one matrix product: the products of column pairs are computed once."""

    def __init__(self, rows: Tensor) -> None:
        d = rows.shape[1]
        self._first, self._second = torch.triu_indices(d, d)
        self._products = rows[:, self._first] * rows[:, self._second]

    def __call__(self, bends: Tensor) -> Tensor:
        d = int(self._second[-1]) + 1
        upper = bends @ self._products
        hessians = torch.zeros(len(bends), d, d, dtype=torch.float64)
        hessians[:, self._first, self._second] = upper
        hessians[:, self._second, self._first] = upper
        return hessians

    def together(self, n: int) -> int:
        return 512


class _EachHessian:
    """Hessians one by one, for many rows."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __call__(self, bends: Tensor) -> Tensor:
        return torch.stack([self._rows.T @ (self._rows * bend[:, None]) for bend in bends])

    def together(self, n: int) -> int:
        return max(1, 2**22 // n)


def _by_newton(problems: Problems, weights: Tensor, hessians_of: _Products | _EachHessian) -> None:
    """Newton's method, in place; where a full step may not descend, a damped one that provably does.

    Along a Newton direction that changes no margin by more than D, the objective decreases over log(1+D)/D of the step:
    a row's second derivative changes by a factor of at most e^s when its margin changes by s.
    """
    for part in torch.arange(len(weights)).split(hessians_of.together(len(problems.rows))):
        own, found, active = problems.take(part), weights[part], torch.arange(len(part))
        for iteration in range(_MOST_ITERATIONS):
            here, at = own.take(active), found[active]
            margins = at @ own.rows.T
            chances = torch.sigmoid(margins)
            gradient = here.finished(_block_sums(chances * own.counts, own.rows), at)
            going = gradient.norm(dim=1) > here.tolerance
            if not going.any():
                break
            if not going.all():
                active, margins, chances = active[going], margins[going], chances[going]
                here, at, gradient = here.take(going), at[going], gradient[going]
            hessians = hessians_of(chances * (1 - chances) * own.counts)
            hessians *= here.masks[:, :, None] * here.masks[:, None, :]
            hessians.diagonal(dim1=1, dim2=2).add_(here.ridge[:, None])
            factors = torch.linalg.cholesky(hessians)
            step = -torch.cholesky_solve(gradient[:, :, None], factors)[:, :, 0] * here.masks
            change = step @ own.rows.T
            farthest = change.abs().amax(dim=1).clamp_min(1e-12)
            size = torch.log1p(farthest) / farthest
            if iteration < _QUICK_ITERATIONS:
                ahead = torch.sigmoid(margins + change)
                slope = ((ahead * own.counts) * change).sum(1)
                slope += ((here.ridge[:, None] * (at + step) + here.linear) * step).sum(1)
                size[slope <= -0.25 * (gradient * step).sum(1)] = 1.0
            found[active] = at + size[:, None] * step
        else:
            raise ArithmeticError(
                f"the minimiser was not reached in {_MOST_ITERATIONS} Newton steps: the tolerance is below what "
                "floating point can resolve; raise it above least_tolerance"
            )
        weights[part] = found


def _by_shared_curvature(problems: Problems) -> Tensor:
    """L-BFGS preconditioned by one Hessian that all problems share; some may not converge."""
    count, d = problems.linear.shape
    weights = torch.zeros(count, d, dtype=torch.float64)
    done, active = weights.clone(), torch.arange(count)
    gradient, bends = problems.gradient_and_curvature(weights)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    solve = _Preconditioner(problems, bends / count)
    own = problems
    direction, size = _direction(gradient, memory, solve), torch.ones(count, dtype=torch.float64)
    for iteration in range(_QUICK_ITERATIONS):
        trial = torch.addcmul(weights, size[:, None], direction)
        refresh = iteration in (0, 1, 3, 6)
        if refresh:
            ahead, bends = own.gradient_and_curvature(trial)
        else:
            ahead = own.gradient(trial)
        before, after = (gradient * direction).sum(1), (ahead * direction).sum(1)
        accepted = after <= -0.5 * before
        moved = torch.where(accepted[:, None], trial - weights, 0.0)
        turned = torch.where(accepted[:, None], ahead - gradient, 0.0)
        product = (moved * turned).sum(1)
        memory = [*memory, (moved, turned, torch.where(product > 0, 1 / product, 0.0))][-_MEMORY:]
        weights, gradient = weights + moved, torch.where(accepted[:, None], ahead, gradient)
        # Past the minimum along the direction: the slope's zero is about there.
        shorter = (size * before / (before - after)).clamp(min=0.1 * size, max=0.8 * size)
        going = gradient.norm(dim=1) > own.tolerance
        done[active[~going]] = weights[~going]
        if not going.any():
            return done
        if going.sum() < 0.8 * len(going):
            active, weights, gradient = active[going], weights[going], gradient[going]
            own, solve = own.take(going), solve.take(going)
            memory = [(a[going], b[going], c[going]) for a, b, c in memory]
            accepted, shorter, direction = accepted[going], shorter[going], direction[going]
        if refresh:
            solve = _Preconditioner(own, bends / len(going))
        fresh = _direction(gradient, memory, solve)
        size = torch.where(accepted, 1.0, shorter)
        direction = torch.where(accepted[:, None], fresh, direction)
    done[active] = weights
    return done


class _Preconditioner:
    """Solves with the shared Hessian, restricted to each problem's mask, plus its ridge."""

    def __init__(self, problems: Problems, bends: Tensor) -> None:
        hessian = problems.rows.T @ (problems.rows * bends[:, None])
        alike = bool((problems.masks == problems.masks[:1]).all() and (problems.ridge == problems.ridge[:1]).all())
        masks, ridge = (problems.masks[:1], problems.ridge[:1]) if alike else (problems.masks, problems.ridge)
        hessians = hessian * masks[:, :, None] * masks[:, None, :]
        hessians.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
        self._factors, self._masks = torch.linalg.cholesky(hessians), problems.masks

    def take(self, places: Tensor) -> "_Preconditioner":
        taken = object.__new__(_Preconditioner)
        taken._factors = self._factors if len(self._factors) == 1 else self._factors[places]
        taken._masks = self._masks[places]
        return taken

    def __call__(self, vectors: Tensor) -> Tensor:
        if len(self._factors) == 1:
            return torch.cholesky_solve(vectors.T, self._factors[0]).T * self._masks
        return torch.cholesky_solve(vectors[:, :, None], self._factors)[:, :, 0] * self._masks


def _direction(gradient: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]], solve: _Preconditioner) -> Tensor:
    """L-BFGS's two-loop recursion, for all problems at once."""
    vector, shares = gradient, []
    for moved, turned, scale in reversed(memory):
        share = scale * (moved * vector).sum(1)
        vector = vector - share[:, None] * turned
        shares.append(share)
    vector = solve(vector)
    for (moved, turned, scale), share in zip(memory, reversed(shares), strict=True):
        vector = vector + (share - scale * (turned * vector).sum(1))[:, None] * moved
    return -vector
