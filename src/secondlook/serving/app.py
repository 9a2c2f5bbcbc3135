"""The web application: routes, and what every request goes through."""

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from secondlook import __version__
from secondlook.errors import SecondLookError
from secondlook.serving.access_routes import make_access_router
from secondlook.serving.api_page import make_api_router
from secondlook.serving.decide_routes import make_decide_route, make_decide_router
from secondlook.serving.decision_worker import make_request_error
from secondlook.serving.faults import RequestError, describe_request_error
from secondlook.serving.inference_routes import make_inference_router
from secondlook.serving.request_limits import RequestLimits
from secondlook.serving.request_log import RequestLog
from secondlook.serving.review_routes import make_review_router
from secondlook.serving.security_headers import SecurityHeaders
from secondlook.serving.service_metrics import RequestMetrics
from secondlook.serving.watch_routes import make_watch_router

if TYPE_CHECKING:
    from secondlook.serving.service import Service

SUMMARY = "Decides whether the predictions of an image classifier can be accepted, and gives the others to people."
ROUTERS = (
    make_decide_router,
    make_inference_router,
    make_review_router,
    make_watch_router,
    make_access_router,
    make_api_router,
)
CODES = {404: "not_found", 405: "method"}


def create_app(service: "Service") -> FastAPI:
    """Return the application of a service."""
    # The pages of FastAPI load scripts from other hosts.
    app = FastAPI(title="secondlook", summary=SUMMARY, version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    for make_router in ROUTERS:
        app.include_router(make_router(service))
    app.router.routes.insert(0, make_decide_route(service))
    app.add_exception_handler(SecondLookError, _handle_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    # The last one that is added is the first that a request comes to.
    app.add_middleware(RequestLimits, options=service.options)
    app.add_middleware(RequestMetrics, metrics=service.metrics)
    app.add_middleware(RequestLog)
    app.add_middleware(SecurityHeaders)
    return app


def format_error(request: Request, error: RequestError) -> Response:
    """Return an error as JSON, in the form that the protocol of the route has."""
    content = describe_request_error(request.url.path, error)
    return JSONResponse(content, status_code=error.status, headers=error.headers)


async def _handle_error(request: Request, error: Exception) -> Response:
    return format_error(request, make_request_error(error))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    code = CODES.get(error.status_code, "invalid")
    return format_error(
        request, RequestError(error.status_code, code, end_sentence(error.detail), headers=error.headers)
    )


async def _handle_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for it"
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return format_error(request, RequestError(422, "invalid", end_sentence(f"{where}: {first['msg']}")))


def end_sentence(text: str) -> str:
    """Return a text with one period at its end."""
    return f"{text.rstrip('.')}."
