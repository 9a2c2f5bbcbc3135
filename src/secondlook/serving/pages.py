"""Pages as HTML: templates with the header of the service, their style sheets and scripts, and the page of the API."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import LOCAL_NAME, Permission, Principal

if TYPE_CHECKING:
    from secondlook.serving.service import Service

LINKS: tuple[tuple[str, str, Permission], ...] = (
    ("/", "Dashboard", "watch"),
    ("/review", "Review", "review"),
    ("/docs", "API", "watch"),
)
"""Address, text and required permission of the pages in the header."""
PAGES = frozenset(address for address, _, _ in LINKS)
"""Addresses of all pages but the login."""
SESSION_COOKIE = "secondlook_session"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ONE_YEAR = 365 * 86400


def make_pages_router(service: "Service") -> APIRouter:
    """Return the routes of the API page, and of style sheets and scripts, which everyone may read."""
    router = APIRouter(include_in_schema=False)

    @router.get("/static/{name}")
    def send_static(name: str, v: str = "") -> Response:
        content, version = _load_static(name)
        # Pages ask for it with its version, so that a browser keeps it until it changes.
        caching = f"public, max-age={ONE_YEAR}, immutable" if v == version else "no-cache"
        return Response(content, media_type=MEDIA_TYPES[PurePath(name).suffix], headers={"Cache-Control": caching})

    @router.get("/docs")
    def show_api(
        request: Request, principal: Annotated[Principal, Depends(service.access.require("watch"))]
    ) -> HTMLResponse:
        return render_page(
            "api.html",
            principal,
            request=request,
            sections=list_operations(request.app.openapi()),
            url=f"{request.url.scheme}://{request.url.netloc}",
            is_open=service.access.is_open,
        )

    return router


def render_page(
    template: str, principal: Principal | None, *, request: Request, status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a template of the folder `pages` as a response; all text is escaped."""
    page = _make_environment().get_template(template)
    html = page.render(
        principal=principal,
        csrf=None if principal is None else principal.csrf,
        can_log_out=principal is not None and principal.csrf is not None and principal.name != LOCAL_NAME,
        links=LINKS,
        path=request.url.path,
        **values,
    )
    response = HTMLResponse(html, status_code=status)
    set_session_cookie(request, response)
    return response


def set_session_cookie(request: Request, response: Response) -> None:
    """Add the cookie of the session that began with this request, if one did (`request.state.session_cookie`).

    Scripts cannot read it, other sites cannot make a browser send it, and over TLS it never travels in the clear.
    """
    cookie = getattr(request.state, "session_cookie", None)
    if cookie is not None:
        secure = request.url.scheme == "https"
        response.set_cookie(SESSION_COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path="/")


def list_operations(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the operations of an OpenAPI description as the template shows them, by tag.

    Parameters and fields of the response are (name, type, description), failures (status, description).
    """
    schemas = document.get("components", {}).get("schemas", {})
    sections: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation.get("responses", {})
            described = {
                "method": method.upper(),
                "path": path,
                "summary": operation.get("summary", ""),
                "text": operation.get("description", ""),
                "bodies": list(operation.get("requestBody", {}).get("content", {})),
                "parameters": [_describe_parameter(each) for each in operation.get("parameters", [])],
                "fields": [
                    (name, _describe_type(field), field.get("description", ""))
                    for name, field in _find_properties(responses.get("200", {}), schemas).items()
                ],
                "failures": [
                    (status, response["description"])
                    for status, response in sorted(responses.items())
                    if "`" in response["description"]  # FastAPI adds one that says nothing
                ],
            }
            sections.setdefault(operation.get("tags", ["other"])[-1], []).append(described)
    return sections


def mark_code(text: str) -> Markup:
    """Return a text as HTML, escaped, with what is between backticks as code."""
    parts = [
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _describe_parameter(parameter: Mapping[str, Any]) -> tuple[str, str, str]:
    schema = parameter.get("schema", {})
    need = ", required" if parameter.get("required") else ""
    text = parameter.get("description") or schema.get("description") or ""
    return parameter["name"], f"{_describe_type(schema)}, {parameter['in']}{need}", text


def _find_properties(response: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the JSON object of a response; of alternatives, those of the first."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    schema = schema.get("anyOf", [schema])[0]
    properties: dict[str, Any] = schemas.get(schema.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
    return properties


def _describe_type(schema: Mapping[str, Any]) -> str:
    """Return a type of an OpenAPI description in a few words, such as 'number or null'."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_describe_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        inner = _describe_type(schema["items"]) if "items" in schema else "value"
        return f"list of {inner}" if "prefixItems" not in schema else f"list of {len(schema['prefixItems'])}"
    return str(schema.get("format") if schema.get("format") == "date-time" else schema.get("type", "any"))


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("secondlook.serving", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = lambda name: f"/static/{name}?v={_load_static(name)[1]}"
    environment.filters["code"] = mark_code
    return environment


@cache
def _list_static() -> dict[str, Traversable]:
    """Return the files that can be loaded, by name: those of the service, and those that reports have, too."""
    folders = (files("secondlook.report") / "templates", files("secondlook.serving") / "pages" / "static")
    return {one.name: one for folder in folders for one in folder.iterdir() if PurePath(one.name).suffix in MEDIA_TYPES}


def _load_static(name: str) -> tuple[bytes, str]:
    """Return the content of a style sheet or script, and its version."""
    file = _list_static().get(name)
    if file is None:
        raise RequestError(404, "not_found", f"there is no file {name!r}.")
    content = file.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]
