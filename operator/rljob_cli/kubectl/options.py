"""The options that say which cluster and namespace a command means, as kubectl's own commands have them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_core.errors import RLJobError, SpecError

if TYPE_CHECKING:  # it needs the Kubernetes client, which a slim install lacks
    from rljob_cli.kubectl.cluster import UserCluster


def known_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that begin so, for shells that complete them; none if the cluster cannot be asked."""
    given = {name: str(ctx.params.get(name) or "") for name in ("namespace", "context", "kubeconfig")}
    try:
        found = open_cluster(**given).job_names()
    except (RLJobError, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]


JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Name of an RLJob.", show_default=False, autocompletion=known_jobs),
]
NamespaceOption = Annotated[
    str,
    typer.Option("--namespace", "-n", metavar="NAME", help="Its namespace; that of the context without it."),
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="NAME", help="The kubeconfig's context to use.")
]
KubeconfigOption = Annotated[
    str, typer.Option("--kubeconfig", metavar="FILE", help="Path of the kubeconfig.")
]
StorageOption = Annotated[
    list[str],
    typer.Option(
        "--storage",
        metavar="CLAIM=FOLDER",
        help="Where a PersistentVolumeClaim of the job is mounted on this machine, if it is.",
        show_default=False,
    ),
]


def open_cluster(namespace: str, context: str, kubeconfig: str) -> UserCluster:
    """The cluster that these options name.

    Raises:
        SpecError: there is none such, or the Kubernetes client is not installed.
    """
    try:
        from rljob_cli.kubectl.cluster import ClusterChoice, UserCluster
    except ModuleNotFoundError as error:
        package = (error.name or "kubernetes").partition(".")[0]
        raise SpecError("", f"kubectl rljob needs {package}: pip install 'rljob[operator]'") from error
    if kubeconfig and not Path(kubeconfig).is_file():
        raise SpecError("--kubeconfig", f"{kubeconfig} is not a file")
    given = kubeconfig or _first_that_exists(os.environ.get("KUBECONFIG", ""))
    return UserCluster(ClusterChoice(namespace=namespace, context=context, kubeconfig=given))


def _first_that_exists(paths: str) -> str:
    """KUBECONFIG, without files that do not exist, which kubectl ignores."""
    return os.pathsep.join(path for path in paths.split(os.pathsep) if path and Path(path).is_file())


def storage_folders(texts: Sequence[str]) -> dict[str, Path]:
    """The folder of each claim that `--storage` names.

    Raises:
        SpecError: a text is not of that form, or the folder does not exist.
    """
    found = {}
    for text in texts:
        claim, equals, folder = text.partition("=")
        if not claim or not equals or not Path(folder).is_dir():
            raise SpecError("--storage", f"{text!r}: write CLAIM=FOLDER, with a folder that exists")
        found[claim] = Path(folder).resolve()
    return found
