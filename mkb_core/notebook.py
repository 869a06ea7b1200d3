"""Parameters of a notebook: papermill passes anything on, so the start cell validates."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

HIDDEN = frozenset({"In", "Out", "get_ipython", "exit", "quit", "open", "start"})


class Parameters(BaseModel):
    """Base of a notebook's parameters: exact types, and an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


P = TypeVar("P", bound=Parameters)


class Start:
    """Made above the parameters cell, called below it: what has appeared in between are the parameters."""

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self.names, self.before = names, set(names)

    def __call__(self, model: type[P]) -> P:
        """The validated parameters; raises ValueError that lists the valid ones."""
        given = {
            name: value
            for name, value in self.names.items()
            if name not in self.before | HIDDEN and not name.startswith("_")
        }
        try:
            return model.model_validate(given)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
            valid = ", ".join(f"{n}: {_name(f.annotation)}" for n, f in model.model_fields.items())
            raise ValueError(f"wrong parameters ({faults}); valid are: {valid}") from None


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def shown(path: Path, root: Path) -> str:
    """A path as a notebook prints it: relative to the repository where it lies inside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
