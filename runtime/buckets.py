"""Sizes in buckets: whole numbers in steps of an eighth, so that few shapes stand for all.

It knows no kernel. Whoever measures a shape and whoever looks it up must use these same functions.
"""

from __future__ import annotations

STEP_BITS = 3
STEPS = 1 << STEP_BITS  # buckets of an octave


def bucket(size: int) -> int:
    """The number of the bucket of `size` >= 0: sizes to 16 have their own, larger ones share.

    A bucket's sizes differ by less than an eighth, and a larger size never has a lower bucket.
    """
    shift = max(size.bit_length() - 1 - STEP_BITS, 0)
    return (shift << STEP_BITS) + -(-size >> shift)


def largest(number: int) -> int:
    """The largest size in bucket `number`, which stands for all of them."""
    shift = max((number >> STEP_BITS) - 1, 0)
    return (number - (shift << STEP_BITS)) << shift


def round_up(size: int) -> int:
    """The largest size in the bucket of `size`."""
    return largest(bucket(size))
