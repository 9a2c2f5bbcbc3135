"""The page `/docs`: all routes that programs use, from the OpenAPI description, without anything of other hosts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from secondlook.serving.inference_routes import MODEL_NAME
from secondlook.serving.pages import render_page
from secondlook.serving.tokens import Principal

if TYPE_CHECKING:
    from secondlook.serving.service import Service

METHODS = ("get", "post", "put", "delete")


@dataclass(frozen=True)
class ApiField:
    """A parameter, or a field of a JSON object."""

    name: str
    kind: str
    """Its type, and where a parameter is."""
    text: str


@dataclass(frozen=True)
class ApiOperation:
    """A method of a path."""

    method: str
    path: str
    summary: str
    text: str
    parameters: tuple[ApiField, ...]
    bodies: tuple[str, ...]
    """Content types of the body of the request."""
    fields: tuple[ApiField, ...]
    """Fields of the response, if it is an object that is described."""
    failures: tuple[tuple[str, str], ...]
    """Status and description."""


def make_api_router(service: "Service") -> APIRouter:
    """Return the route of the page."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
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
            model=MODEL_NAME,
            mark_code=mark_code,
        )

    return router


def list_operations(document: Mapping[str, Any]) -> dict[str, list[ApiOperation]]:
    """Return the operations of an OpenAPI description, by tag."""
    sections: dict[str, list[ApiOperation]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                tag = methods[method].get("tags", ["other"])[-1]
                sections.setdefault(tag, []).append(_describe_operation(document, method, path, methods[method]))
    return sections


def mark_code(text: str) -> Markup:
    """Return a text as HTML, escaped, with what is between backticks as code."""
    parts = [
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _describe_operation(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> ApiOperation:
    responses = operation.get("responses", {})
    return ApiOperation(
        method.upper(),
        path,
        operation.get("summary", ""),
        operation.get("description", ""),
        tuple(_describe_parameter(each) for each in operation.get("parameters", [])),
        tuple(operation.get("requestBody", {}).get("content", {})),
        tuple(_list_fields(document, responses.get("200", {}))),
        tuple(
            (status, response["description"])
            for status, response in sorted(responses.items())
            if "`" in response["description"]  # FastAPI adds one that says nothing
        ),
    )


def _describe_parameter(parameter: Mapping[str, Any]) -> ApiField:
    schema = parameter.get("schema", {})
    text = parameter.get("description") or schema.get("description") or ""
    need = ", required" if parameter.get("required") else ""
    return ApiField(parameter["name"], f"{_describe_type(schema)}, {parameter['in']}{need}", text)


def _list_fields(document: Mapping[str, Any], response: Mapping[str, Any]) -> Iterator[ApiField]:
    """Yield the fields of the JSON object of a response; of alternatives, those of the first."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    schema = schema.get("anyOf", [schema])[0]
    name = schema.get("$ref", "").rpartition("/")[2]
    properties = document.get("components", {}).get("schemas", {}).get(name, {}).get("properties", {})
    for field, described in properties.items():
        yield ApiField(field, _describe_type(described), described.get("description", ""))


def _describe_type(schema: Mapping[str, Any]) -> str:
    """Return a type in a few words, such as 'number or null'."""
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
