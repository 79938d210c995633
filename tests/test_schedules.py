from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynabound._rule import peak


@pytest.mark.parametrize("top", [*range(40), 999, 2**20 - 1, 2**20 + 1, 2**21 - 1])
def test_the_peak_of_a_tent(top):
    assert peak(lambda step: -abs(step - top)) == 0


@given(
    st.integers(-5, 5),
    st.lists(st.integers(1, 9), max_size=200),
    st.lists(st.integers(0, 9), max_size=200),
)
def test_the_peak_of_any_schedule_that_rises_and_then_falls(start, rises, falls):
    values = list(accumulate([*rises, *(-fall for fall in falls)], initial=start))
    assert peak(lambda step: values[min(step, len(values) - 1)]) == max(values)
