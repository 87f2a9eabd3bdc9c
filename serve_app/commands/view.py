"""`destrier view`: create, refresh and watch materialized views of a running server.

`create` runs the file that the code is in, on this machine, to read its decorators; the server gets
its source text.
"""

import argparse
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import DestrierError, InvalidInput
from serve_app.commands import failure

if TYPE_CHECKING:
    from udtf.authoring import ViewCode
    from udtf.client import ViewClient
    from udtf.view_jobs import JobStatus, RefreshJob

URL_VARIABLE = "DESTRIER_URL"
KEY_VARIABLE = "DESTRIER_API_KEY"
URL_DEFAULT = "http://127.0.0.1:2333"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_REFRESH_OPTIONS = (
    "full",
    "source_version",
    "concurrency",
    "processes_per_worker",
    "source_task_size",
    "max_rows_per_fragment",
    "output_limit",
    "cascade",
    "failed_only",
)
_CODE_OPTIONS = ("num_cpus", "num_gpus", "memory")
_INTERRUPTED = 130


def add_parser(subparsers: Any) -> None:
    """Add `view` and its actions."""
    parser = subparsers.add_parser("view", help="create, refresh and watch materialized views")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action in (
        _create_parser(actions),
        _refresh_parser(actions),
        _status_parser(actions),
        _job_parser(actions, "cancel", "ask a job to end; its view keeps the rows it has"),
        _job_parser(actions, "errors", "show the items of a job that failed or were skipped"),
        _list_parser(actions),
        _drop_parser(actions),
    ):
        action.add_argument("--url", help=f"the server ({URL_VARIABLE}; {URL_DEFAULT})")
        action.add_argument(
            "--api-key", help=f"who asks; {KEY_VARIABLE} keeps it out of lists of processes"
        )
        action.add_argument("--database", help="database of the view")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do the action; see the package for exit codes."""
    # HTTP and Arrow take half a second to import, which the other commands do not need.
    from udtf.client import ViewClient

    url = args.url or os.environ.get(URL_VARIABLE) or URL_DEFAULT
    key = args.api_key or os.environ.get(KEY_VARIABLE) or None
    try:
        with ViewClient(url, api_key=key, database=args.database) as views:
            act: Callable[[ViewClient, argparse.Namespace], None] = args.act
            act(views, args)
    except DestrierError as error:
        return failure.report(error)
    except KeyboardInterrupt:
        print("destrier: stopped watching; what was started goes on", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _create_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser("create", help="create a view")
    parser.add_argument("name", metavar="VIEW", help="namespaces joined by '$'")
    parser.add_argument(
        "code",
        nargs="?",
        metavar="FILE.py:NAME",
        help="a decorated function or class; without it a query view",
    )
    parser.add_argument(
        "--source", required=True, help="a table, 'SELECT ... FROM table', or a query envelope"
    )
    parser.add_argument("--inherit", metavar="COLUMN,...", help="source columns of a chunker view")
    parser.add_argument("--init", metavar="JSON", help="arguments of the class, as an object")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="environment of the code")
    parser.add_argument("--num-cpus", type=float, help="CPUs of one worker")
    parser.add_argument("--num-gpus", type=float, help="GPUs of one worker")
    parser.add_argument("--memory", type=parse_size, help="memory of one worker, for example 4GiB")
    parser.add_argument("--auto-refresh", action="store_true", help="refresh it by itself")
    parser.add_argument("--with-data", action="store_true", help="start its first refresh")
    _add_refresh_options(parser)
    parser.set_defaults(act=_create)
    return parser


def _refresh_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser("refresh", help="bring a view up to date")
    parser.add_argument("name", metavar="VIEW")
    parser.add_argument("--full", action="store_true", help="compute every row anew")
    parser.add_argument("--cascade", action="store_true", help="first the views that it reads")
    parser.add_argument("--failed-only", action="store_true", help="what failed the last time")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="for this refresh only")
    _add_refresh_options(parser)
    parser.set_defaults(act=_refresh)
    return parser


def _add_refresh_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="show progress until it is over")
    parser.add_argument("--source-version", type=int, help="version of the source to show")
    parser.add_argument("--concurrency", type=int, help="workers")
    parser.add_argument("--processes-per-worker", type=int, help="code processes of each worker")
    parser.add_argument("--source-task-size", type=int, help="source rows of one item (chunkers)")
    parser.add_argument("--max-rows-per-fragment", type=int)
    parser.add_argument("--output-limit", type=int, help="rows at most (chunkers)")


def _status_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser("status", help="show a view or a job")
    about = parser.add_mutually_exclusive_group(required=True)
    about.add_argument("name", nargs="?", metavar="VIEW")
    about.add_argument("--job", metavar="JOB", help="a job instead of a view")
    parser.add_argument("--watch", action="store_true", help="show progress until the job is over")
    parser.set_defaults(act=_status)
    return parser


def _job_parser(actions: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_text)
    parser.add_argument("job", metavar="JOB", help="the id that create and refresh print")
    parser.set_defaults(act=_cancel if name == "cancel" else _errors)
    return parser


def _list_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser("list", help="show the names of views")
    parser.add_argument("namespace", nargs="?", default="", help="the root without it")
    parser.set_defaults(
        act=lambda views, args: print("".join(_lines(views.list(args.namespace))), end="")
    )
    return parser


def _drop_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser("drop", help="drop a view and its jobs")
    parser.add_argument("name", metavar="VIEW")
    parser.set_defaults(act=lambda views, args: views.drop(args.name))
    return parser


def _create(views: "ViewClient", args: argparse.Namespace) -> None:
    code = None if args.code is None else _code(args)
    for option in (*_CODE_OPTIONS, "manifest", "init"):
        if code is None and getattr(args, option) is not None:
            raise InvalidInput(f"--{option.replace('_', '-')} is for views with code")
    options = _refresh_options(args)
    has_data = args.with_data or args.watch
    if options and not has_data:
        raise InvalidInput(f"{', '.join(options)}: for a refresh; add --with-data or --watch")
    job = views.create(
        args.name,
        code,
        source=args.source,
        # The request that creates a view has no place for options of its refresh.
        with_data=has_data and not options,
        auto_refresh=args.auto_refresh,
        inherit=args.inherit.split(",") if args.inherit else None,
    )
    print(f"View {args.name} is created.", file=sys.stderr)
    if has_data:
        _follow(job or views.refresh(args.name, **options), args)


def _refresh(views: "ViewClient", args: argparse.Namespace) -> None:
    options = _refresh_options(args)
    _follow(views.refresh(args.name, **options, manifest=args.manifest), args)


def _follow(job: "RefreshJob", args: argparse.Namespace) -> None:
    """Print the id alone on the standard output, for scripts; with --watch wait for the end."""
    print(job.job_id, flush=True)
    if args.watch:
        _print_result(job.wait(progress=True))


def _status(views: "ViewClient", args: argparse.Namespace) -> None:
    if args.job is None:
        if args.watch:
            raise InvalidInput("--watch is for a job; name it with --job")
        print(json.dumps(views.describe(args.name), indent=2))
        return
    job = views.job(args.job)
    if args.watch:
        _print_result(job.wait(progress=True))
    else:
        print(json.dumps(job.status().answer, indent=2))


def _cancel(views: "ViewClient", args: argparse.Namespace) -> None:
    views.job(args.job).cancel()


def _errors(views: "ViewClient", args: argparse.Namespace) -> None:
    errors = views.job(args.job).errors()
    if not errors:
        print("No item failed or was skipped.", file=sys.stderr)
    print("".join(_lines(map(_error_text, errors))), end="")


def _error_text(item: Mapping[str, Any]) -> str:
    label = item.get("label") or item.get("item")
    tries = item.get("attempts", 1)
    text = f"{label}: {item.get('state')} after {tries} tries:"
    text += f" {item.get('type', '')}: {item.get('message', '')}"
    traceback = str(item.get("traceback") or "").rstrip()
    return f"{text}\n{traceback}" if traceback else text


def _print_result(status: "JobStatus") -> None:
    result = status.result or {}
    skipped = result.get("items_skipped")
    text = (
        f"{result.get('mode')}: {result.get('rows_written')} rows written, source version"
        f" {result.get('source_version')}, view version {result.get('version')}"
    )
    if skipped:
        text += f"; {skipped} items skipped, see destrier view errors {status.job_id}"
    if result.get("reason"):
        text += f" ({result['reason']})"
    print(text, file=sys.stderr)


def _refresh_options(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name, None) for name in _REFRESH_OPTIONS}
    return {name: value for name, value in given.items() if value not in (None, False)}


def _code(args: argparse.Namespace) -> "ViewCode[Any, Any]":
    """The decorated object, with what the command line says in place of what its author said."""
    code = load_code(args.code)
    changes = {name: getattr(args, name) for name in _CODE_OPTIONS}
    if args.manifest is not None:
        changes["manifest"] = _read(args.manifest)
    code = code.with_options(**{name: v for name, v in changes.items() if v is not None})
    if args.init is None:
        return code
    try:
        arguments = json.loads(args.init)
    except ValueError as error:
        raise InvalidInput(f"--init is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidInput('--init must be a JSON object, for example {"threshold": 3}')
    return code.with_init(**arguments)


def load_code(text: str) -> "ViewCode[Any, Any]":
    """The decorated object that `FILE.py:NAME` names; the file is run.

    Raises:
        InvalidInput: no such file, it cannot be run, or the name is nothing that was decorated.
    """
    from udtf.authoring import ViewCode

    file, colon, name = text.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        raise InvalidInput(f"{text!r} is not FILE.py:NAME, for example topics.py:passages")
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    module_name = path.stem if path.stem not in sys.modules else f"view_code_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where annotations and the packing of its code look for it.
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except DestrierError:
        raise
    except Exception as error:
        raise InvalidInput(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    code = getattr(module, name, None)
    if not isinstance(code, ViewCode):
        found = [key for key, value in vars(module).items() if isinstance(value, ViewCode)]
        known = f"; it has {', '.join(found)}" if found else ""
        raise InvalidInput(f"{path} has no {name!r} with the decorator udtf or chunker{known}")
    return code


def parse_size(text: str) -> int:
    """Bytes, of a number with or without a unit: `4GiB`, `512M`, `1000000`.

    Raises:
        ArgumentTypeError: it is not that.
    """
    parts = _SIZE.fullmatch(text.strip())
    if parts is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write bytes, or for example 512MiB or 4GiB")
    return int(float(parts[1]) * _UNITS[parts[2].upper()])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _lines(texts: Any) -> list[str]:
    return [f"{text}\n" for text in texts]
