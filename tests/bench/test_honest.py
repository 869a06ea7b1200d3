"""On this machine's device, honest submissions that look suspicious pass."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent))

import corpus

from mkb_core.bench.gpu import default_device
from mkb_core.bench.verify import Verifier

pytestmark = pytest.mark.dsl
CASES = corpus.cases("honest")


@pytest.fixture(scope="module")
def verifiers():
    with Verifier(default_device()) as patient, Verifier(default_device(), corpus.QUICK) as quick:
        yield patient, quick


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.path.stem)
def test_the_verdict_is_the_declared_one(case, verifiers):
    got, wrong = corpus.judge(case, verifiers[corpus.hangs(case)])
    if got == "not shown":
        pytest.skip("needs a GPU")
    assert not wrong, f"{got}: {wrong}"
