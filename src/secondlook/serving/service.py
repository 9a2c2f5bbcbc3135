"""`Service`: one instance of the service, with its database, classifier and threads."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from secondlook.extension import (
    Execution,
    OnnxFile,
    Plan,
    Policy,
    RowOptions,
    SecondLookError,
    ServingError,
    compile_policy,
    load_policy,
    shared_lock,
)
from secondlook.serving.access import Access, check_binding
from secondlook.serving.database import Database, StorageError, open_database
from secondlook.serving.decision_worker import DecisionWorker, LiveDeployment
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.service_metrics import ServiceMetrics
from secondlook.serving.store import DecisionStore, Deployment, ReviewStore
from secondlook.serving.watcher import Watcher

if TYPE_CHECKING:
    from secondlook.serving.labeling import LabelingQueue


class Service:
    """One instance: its database, the policy in force with its classifier, and its threads."""

    labeling: "LabelingQueue | None" = None
    """The labeling queue, if images are labeled for a first policy."""

    def __init__(self, options: ServiceOptions, database: Database, plan: Plan) -> None:
        self.options, self.database = options, database
        self.decisions = DecisionStore(database)
        self.reviews = ReviewStore(database, options.lease_seconds)
        self.tokens = options.open_tokens()
        self.access = Access(options, self.tokens, database)
        self.metrics = ServiceMetrics()
        self._resolved, self._execution = plan.resolved, plan.execution
        self._audit_seed = database.audit_seed
        self._deploy_lock = Lock()
        self.live = self._make_live(self._choose_deployment(plan.policy))
        self.worker = DecisionWorker(lambda: self.live, self.decisions, options, self.metrics)
        self.watcher = Watcher(self)

    def start(self) -> None:
        """Warm up, and start the threads."""
        self.worker.start()
        self.watcher.start()

    def stop(self) -> None:
        """Finish pending images, and close the database."""
        self.worker.stop()
        self.watcher.stop()
        self.database.close()

    def deploy(self, policy: Policy) -> Deployment:
        """Put a policy of the same classifier in force; pending images keep the previous policy."""
        try:
            policy.check(self._resolved.classifier)
            with self._deploy_lock:
                plan = Plan(policy, self._resolved, self._execution)
                deployment = self._deploy(policy)
                self.live = self._make_live(deployment, plan)
        except (RequestError, StorageError):
            raise
        except SecondLookError as error:
            raise RequestError(422, "policy", f"the policy cannot be used: {error}") from None
        return deployment

    def refresh(self) -> None:
        """Switch to the latest policy if another instance has deployed one."""
        with self._deploy_lock:
            latest = self.decisions.latest_deployment()
            if latest is not None and latest.number != self.live.deployment.number:
                latest.policy.check(self._resolved.classifier)
                self.live = self._make_live(latest)

    def _choose_deployment(self, policy: Policy) -> Deployment:
        """Deploy the policy of the file, unless this service has replaced it with a newer one."""
        latest = self.decisions.latest_deployment()
        if latest is not None and latest.checksum != policy.checksum and self.decisions.find_audits(policy):
            latest.policy.check(self._resolved.classifier)
            policy = latest.policy
        return self._deploy(policy)

    def _deploy(self, policy: Policy) -> Deployment:
        options = self.options
        shares = {"reviewer_error": options.reviewer_error, "double_review": options.double_review}
        return self.decisions.deploy(policy, options.audit, **shares)

    def _make_live(self, deployment: Deployment, plan: Plan | None = None) -> LiveDeployment:
        plan = plan or Plan(deployment.policy, self._resolved, self._execution)
        rows = RowOptions(plan.policy, level=self.options.level, audit=deployment.audit)
        return LiveDeployment(deployment, plan, rows, self._audit_seed)


async def _find_service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


CurrentService = Annotated[Service, Depends(_find_service)]


@contextmanager
def open_service(
    policy: str | Path, options: ServiceOptions, *, classifier: object = None, device: str = "auto"
) -> Iterator[Service]:
    """Load a policy with its classifier, start the service and yield it; see `serve`."""
    check_binding(options, options.open_tokens())
    if OnnxFile.has_suffix(policy):
        raise ServingError(f"{str(policy)!r} is not a policy file; serve the policy it was exported from.")
    loaded = load_policy(policy, classifier=classifier, execution=Execution(device=device))
    compiled = compile_policy(loaded)
    assert isinstance(compiled, Plan), "exported files were refused above"
    with start_service(Plan(loaded, compiled.resolved.split_batches(), compiled.execution), options) as service:
        yield service


@contextmanager
def start_service(plan: Plan, options: ServiceOptions) -> Iterator[Service]:
    """Open the database, start the service of a policy and yield it."""
    try:
        options.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        where = str(options.data_dir)
        raise ServingError(f"cannot create the data folder {where!r}: {error.strerror}; choose another.") from None
    with shared_lock(options.data_dir / "service.lock") as was_alone:
        if not was_alone and sys.platform != "win32":  # Windows never reports it
            fault = f"another service is using the data folder {str(options.data_dir)!r}"
            raise ServingError(fault, repair="choose another: instances can share a PostgreSQL database, but no folder")
        service = Service(options, open_database(options.data_dir, options.database), plan)
        service.start()
        try:
            yield service
        finally:
            service.stop()
