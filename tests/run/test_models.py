"""The model registry, and what keeps a model from starting."""

import pytest

from mkb_core.config import ROOT
from mkb_core.run import models
from mkb_core.run.models import NotReady, Price, get_model

PAPER = {
    "deepseek-v4-pro",
    "glm-5.3",
    "gpt-5.6-sol",
    "gemini-3.7-flash",
    "glm-5.3-flash",
    "qwen3.8-flash",
}


def test_registry_holds_the_papers_models_and_the_demo():
    assert set(models.models()) == PAPER | {"demo"}
    assert get_model("demo").demo
    assert not any(get_model(key).demo for key in PAPER)


def test_unknown_model_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"unknown model 'gpt-9'; there are: demo, .*glm-5\.3"):
        get_model("gpt-9")


def test_keys_name_folders():
    with pytest.raises(ValueError, match="key"):
        models.Model.model_validate(get_model("demo").model_dump() | {"key": "zai/glm-5.3"})


def test_missing_key_names_variable_and_line(monkeypatch):
    monkeypatch.setenv("ZAI_API_KEY", "")  # empty is missing
    with pytest.raises(NotReady) as caught:
        models.require_key(get_model("glm-5.3"))
    text = str(caught.value)
    assert "ZAI_API_KEY" in text
    assert "export" in text
    file, line = text.split("(")[1].split(")")[0].split(":")
    assert (ROOT / file).read_text().splitlines()[int(line) - 1] == "glm-5.3:"


def test_key_in_the_environment_is_enough(monkeypatch):
    monkeypatch.setenv("ZAI_API_KEY", "sk-something")
    models.require_ready(get_model("glm-5.3"))


def test_demo_needs_no_key():
    models.require_ready(get_model("demo"))


def test_unknown_price_refuses_to_start():
    free = get_model("demo").model_copy(update={"price": None})
    with pytest.raises(NotReady, match=r"no price \(data/models\.yaml:\d+\)"):
        models.require_ready(free)


def test_cost_bills_cached_tokens_at_their_own_price():
    price = Price(input=2.0, cached=0.5, output=10.0)
    # 600 k at 2 + 400 k at 0.5 + 100 k at 10 dollars per million
    assert price.cost(1_000_000, 400_000, 100_000) == pytest.approx(1.2 + 0.2 + 1.0)
