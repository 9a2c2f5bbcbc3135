"""`secondlook serve`: decisions over HTTP, a review queue in the browser and a dashboard."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from secondlook.cli import options
from secondlook.errors import ServingError

DATABASE_VARIABLE = "SECONDLOOK_DATABASE"
PACKAGES = ("fastapi", "uvicorn", "httptools", "sqlalchemy", "prometheus_client", "argon2", "python_multipart")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def serve(
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="Policy file that calibrate wrote.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Folder for decisions, images to review and tokens.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="SPEC", help="Classifier of the policy, if it is not an ONNX file or now somewhere else."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine, tokens are needed (secondlook token).")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=DATABASE_VARIABLE,
            help="PostgreSQL database for several instances: postgresql://USER:PASSWORD@HOST/NAME.",
            show_default="SQLite in --data-dir",
        ),
    ] = None,
    audit: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION", help="Also have about this fraction of the accepted images reviewed, such as 0.01."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Remove stored images after this time, reviewed or not, such as 30d, 12h or 45m.",
            show_default="never",
        ),
    ] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Store no images: reviewers see ids and file names only.")
    ] = False,
    lease: Annotated[
        str, typer.Option(metavar="DURATION", help="How long an image is reserved for a reviewer who does not respond.")
    ] = "5m",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images that are looked at together.")] = 32,
    max_wait: Annotated[
        float,
        typer.Option("--max-wait", metavar="MS", min=0, help="Milliseconds that an image waits for others."),
    ] = 2.0,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Images that may wait; more get 429 and come back later.")
    ] = 512,
    max_body: Annotated[int, typer.Option("--max-body", metavar="MB", min=1, help="Largest request.")] = 32,
    max_pixels: Annotated[int, typer.Option("--max-pixels", min=1, help="Largest image.")] = 50_000_000,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS certificate as a PEM file, to serve https.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    device: options.Device = "auto",
    config: options.Config = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Log warnings and errors only, not every request.")
    ] = False,
) -> None:
    """Serve decisions over HTTP, with a page to review doubtful images and a dashboard.

    Example: secondlook serve --policy policy.json --data-dir service/
    """
    start(
        policy,
        _announce,
        model=model,
        device=device,
        certificate=certificate,
        key=key,
        quiet=quiet,
        data_dir=data_dir,
        database=database,
        host=host,
        port=port,
        audit=audit,
        keep=None if keep is None else parse_duration(keep),
        store_images=not no_store,
        lease_seconds=parse_duration(lease),
        batch_size=batch_size,
        max_wait=max_wait / 1000,
        max_waiting=max_waiting,
        max_body_bytes=max_body * 2**20,
        max_pixels=max_pixels,
    )


def start(
    policy: Path,
    ready: Callable[[str], None],
    *,
    model: list[str] | None = None,
    device: str = "auto",
    certificate: Path | None = None,
    key: Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> None:
    """Serve a policy with the settings of `ServiceOptions` until the process is asked to stop."""
    from secondlook.imports import import_extra

    for package in PACKAGES:
        import_extra(package, feature="the service", extra="serve")
    from secondlook.serving import ServiceOptions
    from secondlook.serving import serve as run_service

    run_service(
        policy,
        ServiceOptions(**settings),
        classifier=model or None,
        device=device,
        ready=ready,
        certificate=certificate,
        key=key,
        quiet=quiet,
    )


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 30d, 12h, 15m or 45s."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ServingError(f"{text!r} is not a duration; expected a number above 0 with s, m, h or d, such as 30d.")
    return float(found[1]) * SECONDS[found[2]]


def _announce(url: str) -> None:
    typer.echo(f"Serving at {url}: dashboard {url}/, review {url}/review, API {url}/docs. Stop with Ctrl-C.")
