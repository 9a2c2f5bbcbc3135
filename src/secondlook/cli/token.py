"""`secondlook token`: who may use a service, and what for."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from secondlook.cli import options
from secondlook.tables import format_table

if TYPE_CHECKING:
    from secondlook.serving import ServiceOptions

app = typer.Typer(help="Add, list or remove the access tokens of a service.", no_args_is_help=True)

DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Data folder of the service.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is; stands on the labels of a reviewer.")]
RoleOption = Annotated[
    Literal["client", "reviewer", "admin"],
    typer.Option(
        "--role", help="What it is for: client sends images, reviewer reviews them, admin does both and swaps policies."
    ),
]


@app.command("add")
def add_token(name: Name, role: RoleOption, data_dir: DataDir, as_json: options.Json = False) -> None:
    """Make an access token; it is shown only now, since only its hash is kept.

    Example: secondlook token add Anna --role reviewer --data-dir service/
    """
    token = _find_service(data_dir).open_tokens().add(name, role)
    if as_json:
        typer.echo(json.dumps({"name": name, "role": role, "token": token}))
        return
    typer.echo(f"Token of {name} ({role}), shown only now:\n\n{token}\n")
    if role == "client":
        typer.echo("Programs send it as the header 'Authorization: Bearer TOKEN', or as Client(url, token=TOKEN).")
    else:
        typer.echo("Paste it into the login page of the service; programs send it as 'Authorization: Bearer TOKEN'.")


@app.command("list")
def list_tokens(data_dir: DataDir, as_json: options.Json = False) -> None:
    """List whose tokens there are.

    Example: secondlook token list --data-dir service/
    """
    rows = [
        {
            "name": record.name,
            "role": record.role,
            "created": datetime.fromtimestamp(record.created_at, UTC).isoformat(timespec="seconds"),
        }
        for record in _find_service(data_dir).open_tokens().list()
    ]
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
    elif rows:
        typer.echo(format_table([list(rows[0]), *(list(row.values()) for row in rows)]))
    else:
        typer.echo(f"No tokens in {data_dir}: a service with it serves only this machine, and everyone on it.")


@app.command("remove")
def remove_token(name: Name, data_dir: DataDir) -> None:
    """Remove an access token: whoever uses it, or is logged in by it, is refused from then on.

    Example: secondlook token remove Anna --data-dir service/
    """
    _find_service(data_dir).open_tokens().remove(name)
    typer.echo(f"Removed the token of {name}: it is refused from now on, also by a service that is running.")


def _find_service(data_dir: Path) -> "ServiceOptions":
    from secondlook.imports import import_extra

    import_extra("argon2", feature="the service", extra="serve")
    from secondlook.serving import ServiceOptions

    return ServiceOptions(data_dir)
