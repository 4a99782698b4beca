"""What keeps a service of ``tracking`` from following a run, found before the run starts. No server is contacted."""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
import re
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from urllib.parse import urlsplit

from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.checks import closest
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.tracking import TrackingSettings, WandbMode

_SERVERS = ("http", "https", "databricks", "databricks-uc", "uc")
# MLflow's databases, each with the package that SQLAlchemy uses unless the URI names another one.
_DATABASES = {"sqlite": "sqlite3", "postgresql": "psycopg2", "mysql": "MySQLdb", "mssql": "pyodbc"}
_WITHOUT_FILE_STORE = (3, 13)  # the release of MLflow that began to refuse it
_SQLITE_HEAD = b"SQLite format 3\0"
_ABSOLUTE = re.compile(r"[A-Za-z]:[\\/]")


def check_tracking(settings: RunSettings) -> None:
    """Check that the configured services can track a run. Contacts no server.

    Raises:
        SettingsError: has a line for each service that cannot.
    """
    tracking = settings.tracking
    if tracking is None or settings.checkpoint_settings.inference:
        return
    faults = [fault for name in ("wandb", "mlflow", "trackio") if (fault := _fault(name, tracking)) is not None]
    if faults:
        raise SettingsError("\n".join(faults))


def _fault(name: str, tracking: TrackingSettings) -> str | None:
    """What keeps a service from tracking a run; None if nothing does, or it is not configured."""
    if getattr(tracking, name) is None:
        return None
    if not _is_installed(name):
        return (
            f"tracking.{name} needs the package {name}, which is not installed. Install it with: pip install "
            f"'trajtrainer[{name}]'."
        )
    if name == "wandb":
        wandb = tracking.wandb
        if wandb is not None and wandb.mode is WandbMode.ONLINE and not _is_logged_in_at_wandb():
            return (
                "tracking.wandb: you are not logged in to Weights & Biases. Run 'wandb login', set WANDB_API_KEY, or "
                "use mode: offline."
            )
    if name == "mlflow":
        given = tracking.mlflow.tracking_uri if tracking.mlflow is not None else None
        uri = given or os.environ.get("MLFLOW_TRACKING_URI")
        problem = None if uri is None else _problem_of_uri(uri)
        if problem is not None:
            shown = re.sub(r"://[^/@]*@", "://...@", str(uri))  # without a password
            where = "tracking.mlflow.tracking_uri" if given else "MLFLOW_TRACKING_URI (tracking.mlflow)"
            return f"{where}: {shown!r} {problem}"
    if name == "trackio":
        trackio = tracking.trackio
        if trackio is not None and trackio.space_id is not None and not _has_hub_token():
            return (
                "tracking.trackio.space_id: a Space needs a token for the Hugging Face Hub. Run 'hf auth login', set "
                "HF_TOKEN, or remove space_id to keep everything on this machine."
            )
    return None


def _problem_of_uri(uri: str) -> str | None:
    """Why MLflow cannot use a tracking URI; None if no reason is found."""
    scheme = uri.partition(":")[0] if ":" in uri and not _ABSOLUTE.match(uri) else ""
    if uri == "databricks":
        return None
    if scheme in ("", "file"):
        if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1"):
            return None
        try:
            release = tuple(int(part) for part in re.findall(r"\d+", version("mlflow"))[:2])
        except PackageNotFoundError:  # Another package, such as mlflow-skinny, provides the module.
            return None
        if release < _WITHOUT_FILE_STORE:
            return None
        return (
            "is a folder of files, which MLflow does not support since release 3.13. Use 'sqlite:///mlflow.db' or the "
            "address of a server, convert an older folder with 'mlflow migrate-filestore', or set "
            "MLFLOW_ALLOW_FILE_STORE=true."
        )
    database, _, driver = scheme.partition("+")
    if database in _DATABASES:
        package = driver or _DATABASES[database]
        if database == "sqlite":
            return _problem_of_sqlite(uri)
        if not _is_installed(package):
            return f"needs the package {package}, which is not installed. Install it, or name another driver."
        return None
    plugins = {entry.name for entry in entry_points(group="mlflow.tracking_store")}
    if scheme in _SERVERS or scheme in plugins:
        return None
    known = sorted({*_SERVERS, *_DATABASES, *plugins})
    return f"has the scheme {scheme!r}, which MLflow does not know{closest(scheme, known)} Known: {', '.join(known)}."


def _problem_of_sqlite(uri: str) -> str | None:
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///(.+?)(?:\?.*)?", uri)
    if match is None:
        return "does not name a file; expected sqlite:///FILE, or with an absolute path sqlite:////FOLDER/FILE."
    path = Path(match[1])
    try:
        if path.is_dir():
            return "is a folder; expected a file."
        if not path.parent.is_dir():
            return f"cannot be opened: the folder {path.parent} does not exist. Create it."
        if not path.exists():
            return None if os.access(path.parent, os.W_OK) else f"cannot be created: {path.parent} is not writable."
        if not os.access(path, os.W_OK):
            return "cannot be written: you do not have permission."
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEAD))
    except OSError as error:
        return f"cannot be opened: {error.strerror or error}."
    return None if head in (b"", _SQLITE_HEAD) else "is not an SQLite database. Choose another file."


def _is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of its name does not count: W&B creates one in the working folder."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _is_logged_in_at_wandb() -> bool:
    """Whether W&B will find a key. Otherwise it would ask for one during training."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    files = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    for file in filter(None, files):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if server in netrc.netrc(Path(file).expanduser()).hosts:
                return True
    return False


def _has_hub_token() -> bool:
    """Whether the package for the Hub, which Trackio requires, finds a token."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return False
    return get_token() is not None
