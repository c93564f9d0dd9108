"""`python -m e2e.harness`: clusters to play with, and the programs that they are made of."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from e2e.harness import go_modules, keeper
from e2e.harness.binaries import bin_folder, built
from e2e.harness.build import build as build_programs
from e2e.harness.cluster import requirements
from e2e.harness.errors import HarnessError
from e2e.harness.images import node_images

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(help="The cluster's folder: logs, kubeconfig. One cluster each.")]


@app.command()
def build(
    nodes: Annotated[bool, typer.Option(help="Also the programs that real nodes need.")] = True,
    kwok: Annotated[bool, typer.Option(help="Also KWOK, which the operator's benchmark needs.")] = False,
    kueue: Annotated[bool, typer.Option(help="Also Kueue, which the tests of queues need.")] = False,
    helm: Annotated[bool, typer.Option(help="Also Helm, which the tests of the chart need.")] = False,
    keep: Annotated[bool, typer.Option(help="Leave Go's caches (5 GB), for building again soon.")] = False,
) -> None:
    """Build Kubernetes' programs into the cache: about 15 minutes on 2 cores, once."""
    others = {go_modules.KWOK: kwok, go_modules.KUEUE: kueue, go_modules.HELM: helm}
    modules = [*go_modules.MODULES, *(module for module, wanted in others.items() if wanted)]
    build_programs(modules, nodes=nodes, keep=keep, say=typer.echo)
    typer.echo(f"KUBEBUILDER_ASSETS={shlex.quote(str(bin_folder(go_modules.KUBERNETES)))}")


@app.command()
def up(
    folder: Folder,
    nodes: Annotated[
        list[str] | None, typer.Argument(help="Nodes to start: `east`, `west:pool=spot`. None: no nodes.")
    ] = None,
) -> None:
    """Start a cluster, here and now; it stays until `down`."""
    if nodes:
        node_images(requirements(folder), say=typer.echo)
    typer.echo("starting; Ctrl-C takes all of it back")
    kubeconfig = keeper.hold(folder, nodes=nodes or [])
    kubectl = built().programs.get("kubectl", Path("kubectl"))
    typer.echo(f"export KUBECONFIG={shlex.quote(str(kubeconfig))}")
    typer.echo(f"alias kubectl={shlex.quote(str(kubectl))}")


@app.command()
def down(folder: Folder) -> None:
    """End the cluster of a folder, with everything in it; its logs are left."""
    typer.echo(f"gone; its logs are in {folder}" if keeper.release(folder) else f"no cluster in {folder}")


@app.command()
def pin(
    kubernetes: Annotated[str, typer.Option(help="A version, v1.x.y.")] = "",
    coredns: Annotated[str, typer.Option(help="A version, v1.x.y.")] = "",
    kwok: Annotated[str, typer.Option(help="A version, v0.x.y.")] = "",
    kueue: Annotated[str, typer.Option(help="A version, v0.x.y.")] = "",
    helm: Annotated[str, typer.Option(help="A version, v3.x.y.")] = "",
) -> None:
    """Write go.mod and go.sum for other versions."""
    wanted = {
        go_modules.KUBERNETES: kubernetes,
        go_modules.COREDNS: coredns,
        go_modules.KWOK: kwok,
        go_modules.KUEUE: kueue,
        go_modules.HELM: helm,
    }
    for module, version in wanted.items():
        if version:
            go_modules.pin(module, version)


def main() -> None:
    """Run a command. Our errors are messages."""
    try:
        app()
    except HarnessError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
