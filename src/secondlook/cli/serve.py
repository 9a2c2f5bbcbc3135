"""`serve`: decisions over HTTP, with a review queue and a dashboard; `token`: manage access tokens."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.errors import ServingError
from secondlook.imports import import_extra
from secondlook.tables import format_table

DATA_DIR_HELP = "Data folder of the service."


def serve(
    policy: options.PolicyFile,
    data_dir: Annotated[
        Path, Option(metavar="DIR", help=f"{DATA_DIR_HELP} It has the decisions, the images to review and the tokens.")
    ],
    model: options.PolicyModel = None,
    host: Annotated[
        str, Option(help=f"{options.HOST_HELP} Access from other machines needs tokens (secondlook token).")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help=options.PORT_HELP)] = 8000,
    database: Annotated[
        str | None,
        Option(
            metavar="URL",
            envvar="SECONDLOOK_DATABASE",
            help="PostgreSQL database, shared by several instances: postgresql://USER:PASSWORD@HOST/NAME.",
            show_default="SQLite in --data-dir",
        ),
    ] = None,
    audit: Annotated[
        float | None,
        Option(metavar="FRACTION", help=options.AUDIT_HELP),
    ] = None,
    double_review: Annotated[
        float,
        Option(metavar="FRACTION", help="Fraction of the images to review that two reviewers label independently."),
    ] = 0.0,
    reviewer_error: Annotated[
        float,
        Option(
            help=f"{options.REVIEWER_ERROR_HELP} Above 0, it takes three reviewers to find an audit wrong.",
        ),
    ] = 0.0,
    keep: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="Remove stored images after this time, such as 30d, 12h or 45m, reviewed or not.",
            show_default="never",
        ),
    ] = None,
    no_store: Annotated[bool, Option("--no-store", help="Store no images. Reviewers only see ids and names.")] = False,
    lease: Annotated[str, Option(metavar="DURATION", help="Time that an image stays reserved for a reviewer.")] = "5m",
    webhook: Annotated[
        str | None,
        Option(metavar="URL", envvar="SECONDLOOK_WEBHOOK", help="Send each alarm to this URL, as JSON."),
    ] = None,
    batch_size: Annotated[int, Option(min=1, help=options.BATCH_SIZE_HELP)] = 32,
    max_wait: Annotated[
        float, Option(metavar="MS", min=0, help="Milliseconds to wait for more images, to fill a batch.")
    ] = 2.0,
    max_waiting: Annotated[int, Option(min=1, help="Queue limit. Excess requests get HTTP 429.")] = 512,
    max_body: Annotated[int, Option(metavar="MB", min=1, help="Maximum size of a request.")] = 32,
    max_pixels: Annotated[int, Option(min=1, help=options.MAX_PIXELS_HELP)] = 50_000_000,
    certificate: Annotated[Path | None, Option(metavar="FILE", help="TLS certificate (PEM) for HTTPS.")] = None,
    key: Annotated[Path | None, Option(metavar="FILE", help="Private key of the certificate.")] = None,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: options.Quiet = False,
) -> None:
    """Serve decisions over HTTP, with a page to review rejected images and a dashboard.

    Stop it with Ctrl-C. It needs the extra 'serve'.

    Example: secondlook serve --policy policy.json --data-dir service/
    """
    settings = {
        "data_dir": data_dir,
        "database": database,
        "host": host,
        "port": port,
        "audit": audit,
        "double_review": double_review,
        "reviewer_error": reviewer_error,
        "keep": None if keep is None else parse_duration(keep),
        "store_images": not no_store,
        "lease_seconds": parse_duration(lease),
        "webhook": webhook,
        "batch_size": batch_size,
        "max_wait": max_wait / 1000,
        "max_waiting": max_waiting,
        "max_body_bytes": max_body * 2**20,
        "max_pixels": max_pixels,
    }
    listening = {"ready": _announce, "certificate": certificate, "key": key, "quiet": quiet}
    start(policy, settings, classifier=model or None, device=device, **listening)


def start(policy: Path, settings: Mapping[str, Any], **options: Any) -> None:
    """Serve a policy with the settings of `ServiceOptions` and the options of `serve` until asked to stop."""
    for package in ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "argon2", "python_multipart"):
        import_extra(package, feature="the service", extra="serve")
    from secondlook.serving import ServiceOptions
    from secondlook.serving import serve as run_service

    run_service(policy, ServiceOptions(**settings), **options)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 30d, 12h, 15m or 45s."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ServingError(f"{text!r} is not a duration; expected a number above 0 with s, m, h or d, such as 30d.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _announce(url: str) -> None:
    typer.echo(f"Serving at {url}: dashboard {url}/, review {url}/review, API {url}/openapi.json. Stop with Ctrl-C.")


token = typer.Typer(help="Add, list or remove the access tokens of a service.", no_args_is_help=True)

DataDir = Annotated[Path, Option(metavar="DIR", help=DATA_DIR_HELP)]
Name = Annotated[str, Argument(metavar="NAME", help="Token owner; recorded with each review.")]
RoleOption = Annotated[
    Literal["client", "reviewer", "admin"],
    Option(help="Role: a client sends images, a reviewer reviews them, an admin does both and replaces the policy."),
]


@token.command("add")
def add_token(name: Name, role: RoleOption, data_dir: DataDir, as_json: options.Json = False) -> None:
    """Create an access token. It is shown only once, since only its hash is stored.

    Example: secondlook token add Anna --role reviewer --data-dir service/
    """
    made = _open_tokens(data_dir).add(name, role)
    text = (
        f"Token of {name} ({role}), shown only now:\n\n{made}\n\nPaste it into the login page of the service; programs "
        "send it as the header 'Authorization: Bearer TOKEN', or as Client(url, token=TOKEN)."
    )
    typer.echo(json.dumps({"name": name, "role": role, "token": made}) if as_json else text)


@token.command("list")
def list_tokens(data_dir: DataDir, as_json: options.Json = False) -> None:
    """List access tokens.

    Example: secondlook token list --data-dir service/
    """
    columns = ("name", "role", "created")
    rows = [
        (record.name, record.role, datetime.fromtimestamp(record.created_at, UTC).isoformat(timespec="seconds"))
        for record in _open_tokens(data_dir).read().values()
    ]
    if as_json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    elif rows:
        typer.echo(format_table([columns, *rows]))
    else:
        typer.echo(f"No tokens in {data_dir}: its service accepts connections from this machine only, without login.")


@token.command("remove")
def remove_token(name: Name, data_dir: DataDir) -> None:
    """Remove an access token. The service rejects it at once, and ends its logins.

    Example: secondlook token remove Anna --data-dir service/
    """
    _open_tokens(data_dir).remove(name)
    typer.echo(f"Removed the token of {name}. A running service rejects it from now on.")


def _open_tokens(data_dir: Path) -> Any:
    import_extra("argon2", feature="the service", extra="serve")
    from secondlook.serving import ServiceOptions

    return ServiceOptions(data_dir).open_tokens()
