"""Tiny models, by the name that tests use."""

from __future__ import annotations

from rljob_contract.tiny_models import ARCHITECTURES, CHARACTERS, END, tiny_model

__all__ = ["ARCHITECTURES", "CHARACTERS", "END", "tiny_model"]
