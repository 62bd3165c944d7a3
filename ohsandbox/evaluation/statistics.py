"""How reliable a measured pass rate is, and whether two runs differ by more than chance.

The unit is the task: its attempts resemble each other more than two tasks do, so ten attempts at ten tasks tell less
than one attempt at a hundred.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONFIDENCE = 0.95
MAX_EXACT_STEPS = 2_000_000
"""Most steps of the exact sign-flip test, about a second; beyond it random sign flips are drawn."""
MAX_DRAWS, MIN_DRAWS = 100_000, 10_000
"""Numbers of random draws: a p-value of 0.05 is then known to 0.0014 and 0.0044 (two standard errors)."""
_MAX_DRAWN_STEPS = 20_000_000
"""Most steps for random sign flips, some seconds: one step for each draw and each size that differences have."""


class TaskCount(NamedTuple):
    """The number of attempts at one task that count, and how many of them passed."""

    passed: int
    attempts: int

    @property
    def rate(self) -> Fraction:
        """The share that passed."""
        return Fraction(self.passed, self.attempts)


class _Estimate(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float
    method: str


class _PairedTest(NamedTuple):
    """The result of a test whether differences between pairs can be chance."""

    p_value: float
    """The two-sided p-value: the probability of a difference as large as this or larger, in either direction, if there
    is none.
    """
    p_worse: float
    """The one-sided p-value: the probability of a sum of differences as low as this or lower, if there is
    no difference.
    """
    method: str


def wilson(passed: float, trials: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the bounds of Wilson's score interval, without continuity correction, for passed out of trials (> 0).

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, weight = passed / trials, z * z / trials
    middle = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    return (0.0 if rate == 0 else max(0.0, middle - half)), (1.0 if rate == 1 else min(1.0, middle + half))


def pass_rate(tasks: Sequence[TaskCount], *, confidence: float = CONFIDENCE) -> _Estimate | None:
    """Return the mean of the tasks' rates with its interval; None without a task that has attempts.

    One attempt a task: Wilson's interval. Several: Wilson's interval at the effective number of trials,
    rate * (1 - rate) / s^2 with s the standard error of the mean of the tasks' rates, held between the number of tasks
    (attempts that always agree) and that of trials (attempts independent of their task). At a rate of 0 or 1, where s
    says nothing, it is the number of tasks.

    Sources: E. L. Korn and B. I. Graubard, Survey Methodology 24 (1998) 193-201, for the effective number; C. Franco et
    al., J. Surv. Stat. Methodol. 7 (2019) 334-364, for Wilson's interval with it.
    """
    rates = [task.rate for task in tasks if task.attempts]
    if not rates:
        return None
    count, trials = len(rates), sum(task.attempts for task in tasks)
    mean = sum(rates, Fraction()) / count
    effective, method = float(count), "Wilson"
    if trials > count:
        method = "Wilson, at the effective number of trials (clustered by task)"
        if 0 < mean < 1 and count > 1:
            variance = sum(((rate - mean) ** 2 for rate in rates), Fraction()) / (count * (count - 1))
            effective = float(min(Fraction(trials), mean * (1 - mean) / variance)) if variance else float(trials)
            effective = max(effective, float(count))
    low, high = wilson(float(mean) * effective, effective, confidence=confidence)
    return _Estimate(float(mean), low, high, method)


def pass_at(k: int, tasks: Iterable[TaskCount]) -> float | None:
    """Return the unbiased pass@k: the mean over tasks of the probability that one of k attempts passes.

    For a task with n attempts of which c passed it is 1 - C(n-c, k) / C(n, k). None where a task has fewer attempts
    than k, or there is none: an estimate over some of the tasks would be one of easier or harder tasks.

    Source: M. Chen et al., "Evaluating large language models trained on code" (2021), section 2.1.
    """
    chances = []
    for passed, attempts in tasks:
        if attempts < k:
            return None
        chances.append(1 - Fraction(math.comb(attempts - passed, k), math.comb(attempts, k)))
    return float(sum(chances, Fraction()) / len(chances)) if chances else None


def paired_test(differences: Sequence[Fraction]) -> _PairedTest:
    """Test whether differences between pairs, each of one task, are as often and as far below zero as above.

    Where all that are not zero have one size, as with one attempt a task, it is McNemar's test in its exact form: of
    b + c tasks that differ, the smaller number against a fair coin (Q. McNemar, Psychometrika 12 (1947) 153-157).
    Else Fisher's sign-flip test over tasks, exact by counting all sums, or for many tasks by random flips with
    a fixed seed, and p = (hits + 1) / (draws + 1) (B. Phipson and G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 9 (2010)
    article 39).
    """
    sizes = Counter(abs(difference) for difference in differences if difference)
    if len(sizes) <= 1:
        result = mcnemar(
            sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
        )
        return result if set(sizes) <= {1} else result._replace(method="sign test over tasks, exact")
    scale = math.lcm(*(size.denominator for size in sizes))
    groups = {int(size * scale): count for size, count in sizes.items()}
    observed = int(sum(differences, Fraction()) * scale)
    span = sum(size * count for size, count in groups.items())
    if span * sum(groups.values()) <= MAX_EXACT_STEPS:
        return _exact_flips(groups, span, observed)
    return _sampled_flips(groups, observed)


def mcnemar(better: int, worse: int) -> _PairedTest:
    """Return McNemar's exact test for so many tasks that became better and worse."""
    count = better + worse

    def at_most(limit: int) -> float:
        """Return the probability of at most so many heads in count tosses."""
        return float(Fraction(sum(math.comb(count, heads) for heads in range(limit + 1)), 2**count))

    return _PairedTest(min(1.0, 2 * at_most(min(better, worse))), at_most(better), "McNemar, exact")


