"""Watches a DSL's compiler for device code from outside the DSL, and tells the shim what it compiled."""

import ctypes
import importlib
from collections.abc import Callable

Finding = tuple[str, str]  # rule id, text


class Guard:
    """What was found so far; a registry that differs from its first state is found when somebody asks."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}
        self.compare: Callable[[], None] = lambda: None
        library = ctypes.CDLL(None)
        self._digest = getattr(library, "mkb_digest", None)  # only where launches.c is preloaded
        if self._digest is not None:
            self._digest.restype = ctypes.c_uint64
            self._digest.argtypes = (ctypes.c_char_p,)
            self._allow = library.mkb_allow
            self._allow.argtypes = (ctypes.c_uint64,)

    @property
    def findings(self) -> list[Finding]:
        """Rule and text of each finding, in order and once."""
        self.compare()
        return list(self._found)

    def report(self, text: str) -> None:
        """Note a finding."""
        self._found.setdefault(("raw-cuda", " ".join(text.split())[:200]))

    def allow(self, image: bytes) -> None:
        """Tell the shim that the DSL's compiler produced this module."""
        if self._digest is not None and image:
            self._allow(self._digest(image))


def install(dsl: str) -> Guard:
    """Wrap the compiler of a DSL that is imported; once a process, before any submission."""
    guard = Guard()
    importlib.import_module(f"mkb_core.bench.guard_{dsl}").install(guard)
    return guard
