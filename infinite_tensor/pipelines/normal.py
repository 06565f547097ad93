"""Normal numbers of uniform ones, with the same bits on every machine.

Algorithm AS 241 of Wichura, "The Percentage Points of the Normal Distribution" (1988), by numpy: PPND7 in float32,
PPND16 in float64. Sums, products, quotients and square roots are rounded in one way everywhere. The logarithm of a
library is not, nor its `erfinv`: here it is a sum of products as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

_PART = 2**16
"""Numbers that stay in the cache of a core while they are worked on; fewer take more calls."""


class _Rational(NamedTuple):
    """A polynomial over another one, the coefficient of the highest power first."""

    above: Sequence[Any]
    below: Sequence[Any]

    def __call__(self, x: Floats) -> Floats:
        value = _polynomial(self.above, x)
        value /= _polynomial(self.below, x)
        return value

    def of(self, dtype: type[np.floating[Any]]) -> _Rational:
        """For numbers of a dtype."""
        return _Rational(_scalars(self.above, dtype), _scalars(self.below, dtype))


class _Algorithm(NamedTuple):
    """PPND7 or PPND16.

    Attributes
    ----------
    central : _Rational
        Of 0.180625 - q**2, where q is at most 0.425 from the middle; times q.
    tail : _Rational
        Of r - 1.6, where r**2 = -log(p) and p is the probability beyond.
    far : _Rational or None
        Of r - 5, where r is above 5; None where no number is so small.
    logarithm : tuple of float
        Of the series of 2 atanh.
    """

    central: _Rational
    tail: _Rational
    far: _Rational | None
    logarithm: Sequence[Any]

    def of(self, dtype: type[np.floating[Any]]) -> _Algorithm:
        """For numbers of a dtype."""
        far = None if self.far is None else self.far.of(dtype)
        return _Algorithm(self.central.of(dtype), self.tail.of(dtype), far, _scalars(self.logarithm, dtype))


def _scalars(numbers: Sequence[float], dtype: type[np.floating[Any]]) -> Sequence[Any]:
    """As arrays without dimensions: of a few thousand numbers numpy adds those in half the time of a float."""
    return [np.array(number, dtype) for number in numbers]


_PPND7 = _Algorithm(
    central=_Rational(
        (5.9109374720e1, 1.5929113202e2, 5.0434271938e1, 3.3871327179e0),
        (6.7187563600e1, 7.8757757664e1, 1.7895169469e1, 1.0),
    ),
    tail=_Rational(
        (1.7023821103e-1, 1.3067284816e0, 2.7568153900e0, 1.4234372777e0),
        (1.2021132975e-1, 7.3700164250e-1, 1.0),
    ),
    far=None,
    logarithm=[2 / power for power in (9, 7, 5, 3, 1)],
)
_PPND16 = _Algorithm(
    central=_Rational(
        (
            2.5090809287301226727e3,
            3.3430575583588128105e4,
            6.7265770927008700853e4,
            4.5921953931549871457e4,
            1.3731693765509461125e4,
            1.9715909503065514427e3,
            1.3314166789178437745e2,
            3.3871328727963666080e0,
        ),
        (
            5.2264952788528545610e3,
            2.8729085735721942674e4,
            3.9307895800092710610e4,
            2.1213794301586595867e4,
            5.3941960214247511077e3,
            6.8718700749205790830e2,
            4.2313330701600911252e1,
            1.0,
        ),
    ),
    tail=_Rational(
        (
            7.7454501427834140764e-4,
            2.27238449892691845833e-2,
            2.41780725177450611770e-1,
            1.27045825245236838258e0,
            3.64784832476320460504e0,
            5.76949722146069140550e0,
            4.63033784615654529590e0,
            1.42343711074968357734e0,
        ),
        (
            1.05075007164441684324e-9,
            5.47593808499534494600e-4,
            1.51986665636164571966e-2,
            1.48103976427480074590e-1,
            6.89767334985100004550e-1,
            1.67638483018380384940e0,
            2.05319162663775882187e0,
            1.0,
        ),
    ),
    far=_Rational(
        (
            2.01033439929228813265e-7,
            2.71155556874348757815e-5,
            1.24266094738807843860e-3,
            2.65321895265761230930e-2,
            2.96560571828504891230e-1,
            1.78482653991729133580e0,
            5.46378491116411436990e0,
            6.65790464350110377720e0,
        ),
        (
            2.04426310338993978564e-15,
            1.42151175831644588870e-7,
            1.84631831751005468180e-5,
            7.86869131145613259100e-4,
            1.48753612908506148525e-2,
            1.36929880922735805310e-1,
            5.99832206555887937690e-1,
            1.0,
        ),
    ),
    logarithm=[2 / power for power in range(19, 0, -2)],
)
_ALGORITHMS = {np.dtype(np.float32): _PPND7.of(np.float32), np.dtype(np.float64): _PPND16.of(np.float64)}

_MIDDLE, _LOG_MIDDLE, _LOG_2 = 0.7071067811865476, -0.34657359027997264, 0.6931471805599453


def make_normal(offsets: Floats) -> None:
    """Replace each number q by the one that a normal number is below with a probability of 1/2 + q.

    Parameters
    ----------
    offsets : array of float32 or float64
        Of one dimension; from above -1/2 to below 1/2.
    """
    algorithm = _ALGORITHMS[offsets.dtype]
    for begin in range(0, len(offsets), _PART):
        part = offsets[begin : begin + _PART]
        distance = part * part
        np.subtract(0.180625, distance, out=distance)
        (tails,) = np.nonzero(distance < 0)
        beyond = part[tails]
        # So that nothing is divided by zero there.
        distance[tails] = 0
        part *= algorithm.central(distance)
        part[tails] = _of_tails(algorithm, beyond)


def _of_tails(algorithm: _Algorithm, offsets: Floats) -> Floats:
    root = np.sqrt(-_logarithm(algorithm.logarithm, 0.5 - np.abs(offsets)))
    values = algorithm.tail(root - 1.6)
    if algorithm.far is not None and len(far := np.flatnonzero(root > 5)):
        values[far] = algorithm.far(root[far] - 5)
    return np.copysign(values, offsets, out=values)


def _logarithm(series: Sequence[Any], x: Floats) -> Floats:
    """Natural logarithms, by ``log(m) = 2 atanh((m - 1) / (m + 1))`` for m between 0.7 and 1.5."""
    fraction, exponent = np.frexp(x)
    ratio = (fraction - _MIDDLE) / (fraction + _MIDDLE)
    value = _polynomial(series, ratio * ratio)
    value *= ratio
    value += _LOG_MIDDLE
    value += _LOG_2 * exponent.astype(x.dtype)
    return value


def _polynomial(coefficients: Sequence[Any], x: Floats) -> Floats:
    """By the rule of Horner, without a fused multiplication and addition, which not every machine has."""
    value: Floats = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value
