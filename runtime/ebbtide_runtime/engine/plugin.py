"""vLLM's general plugin: called in every process of the engine, before anything is built."""

from __future__ import annotations

from . import member


def register() -> None:
    """Adapt vLLM, where our launcher started it. In anybody else's vLLM this does nothing at all.

    Raises UnsupportedEngineError, which stops the engine.
    """
    if not member.active():
        return
    from . import compat

    compat.adapt()
