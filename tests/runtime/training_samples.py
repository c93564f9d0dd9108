"""Samples for the tests of trainer backends, by the name that tests use."""

from __future__ import annotations

from rljob_contract.samples import VOCABULARY, job_config, random_samples, sample, segment

__all__ = ["VOCABULARY", "job_config", "random_samples", "sample", "segment"]
