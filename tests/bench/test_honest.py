"""On this machine's device, honest submissions that look suspicious pass."""

import pytest

pytest.importorskip("torch")

import corpus

pytestmark = pytest.mark.dsl
CASES = corpus.cases("honest")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.path.stem)
def test_the_verdict_is_the_declared_one(case, declared):
    declared(case)
