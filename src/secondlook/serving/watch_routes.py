"""Routes for status, metrics and health checks, and for changing the policy."""

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from pydantic_core import from_json

from secondlook.extension import Policy, compute_checksum, describe_invalid
from secondlook.serving.access import require
from secondlook.serving.alarms import AlarmKind
from secondlook.serving.responses import RequestError
from secondlook.serving.service import CurrentService, Service
from secondlook.serving.tokens import Principal
from secondlook.serving.watcher import describe_deployment

MAX_POLICY_BYTES = 4 * 2**20
"""A policy with 1,000 classes has a few hundred kilobytes."""
POLICY_BODY = {"content": {"application/json": {"schema": {"type": "object", "title": "Policy"}}}, "required": True}
RESPONSES: dict[int | str, dict[str, str]] = {
    400: {"description": "`policy`: the body is not a policy file."},
    413: {"description": "`policy_too_large`: the body is larger than any policy."},
    422: {"description": "`policy`, `policy_changed`: a policy of another classifier, or an edited file."},
}

NO_ALARM: dict[int | str, dict[str, str]] = {404: {"description": "`no_alarm`: no open alarm of this kind."}}

logger = logging.getLogger("secondlook.serving")
router = APIRouter()
may_watch = [Depends(require("watch"))]


@router.get("/v1/status", tags=["watch"], dependencies=may_watch)
async def read_status(
    service: CurrentService,
    timeline: Annotated[bool, Query(description="Whether to include the plots along the stream.")] = True,
) -> dict[str, Any]:
    """Return all numbers of the dashboard."""
    status = dict(service.watcher.status)
    if "policy" not in status:
        reason = status.get("problem") or "the service is starting; try again in a moment."
        raise RequestError(503, "starting", reason, headers={"Retry-After": "2"})
    if status["monitor"] is not None and not timeline:
        status["monitor"] = {name: value for name, value in status["monitor"].items() if name != "timeline"}
    return status


@router.get("/metrics", tags=["watch"], dependencies=may_watch, response_class=Response)
def read_metrics(service: CurrentService) -> Response:
    """Return metrics for Prometheus."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["health"])
async def check_health() -> dict[str, str]:
    """Check liveness."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", tags=["health"], responses={503: {"description": "`not_ready`: see the message."}})
async def check_readiness(service: CurrentService) -> dict[str, str]:
    """Check whether the service can decide about images and store decisions."""
    check_ready(service)
    return {"status": "ready"}


@router.get("/v1/policy", tags=["policy"], dependencies=may_watch)
async def read_policy(service: CurrentService) -> Response:
    """Return the policy in force, as a file."""
    return Response(service.live.deployment.policy.model_dump_json(), media_type="application/json")


@router.post("/v1/policy", tags=["policy"], responses=RESPONSES, openapi_extra={"requestBody": POLICY_BODY})
async def change_policy(
    request: Request, service: CurrentService, principal: Annotated[Principal, Depends(require("administer"))]
) -> dict[str, Any]:
    """Put another policy in force: a file from `secondlook calibrate`, for the loaded classifier.

    It applies from the next batch; earlier decisions keep their policy.
    """
    policy = await run_in_threadpool(parse_policy, await request.body())
    deployment = await run_in_threadpool(service.deploy, policy)
    changes = {"deployment": deployment.number, "policy": policy.checksum, "principal": principal.name}
    logger.info("policy put in force", extra=changes)
    return describe_deployment(deployment)


@router.post("/v1/alarms/{kind}/acknowledge", tags=["watch"], responses=NO_ALARM)
def acknowledge_alarm(
    kind: AlarmKind,
    service: CurrentService,
    principal: Annotated[Principal, Depends(require("review"))],
    note: Annotated[str | None, Body(embed=True, max_length=500, pattern=r"^[^\x00]*$")] = None,
) -> dict[str, Any]:
    """Record that you have seen an alarm. Idempotent: the first acknowledgment is kept."""
    return service.watcher.alarms.acknowledge(kind, principal.name, note)


@router.post("/v1/alarms/shift/reset", tags=["watch"], responses=NO_ALARM)
def reset_shift_alarm(
    service: CurrentService, principal: Annotated[Principal, Depends(require("administer"))]
) -> dict[str, Any]:
    """Start the shift alarm anew from the next image. A broken guarantee stays broken until the policy changes."""
    return service.watcher.alarms.reset_shift(principal.name)


def check_ready(service: Service) -> None:
    """Raise an error if the service is not ready."""
    problem = service.watcher.find_problem()
    if not service.worker.is_alive:
        problem = "the thread that looks at images has stopped; restart the service"
    if problem is not None:
        raise RequestError(503, "not_ready", f"{problem}.", headers={"Retry-After": "5"})


def parse_policy(content: bytes) -> Policy:
    """Parse a policy file; raise an error if it is damaged or edited."""
    if len(content) > MAX_POLICY_BYTES:
        raise RequestError(413, "policy_too_large", f"the body has over {MAX_POLICY_BYTES:,} bytes; send a policy.")
    try:
        document = from_json(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RequestError(400, "policy", "the body is not a JSON object; send a policy file from calibrate.")
    checksum = document.pop("checksum", None)
    if checksum != compute_checksum(document):
        raise RequestError(422, "policy_changed", "the checksum of the policy is wrong or missing; calibrate again.")
    try:
        return Policy.model_validate_json(content)
    except ValidationError as error:
        raise RequestError(400, "policy", f"the body is not a policy, {describe_invalid(error)}.") from None
