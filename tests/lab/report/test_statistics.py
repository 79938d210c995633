"""Tests of differences, compared with SciPy's."""

import pytest
import scipy.stats

from dynabound.lab.report.statistics import mean, std, welch_margin


def test_of_too_few_values_nothing_is_known():
    assert str(mean([])) == "nan"
    assert str(std([1.0])) == "nan"
    assert (mean([1.0, 3.0]), std([1.0, 3.0])) == (2.0, pytest.approx(2**0.5))


@pytest.mark.parametrize("scale", [1.0, 0.3, 10.0])
def test_the_margin_is_that_of_welchs_test(scale):
    a, b = [90.0, 91.0, 90.4], [88 + scale * x for x in (0.0, 1.0, 0.7)]
    interval = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert welch_margin(a, b) == pytest.approx((interval.high - interval.low) / 2)
