"""The timed part on calls made up here: what counts as sure, hidden, or somebody else's thread."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from mkb_core.bench import race
from mkb_core.bench.participant import Called, Rejected
from mkb_core.bench.race import Race, blocks
from mkb_core.config import protocol

REPORT = SimpleNamespace()


def called(microseconds, window=None):
    return Called(microseconds * 1e-6, (window or microseconds + 100) * 1e-6, REPORT, ())


def finished(ours, eager=(1000,) * 5, nothing=110, helper=0.0, idle=30e-6, idle_after=30e-6):
    """A race whose blocks took these microseconds."""
    supervisor = SimpleNamespace(end=lambda part: {})
    checker = SimpleNamespace(
        rules=protocol().verdict, facts={}, supervisor=supervisor, idle_seconds=lambda: idle_after
    )
    done = Race(checker, SimpleNamespace(), SimpleNamespace())
    done.ours = [[c if isinstance(c, Called) else called(c) for c in block] for block in ours]
    done.eager = [[called(m)] * 10 for m in eager]
    done.nothing = [called(10, nothing)] * 8
    done.helper, done.idle = helper, [idle] * 6
    return done


def test_blocks_cover_all_calls_and_do_not_mix_warm_up_with_timed_ones():
    found = list(blocks(10, 50, 7))
    assert [i for block in found for i in block] == list(range(60))
    assert all((block.start < 10) == (block.stop <= 10) for block in found)


def test_blocks_that_agree_are_enough_and_others_are_not():
    assert not finished([[100] * 10] * 5).unsure()
    assert finished([[100] * 10, [130] * 10, [100] * 10, [90] * 10, [100] * 10]).unsure()


def test_figures_are_medians_of_all_calls_and_the_ratio_is_theirs():
    facts = finished([[100] * 10, [110] * 10, [100] * 10, [120] * 10, [100] * 10]).facts()
    assert facts["kernel_ms"] == pytest.approx(0.1)
    assert facts["speedup"] == pytest.approx(facts["baseline_ms"] / facts["kernel_ms"]) == pytest.approx(10)
    assert facts["kernel_p90_ms"] == pytest.approx(0.12)
    assert facts["timed"] == 50
    assert len(facts["blocks"]) == 5


def test_the_cap():
    assert finished([[1] * 10] * 5).facts()["speedup"] == protocol().verdict.speedup_cap


def test_work_beside_the_timed_part_is_seen_in_the_closed_window():
    honest = finished([[called(100, 205)] * 10] * 5)  # 105 us outside, 100 where nothing is done
    honest.closed_window()
    assert honest.checker.facts["hidden_ms"] == pytest.approx(0.005)
    with pytest.raises(Rejected, match="rule `hidden-work`: 60 us of work a call outside the timed part"):
        finished([[called(100, 260)] * 10] * 5).closed_window()


def test_the_window_may_be_longer_by_a_share_of_long_calls():
    finished([[called(5000, 5400)] * 10] * 5).closed_window()
    with pytest.raises(Rejected):
        finished([[called(5000, 5600)] * 10] * 5).closed_window()


def test_helper_threads_and_a_busy_device_are_refused():
    finished([[1000] * 10] * 5).background()
    with pytest.raises(Rejected, match="rule `thread`"):
        finished([[1000] * 10] * 5, helper=0.02).background()
    with pytest.raises(Rejected, match="rule `background`"):
        finished([[1000] * 10] * 5, idle=1e-3).background()


def test_a_device_that_stays_busy_is_not_the_kernels_fault():
    with pytest.raises(Rejected) as caught:
        finished([[1000] * 10] * 5, idle=1e-3, idle_after=1e-3).background()
    assert caught.value.status == "infra"


def test_the_collector_rests_in_the_timed_part():
    import gc

    with race.quiet():
        assert not gc.isenabled()
    assert gc.isenabled()
