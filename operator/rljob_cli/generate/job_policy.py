"""`rljob job-policy`: the admission policy for RLJobs as a file, and whether it says what the table says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.yaml_files import write_or_check

HEADER = (
    "# Generated from rljob_operator/decisions/named_by_jobs.py by `rljob job-policy`: change that, then `make crds`.\n"
    "# What RLJobs may name is in the ConfigMap rljob-job-rules.\n"
)


def job_policy(
    output: Annotated[Path, typer.Option(help="The file.")] = Path(
        "manifests/policies/jobs/base/policy.yaml"
    ),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if the file is not up to date.")
    ] = False,
) -> None:
    """Write the ValidatingAdmissionPolicy that refuses RLJobs which name what the platform does not allow.

    It is made from the table by which the operator refuses them, so both refuse the same.
    """
    from rljob_operator.crd.job_policy import job_policy as policy

    write_or_check({output: policy()}, output, header=HEADER, check=check)
