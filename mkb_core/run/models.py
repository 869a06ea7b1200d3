"""The models that can be asked: data/models.yaml."""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from mkb_core.config import DATA, ROOT, Record, load_yaml, unknown

MODELS = DATA / "models.yaml"
SLUG = r"^[a-z0-9][a-z0-9._-]*$"  # keys name folders


class Price(Record):
    """US dollars per million tokens."""

    input: float
    cached: float
    output: float

    def cost(self, prompt: int, cached: int, completion: int) -> float:
        """Dollars of one answer; `prompt` includes what came from the provider's cache."""
        dollars = (prompt - cached) * self.input + cached * self.cached + completion * self.output
        return dollars / 1e6


class Model(Record):
    """One entry of data/models.yaml."""

    key: Annotated[str, Field(pattern=SLUG)]
    name: str
    litellm: str
    api_base: str | None = None
    key_variable: str | None
    context: int
    output: int
    price: Price | None
    demo: bool = False

    @property
    def info(self) -> dict[str, Any]:
        """What LiteLLM and Terminus-2 want to know about the model."""
        limits = {"max_input_tokens": self.context, "max_output_tokens": self.output}
        return {**limits, "litellm_provider": self.litellm.split("/")[0], "mode": "chat"}


class NotReady(RuntimeError):
    """A model that may not be asked as things are."""


@cache
def models(path: Path = MODELS) -> dict[str, Model]:
    """All models by key; raises pydantic.ValidationError naming the field that is off."""
    return {key: Model.model_validate({"key": key, **fields}) for key, fields in load_yaml(path).items()}


def get_model(key: str) -> Model:
    """The model of this key; raises ValueError listing the keys that exist."""
    if key not in models():
        raise unknown("model", key, models())
    return models()[key]


def require_ready(model: Model) -> None:
    """Raise NotReady where a run with this model could not start or could not be billed."""
    require_key(model)
    require_price(model)


def require_key(model: Model) -> None:
    """Raise NotReady naming the missing environment variable and where the model is defined."""
    if model.key_variable and not os.environ.get(model.key_variable):
        raise NotReady(
            f"{model.name} needs the environment variable {model.key_variable} ({place(model)}). "
            f"Set it in the shell that starts the run, `export {model.key_variable}=...`, "
            "or take `-p model demo`, which needs no key"
        )


def require_price(model: Model) -> None:
    """Raise NotReady where the price is unknown: its spending could not be limited."""
    if model.price is None:
        raise NotReady(f"{model.name} has no price ({place(model)}): fill in `price` before a run")


def place(model: Model, path: Path = MODELS) -> str:
    """File and line of the model's definition, as in `data/models.yaml:20`."""
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    for key, _ in tree.value if isinstance(tree, yaml.MappingNode) else ():
        if key.value == model.key:
            return f"{shown}:{key.start_mark.line + 1}"
    return str(shown)
