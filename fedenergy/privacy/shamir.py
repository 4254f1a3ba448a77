"""Shamir's secret sharing of 32-byte keys over a prime field: any t shares give the key, t - 1 say nothing about it.

Source: Shamir 1979. The share of holder i is the value at x = i of a polynomial of degree t - 1 whose constant term is
the secret. Exact integers; not constant in time (side channels are out of scope here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297          # the smallest prime above every 32-byte key
SECRET_BYTES, SHARE_BYTES = 32, 33
COEFFICIENT_BYTES = 64        # reduced modulo PRIME: within 2**-255 of uniform


def split(secret: bytes, threshold: int, holders: int, random: Callable[[int], bytes]) -> list[bytes]:
    """One share of 33 bytes for each holder 1 .. holders.

    secret  32 bytes; threshold: t, 1 <= t <= holders < 2**16; random(n): n uniform bytes, drawn t - 1 times
    Guarantee: t - 1 shares are independent of the secret (up to 2**-255 a coefficient, and what `random` lacks).
    Errors: ValueError.

    >>> shares = split(b"k" * 32, 2, 3, lambda n: b"r" * n)
    >>> join({1: shares[0], 3: shares[2]}, 2) == b"k" * 32
    True
    """
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret to be shared is {SECRET_BYTES} bytes")
    if not 1 <= threshold <= holders < 2**16:
        raise ValueError(f"threshold = {threshold} of {holders} holders: use 1 <= threshold <= holders < 65536")
    polynomial = [int.from_bytes(random(COEFFICIENT_BYTES), "little") % PRIME for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "little")
    shares = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in polynomial:
            value = (value + coefficient) * x % PRIME
        shares.append(((value + constant) % PRIME).to_bytes(SHARE_BYTES, "little"))
    return shares


def weights(points: Sequence[int]) -> list[int]:
    """Lagrange weights at 0 of distinct points 1 .. 65535: secret = sum of weight times share, modulo PRIME."""
    if len(set(points)) != len(points) or not all(0 < x < 2**16 for x in points):
        raise ValueError(f"the points of shares are distinct whole numbers from 1 to 65535, not {sorted(points)[:8]}")
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(shares: Sequence[bytes], weighted: Sequence[int]) -> bytes:
    """The secret from shares and the weights of their points, in the same order.

    Errors: ValueError for a malformed share, and where the value is no 32-byte key: a share was wrong.
    """
    total = 0
    for share, weight in zip(shares, weighted, strict=True):
        value = int.from_bytes(share, "little")
        if len(share) != SHARE_BYTES or value >= PRIME:
            raise ValueError(f"a share is {SHARE_BYTES} bytes below the field's prime")
        total += value * weight
    if (total := total % PRIME) >= 2**(8 * SECRET_BYTES):
        raise ValueError("the shares do not give a key: one of them is wrong")
    return total.to_bytes(SECRET_BYTES, "little")


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from holder -> share; the first `threshold` holders are used. ValueError where there are fewer."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares are fewer than the threshold {threshold}: the secret stays closed")
    points = sorted(shares)[:threshold]
    return combine([shares[x] for x in points], weights(points))