def _exact_flips(groups: dict[int, int], span: int, observed: int) -> _PairedTest:
    """Return the probability of every sum, shifted by span so that no sum is below zero."""
    chances = [0.0] * (2 * span + 1)
    chances[span] = 1.0
    reach = 0
    for size in (size for size, count in groups.items() for _ in range(count)):
        after = [0.0] * len(chances)
        for position in range(span - reach, span + reach + 1):
            if half := chances[position] / 2:
                after[position - size] += half
                after[position + size] += half
        chances, reach = after, reach + size
    worse = math.fsum(chances[: span + observed + 1])
    far = abs(observed)
    two_sided = math.fsum(chances[: span - far + 1]) + math.fsum(chances[span + far :]) if far else 1.0
    return _PairedTest(min(1.0, two_sided), min(1.0, worse), "sign flips over tasks, exact")


def _sampled_flips(groups: dict[int, int], observed: int) -> _PairedTest:
    draw = random.Random(0)  # noqa: S311 - the same input gives the same p-value
    draws = max(MIN_DRAWS, min(MAX_DRAWS, _MAX_DRAWN_STEPS // len(groups)))
    far = lower = 0
    for _ in range(draws):
        total = sum(size * (2 * draw.getrandbits(count).bit_count() - count) for size, count in groups.items())
        far += abs(total) >= abs(observed)
        lower += total <= observed
    method = f"sign flips over tasks, {draws} drawn"
    return _PairedTest((far + 1) / (draws + 1), (lower + 1) / (draws + 1), method)


def mean_difference(differences: Sequence[Fraction], *, confidence: float = CONFIDENCE) -> _Estimate | None:
    """Return the mean of differences between pairs with its interval; None without any pairs.

    The interval is the normal one of the differences and two more, one step up and one step down, so that pairs that
    all agree have an interval too. A step is the smallest difference there can be, one over the least common multiple
    of the denominators. With steps of 1 (one attempt a task) this is the adjusted interval of D. G. Bonett and R. M.
    Price, J. Educ. Behav. Stat. 37 (2012) 479-488.
    """
    if not differences:
        return None
    step = Fraction(1, math.lcm(*(difference.denominator for difference in differences)))
    adjusted = [*differences, step, -step]
    count = len(adjusted)
    middle = sum(adjusted, Fraction()) / count
    variance = sum(((difference - middle) ** 2 for difference in adjusted), Fraction()) / count
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance / count)
    value = float(sum(differences, Fraction()) / len(differences))
    low, high = max(-1.0, float(middle) - half), min(1.0, float(middle) + half)
    return _Estimate(value, min(low, value), max(high, value), "adjusted Wald over tasks (Bonett and Price)")
