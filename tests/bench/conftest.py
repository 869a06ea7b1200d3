"""What the tests of the corpus share: its module on the path, and a verifier for each kind of case."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture(scope="module")
def declared():
    """A function that judges a case of the corpus on this machine's device and holds it against its header."""
    import corpus

    from mkb_core.bench.gpu import default_device
    from mkb_core.bench.verify import Verifier

    with Verifier(default_device()) as patient, Verifier(default_device(), corpus.QUICK) as quick:

        def judge(case):
            got, wrong = corpus.judge(case, quick if corpus.hangs(case) else patient)
            if got == "not shown":
                pytest.skip("needs a GPU")
            assert not wrong, f"{got}: {wrong}"

        yield judge
