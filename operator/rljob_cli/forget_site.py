"""`rljob forget-site`: says that a site is lost, so that its work goes to others at once."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from rljob_cli.exits import EXIT_FAILED, exit_codes
from rljob_core.errors import SpecError


def forget_site(
    name: Annotated[str, typer.Argument(help="Name of the Site.", show_default=False)],
) -> None:
    """Say that a site which is away is lost for good; run it with a kubeconfig of the hub.

    What its engines were generating for the current steps and later ones goes to others within two minutes, instead of
    after its grace, and its engines count for nothing. The word holds until the site is heard again. It is an
    annotation of the Site: whoever may change Sites may say it. A site that is connected is not forgotten.

    **Examples**

        rljob forget-site east

        kubectl rljob forget-site east
    """
    with exit_codes():
        try:
            from rljob_operator.cluster.kube.errors import ApiError
        except ImportError as error:
            package = (error.name or "kubernetes").partition(".")[0]
            raise SpecError(
                "rljob forget-site", f"needs {package}, which is not installed: install rljob[operator]"
            ) from error
        try:
            typer.echo(asyncio.run(_forget(name)))
        except ApiError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from error


async def _forget(name: str) -> str:
    from rljob_operator.cluster.kube.api import KubeApi
    from rljob_operator.cluster.kube.login import KubeLogin
    from rljob_operator.cluster.port import Ref
    from rljob_operator.names import FORGET_SITE, NEVER_HEARD

    api = KubeApi(KubeLogin())
    try:
        site = await api.get(Ref("Site", "", name))
        if site is None:
            known = ", ".join(sorted(s["metadata"]["name"] for s in await api.list("Site", "", ""))) or "none"
            raise SpecError(name, f"there is no such Site (Sites: {known}): write the name of one of these")
        status = site.get("status", {})
        if status.get("connected"):
            raise SpecError(
                name,
                "the site is connected: to take its engines away, remove the pools there, or the namespace from the "
                "Site's spec.namespaces",
            )
        heard = status.get("lastBeat")
        # The beat that was heard last, and no time of this machine: a newer beat takes the word back.
        word = {"metadata": {"annotations": {FORGET_SITE: heard or NEVER_HEARD}}}
        await api.patch(Ref("Site", "", name), word)
    finally:
        await api.close()
    since = f"last heard at {heard}" if heard else "never heard"
    return f"Site {name}, {since}, counts as lost until it is heard again"
