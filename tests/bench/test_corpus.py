"""The corpus: its size, its headers, and the command that prints its matrix."""

from collections import Counter

import pytest

pytest.importorskip("torch")
import corpus

pytestmark = pytest.mark.dsl
EVIL, HONEST = corpus.cases("evil"), corpus.cases("honest")
TRICK = '"""A trick.\n\nClass: cache\nExpected: value\n"""\n'


def test_the_corpus_is_large_and_every_class_has_files():
    count = Counter(case.klass for case in EVIL)
    assert set(count) == set(corpus.CLASSES)
    assert min(count.values()) >= 10
    assert len(EVIL) >= 80
    assert len(HONEST) >= 30
    assert {case.dsl for case in EVIL} == {case.dsl for case in HONEST} == {"cutedsl", "tirx"}


def test_what_a_static_rule_refuses_says_what_is_behind_it():
    from mkb_core.bench.verify import static_fault

    for case in EVIL:
        assert bool(case.behind) == (static_fault(case.dsl, case.path.read_bytes()) is not None), case.path


def test_a_header_is_read(tmp_path):
    path = tmp_path / "p36_tirx__a_trick.py"
    path.write_text(TRICK.replace("value", "rule graph\nBehind: value or runtime\nDevice: cuda"))
    case = corpus.parse(path)
    assert case == corpus.Case(path, "p36", "tirx", "cache", "rule", "graph", ("value", "runtime"), "cuda")
    assert str(case) == "rule graph | value or runtime"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cache", "cash", "Class is 'cash'; it must be one of cache, timing"),
        ("value", "values", "'values' is no status; there are: passed, rule"),
        ("Expected: value", "Expect: value", "header has Class, Expected, Behind, Device"),
        ("Expected: value\n", "", "'' is no status"),
        ("value", "rule", "`rule`, and no other status, is followed by the id of a rule"),
        ("value", "value graph", "`rule`, and no other status, is followed by the id of a rule"),
        ("value", "value\nBehind: runtime", "Behind is for what a static rule refuses"),
        ("value", "rule graph\nBehind: fine", "'fine' is no status"),
        ("value", "value\nDevice: tpu", "Device is 'tpu'; it must be cuda"),
        ("A trick.", "A trick", "must begin with one or two sentences"),
        ("Class: cache", "Class cache", "not every line of the header is `Name: value`"),
    ],
)
def test_a_malformed_header_is_named(tmp_path, old, new, message):
    path = tmp_path / "p36_tirx__a_trick.py"
    path.write_text(TRICK.replace(old, new))
    with pytest.raises(ValueError, match=r"p36_tirx__a_trick\.py: .*" + message):
        corpus.parse(path)


def test_a_malformed_name_is_named(tmp_path):
    for name in ("p36_triton__a.py", "p3_tirx__a.py", "p36_tirx_a.py", "p36_tirx__A.py"):
        (tmp_path / name).write_text(TRICK)
        with pytest.raises(ValueError, match="its name must be like"):
            corpus.parse(tmp_path / name)


def test_the_command_prints_a_matrix_and_writes_the_rows(tmp_path, capsys):
    out = tmp_path / "rows.json"
    assert corpus.main(["--device", "auto", "--only", "p36_*__imports_quack", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "p36_cutedsl__imports_quack" in printed
    assert "evasion    1 of 1 verdicts as expected" in printed
    assert '"got": "rule library | ' in out.read_text()
