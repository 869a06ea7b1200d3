"""On this machine's device, hostile submissions in CuTe DSL get the verdict that they declare."""

import pytest

pytest.importorskip("torch")

import corpus

pytestmark = pytest.mark.dsl
CASES = [c for c in corpus.cases("evil") if c.dsl == "cutedsl"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.path.stem)
def test_the_verdict_is_the_declared_one(case, declared):
    declared(case)
