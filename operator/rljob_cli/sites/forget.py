"""What `rljob site forget` does: the Site gets an annotation with the last beat that was heard."""

from __future__ import annotations

from rljob_core.errors import SpecError
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Ref
from rljob_operator.names import FORGET_SITE, NEVER_HEARD


async def forget_site(name: str) -> str:
    """Say that a site is lost; returns what was done, in words.

    Raises:
        SpecError: there is no such Site, or it is connected.
        ApiError: the API server refuses.
    """
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
