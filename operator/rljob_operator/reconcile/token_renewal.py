"""The NATS tokens of a job whose spec cannot be followed are renewed: the pods that it has continue."""

from __future__ import annotations

from contextlib import suppress

from rljob_operator import names
from rljob_operator.children.nats_credentials import renewed_tokens
from rljob_operator.cluster.port import Cluster, NameTaken, Ref, Refused, Rejected
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Apply, plan
from rljob_operator.nats.credentials import Issuer
from rljob_operator.nats.token_times import TokenTimes
from rljob_operator.reconcile.perform import perform


async def renew_tokens(
    cluster: Cluster, issuer: Issuer | None, observed: Observed, tokens: TokenTimes
) -> None:
    """Renew them, if the job has any that the operator signed."""
    job = observed.job
    ref = Ref("ConfigMap", job.metadata.namespace, names.tokens(job.metadata.name))
    found = observed.children.get(ref)
    if found is None or issuer is None:
        return
    wanted = renewed_tokens(job, found, issuer, expires=tokens.expires)
    due = [action for action in plan(observed, [wanted]) if isinstance(action, Apply)]
    with suppress(Refused, Rejected, NameTaken):  # the job's status says what keeps it from continuing
        await perform(cluster, due, concurrent=False)
