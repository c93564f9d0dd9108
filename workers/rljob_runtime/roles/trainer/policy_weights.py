"""The weights that a trainer has in memory: loaded from the weight store, written as a new version, deleted later."""

from __future__ import annotations

from dataclasses import replace

from rljob_core.errors import JobFailed, WeightsRejected
from rljob_core.failures import Reason
from rljob_core.messages import MicroBatch, Resume
from rljob_core.ports import TrainerBackend, WeightManifest, WeightStore
from rljob_core.records import StepCommitted
from rljob_core.spec import RLJobSpec
from rljob_core.weight_retention import deletable
from rljob_runtime.roles.recovery_sources import intact_versions_before
from rljob_runtime.roles.trainer.poison import finite_tensors

RECOVERY_VERSIONS = 2
"""Versions that are kept besides those within the bound: an engine may be reading the version before the newest."""


class PolicyWeights:
    """The policy's versions, as one trainer reads and writes them. Its methods block.

    Args:
        spec: of the job.
        weights: the job's weight store.
        backend: holds the weights.

    Attributes:
        version: of the weights in memory; None before the first `load`.
        manifest: digest of their manifest.
    """

    def __init__(self, spec: RLJobSpec, weights: WeightStore, backend: TrainerBackend) -> None:
        self._spec = spec
        self._weights = weights
        self._backend = backend
        self._stored: list[WeightManifest] = []  # versions whose tensors are in the weight store
        self._swept = False
        self.version: int | None = None
        self.manifest = ""

    def load(self, work: Resume) -> None:
        """Load the weights of a committed version into the backend.

        Raises:
            JobFailed: they do not verify; the message says to which versions the user can return.
        """
        try:
            manifest = None if work.key is None else self._weights.manifest(work.key)
            self._backend.load(None if manifest is None else self._weights.read(manifest))
        except WeightsRejected as error:
            intact = [0, *intact_versions_before(self._weights, work.manifest, work.version)]
            raise JobFailed(
                f"{error}. Versions that do verify: {', '.join(map(str, intact))} (0 is the initial model). Going back "
                f"gives up what came after: rljob run … --resume --from-version {intact[-1]}",
                Reason.WEIGHTS_DAMAGED,
                from_version=intact[-1],
            ) from error
        self.version, self.manifest = work.version, work.manifest
        self._stored = self._weights.manifests()

    def write(self, work: MicroBatch, micro_batches: tuple[tuple[str, ...], ...]) -> StepCommitted:
        """Write the weights after a step as a new version; its tensors and manifest are durable on return.

        Args:
            work: the step's last micro-batch.
            micro_batches: the trajectories that the step was trained on, per micro-batch.

        Returns the commit to propose.

        Raises:
            NotFinite: a weight is not finite; there is no manifest of this version.
        """
        version = work.step + 1
        proposal = StepCommitted(
            version=version,
            parent=self.manifest,
            attempt=work.attempt,
            epoch=work.epoch,
            micro_batches=micro_batches,
            max_staleness=work.max_staleness,
            random_state=self._backend.random_state(),
            manifest="",
            key=f"v{version:08d}-a{work.attempt}-e{work.epoch}-r{work.resume}",
            ledger=work.ledger,
        )
        manifest = self._weights.write(
            version=version,
            parent=self.manifest,
            proposal=proposal,
            key=proposal.key,
            tensors=finite_tensors(self._backend.tensors()),
        )
        self._stored.append(manifest)
        self.version, self.manifest = version, manifest.digest
        return replace(proposal, manifest=manifest.digest)

    def prune(self, committed: int) -> None:
        """Delete tensors that neither the bound, nor a recovery, nor a later delta needs; manifests are kept.

        Args:
            committed: the newest committed version.
        """
        kept = self._spec.pipeline.bound + RECOVERY_VERSIONS + (self._spec.weights.keep_versions or 0)
        if (
            not self._swept
        ):  # an earlier attempt can no longer be writing: this attempt has committed a version
            self._weights.sweep(committed)
            self._swept = True
        for key in deletable(self._stored, needed_from=committed - kept):
            self._weights.delete(key)
            self._stored = [manifest for manifest in self._stored if manifest.key != key]
