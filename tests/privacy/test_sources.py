"""Many noise sources at once are the single ones, byte for byte, in any order of reading."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedenergy.ids import STREAM, digest, stream_key
from fedenergy.privacy.noise import SecureNoise, SimulationNoise


@given(seed=st.integers(-2**70, 2**70), text=st.lists(st.text(max_size=40), min_size=3, max_size=3))
def test_the_quick_key_is_the_digest_of_the_canonical_form(seed, text):
    assert stream_key(seed, *text) == digest(STREAM, [seed, *text])


def test_shared_sources_give_the_bytes_of_single_ones():
    noise, names = SimulationNoise(3), [f"h{k}" for k in range(5)]
    many = noise.sources(names, "q")
    reads = np.random.default_rng(0).integers(1, 70, (40, 2))
    single = {name: noise.source(name, "q") for name in names}
    for at, size in reads:
        assert many[at % 5].bits(int(size)) == single[names[at % 5]].bits(int(size))


def test_secure_sources_do_not_repeat():
    first, second = SecureNoise().sources(["h1", "h1"], "q")
    assert first.bits(16) != second.bits(16)
