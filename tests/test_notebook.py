"""The start cell of a notebook: exact names and types, and an error that lists the valid ones."""

import pytest

from mkb_core.notebook import Parameters, Start


class Example(Parameters):
    model: str = "demo"
    replicates: int = 1
    dry_run: bool = False
    max_usd: float | None = None


def start(**given):
    names = {"np": object(), "In": []}
    begin = Start(names)
    names |= {"start": begin, "_i3": "x"} | given
    return begin(Example)


def test_defaults_and_given_values():
    assert start() == Example()
    assert start(model="x", dry_run=True, max_usd=2.5) == Example(model="x", dry_run=True, max_usd=2.5)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"modle": "demo"}, "modle"),
        ({"dry_run": "false"}, "dry_run: input should be a valid boolean"),
        ({"model": 7}, "model: input should be a valid string"),
        ({"replicates": 1.5}, "replicates"),
    ],
)
def test_a_mistake_is_named_and_the_valid_parameters_listed(given, text):
    with pytest.raises(ValueError, match=text) as caught:
        start(**given)
    assert "valid are: model: str, replicates: int, dry_run: bool, max_usd: float | None" in str(caught.value)
