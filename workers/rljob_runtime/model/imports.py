"""What loading a model imports, in pieces: who imports ahead can do something else between two of them."""

from __future__ import annotations

LOADING = ("torch", "transformers", "rljob_runtime.model.causal")
