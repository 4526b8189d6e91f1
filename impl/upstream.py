"""vLLM's own module: any published release, an installed vLLM, or a file.

A release is read out of its published wheel by HTTP range requests: one small file of an archive of several
hundred megabytes. It is kept, with its digest, in the user's cache folder (`EVICTCHECK_CACHE` names another
folder), and from then on needs no network. The package index is the one set for pip in `PIP_INDEX_URL`, else
pypi-simple's default. The module is executed alone, with stand-ins for the vLLM names that it imports:
neither torch nor vLLM has to be installed.
"""

import builtins
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
import traceback
import zipfile
import zlib
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from urllib.parse import unquote, urlsplit

import requests
import urllib3
from msgspec import Struct
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedRepoVersionError,
)
from remotezip import RangeNotSupported, RemoteZip, RemoteZipError  # type: ignore[import-untyped]

from impl.errors import TargetError
from impl.folders import cache_root as cache_root
from impl.folders import write_whole

OLDEST = "0.10.2"
"""The first release whose manager is keyed by hash; those before have another manager."""

_MEMBER = "vllm/v1/core/encoder_cache_manager.py"
_MODULE = "encoder_cache_manager.py"
_ROOM = "vllm"
_DIGEST = f"{_MODULE}.sha256"

# Seconds to connect and to wait for an answer: a dead network must show in seconds, not minutes.
_TIMEOUT = (3.0, 8.0)
_RETRY = urllib3.Retry(
    total=2,
    connect=1,
    read=1,
    backoff_factor=0.3,
    status_forcelist=(502, 503, 504),
    raise_on_status=False,
    respect_retry_after_header=False,  # it may ask for hours
)
# The end record of the archive; what lies before it, the directory, is asked for by its exact size.
_TAIL_BYTES = 4096


class EraDifference(Struct, frozen=True):
    """A documented difference of earlier releases, which is not a fault of theirs.

    Attributes:
        property: Name of the property that cannot be asked of those releases.
        until: The last release that differs.
        sentence: What those releases do instead.
    """

    property: str
    until: str
    sentence: str


_IDS_BY_MEMBERSHIP = EraDifference(
    property="cached-ids-exact",
    until="0.22.1",
    sentence="get_cached_input_ids answers every input of the request whose hash is cached by anyone, "
    "not only the inputs that the request holds",
)

ERA_DIFFERENCES: tuple[EraDifference, ...] = (_IDS_BY_MEMBERSHIP,)
"""Every documented difference, once."""


class Upstream(Struct, frozen=True):
    """One of vLLM's managers, loaded.

    Attributes:
        name: The target's name, such as `vllm:0.26.0`.
        manager_class: Its `EncoderCacheManager`; every load makes a class of its own.
        release: The vLLM release it comes from; None for a file, whose release is unknown.
        era: Names of the properties that its era answers differently (see `ERA_DIFFERENCES`).
        path: The file that was loaded.
    """

    name: str
    manager_class: type
    release: str | None
    era: frozenset[str]
    path: Path


def resolve(argument: str) -> Upstream:
    """Load what a target's name says after `vllm:`.

    Args:
        argument: A release ("0.26.0", "v0.26.0", "0.26"), "installed", or the path of a file: anything with a
            path separator or ending in ".py".

    Raises:
        TargetError: It names nothing that can be loaded, or is neither cached nor reachable.
    """
    release: str | None = None
    if argument.endswith(".py") or "/" in argument or os.sep in argument:
        name = f"vllm:{argument}"
        path = Path(os.path.expanduser(argument))
    elif argument == "installed":
        name = "vllm:installed"
        path, release = installed()
    else:
        path = fetch(argument)
        release = path.parent.name
        name = f"vllm:{release}"
    manager_class = load(path, name)
    return Upstream(name, manager_class, release, era_differences(release, manager_class), path)


def published() -> tuple[str, ...]:
    """List the releases on the package index that can be judged, ascending.

    Those are the final releases from `OLDEST` on with a wheel that is not yanked. The index is asked once in
    a process.

    Raises:
        TargetError: The package index cannot be reached or read.
    """
    try:
        return tuple(str(version) for version in _wheels(_index_url()))
    except _IndexTroubleError as trouble:
        raise TargetError(f"The releases of vLLM cannot be listed since {trouble}.") from trouble


def cached_releases() -> tuple[str, ...]:
    """List the releases in the cache folder whose file matches its digest, ascending. Uses no network."""
    return tuple(folder.name for _, folder in sorted(_cached_folders()) if _is_intact(folder))


def fetch(release: str) -> Path:
    """Give the path of a release's module, reading it from the package index if it is not cached.

    A cached file whose digest does not match is read again, never used. Files appear in the cache whole or
    not at all, so that processes may fetch the same release at once.

    Args:
        release: "0.26.0", "v0.26.0" or "0.26", which PEP 440 takes for the same release.

    Returns:
        The file; the name of its folder is the release as the package index spells it.

    Raises:
        TargetError: It is no release from `OLDEST` on, is not published, or is neither cached nor reachable.
    """
    version = _supported_version(release)
    for cached_version, folder in _cached_folders():
        if cached_version == version and _is_intact(folder):
            return folder / _MODULE
    try:
        wheels = _wheels(_index_url())
        if version not in wheels:
            raise TargetError(f"vLLM {version} is not published: {_nearest(version, list(wheels))}.")
        source = _read_member(_index_url(), wheels[version])
    except _IndexTroubleError as trouble:
        raise TargetError(f"vLLM {version} is not cached and {trouble}, or pass a file (vllm:PATH).") from trouble
    spelling = next(str(known) for known in wheels if known == version)
    return _keep(source, cache_root() / _ROOM / spelling)


def installed() -> tuple[Path, str]:
    """Find the module of the vLLM in this interpreter, without importing vLLM.

    Returns:
        The file, and the version of that vLLM.

    Raises:
        TargetError: No vLLM is installed, or it is older than `OLDEST`, or its file or version is missing.
    """
    try:
        spec = importlib.util.find_spec("vllm")
        version = importlib.metadata.version("vllm")
    except (ValueError, importlib.metadata.PackageNotFoundError):
        # ValueError: a bare module called vllm was put into sys.modules by hand.
        spec = None
    if spec is None:
        raise TargetError(
            "No vLLM is installed in this interpreter: name a release (vllm:0.26.0), or pass a file (vllm:PATH)."
        )
    candidates = [Path(location, *_MEMBER.split("/")[1:]) for location in spec.submodule_search_locations or ()]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise TargetError(f"The installed vLLM {version} has no {_MEMBER}: pass a file (vllm:PATH).")
    try:
        is_old = Version(Version(version).base_version) < Version(OLDEST)
    except InvalidVersion:
        raise TargetError(
            f"The installed vLLM calls itself {version!r}, which is no version: pass its file (vllm:{path})."
        ) from None
    if is_old:
        # A checkout without tags builds as 0.1.dev...: its own file can still be judged.
        raise TargetError(
            f"The installed vLLM is {version}, older than {OLDEST}, the first whose manager is keyed by "
            f"hash: if that version is wrong, pass its file (vllm:{path})."
        )
    return path, version


def era_differences(release: str | None, manager_class: type) -> frozenset[str]:
    """Name the properties that a manager answers differently because of its era.

    Args:
        release: Where it comes from, if known. A development version counts as unknown: it may lie on either
            side of a change.
        manager_class: Decides where the release does not: an instance that keeps `request_cached_ids` has
            what came with 0.23.0.

    Raises:
        TargetError: The release is unknown and no instance can be made.
    """
    if release is not None and not Version(release).is_prerelease:
        base = Version(Version(release).base_version)
        return frozenset(era.property for era in ERA_DIFFERENCES if base <= Version(era.until))
    try:
        manager = manager_class(cache_size=1)
    except Exception as error:
        raise TargetError(
            f"{manager_class.__module__}: EncoderCacheManager(cache_size=1) raises {_described(error)}."
        ) from error
    return frozenset() if hasattr(manager, "request_cached_ids") else frozenset({_IDS_BY_MEMBERSHIP.property})


def load(path: Path, name: str) -> type:
    """Execute a vLLM module alone and give its `EncoderCacheManager`.

    Every `vllm` name and every relative import of the file is answered by a stand-in, whatever it is: falsy,
    callable, subscriptable, usable in annotations, as a decorator, as a base class and in a `with`. Nothing
    else is replaced. Each call gives a class of its own.

    Args:
        path: The file.
        name: The target's name; it becomes the class's `__module__`.

    Raises:
        TargetError: The file is absent, unreadable or not Python; it raises, or imports what is not there; or
            it defines no manager keyed by hash.
    """
    code = _compiled(path)
    module = ModuleType(name)
    namespace = vars(module)
    namespace["__file__"] = str(path)
    namespace["__builtins__"] = {**vars(builtins), "__import__": _import}
    try:
        with _registered(module):
            exec(code, namespace)  # noqa: S102 - running the target is the purpose
    except (Exception, SystemExit) as error:
        raise TargetError(_execution_failure(path, error)) from error

    manager = namespace.get("EncoderCacheManager")
    if not isinstance(manager, type):
        if isinstance(namespace.get("EncoderDecoderCacheManager"), type):
            raise TargetError(
                f"{path} defines EncoderDecoderCacheManager but no EncoderCacheManager: only the latter is "
                "judged, since the former has another contract (nothing of it is ever cached)."
            )
        raise TargetError(f"{path} defines no class EncoderCacheManager: pass a file like vLLM's {_MEMBER}.")
    is_old = hasattr(manager, "has_cache") or hasattr(manager, "get_freed_ids")
    if is_old and not hasattr(manager, "check_and_update_cache"):
        raise TargetError(
            f"{path} holds the manager of the releases before {OLDEST}, keyed by request and input: only the "
            "later one, keyed by hash, can be judged."
        )
    return manager


# --- Naming a release -------------------------------------------------------------------------------------


def _supported_version(release: str) -> Version:
    try:
        version = Version(release)
    except InvalidVersion:
        raise TargetError(
            f"{release!r} names no vLLM: give a release (vllm:0.26.0), vllm:installed, or the path of a file "
            '(with a separator, or ending in ".py").'
        ) from None
    if version < Version(OLDEST) and version.base_version != OLDEST:
        raise TargetError(
            f"vLLM {version} is older than {OLDEST}: its manager is keyed by request and input, and only the "
            "later one, keyed by hash, can be judged."
        )
    if version.is_prerelease:
        raise TargetError(
            f"vLLM {version} is a pre-release, and only final releases are read from the package index: "
            "pass its file (vllm:PATH)."
        )
    return version


def _nearest(version: Version, known: Sequence[Version]) -> str:
    place = bisect(known, version)
    neighbours = [str(neighbour) for neighbour in known[max(place - 1, 0) : place + 1]]
    if len(neighbours) == 1:
        return f"the nearest release is {neighbours[0]}"
    return f"the nearest releases are {' and '.join(neighbours)}"


# --- The package index ------------------------------------------------------------------------------------


class _IndexTroubleError(Exception):
    """The index cannot be used: a clause that says how, a colon, and what to do."""


class _OriginAuth(requests.auth.AuthBase):
    """Basic authentication for one origin: a wheel may lie on another host, which must not see it."""

    def __init__(self, endpoint: str, user: str, password: str) -> None:
        self._origin = urlsplit(endpoint)[:2]
        self._basic = requests.auth.HTTPBasicAuth(user, password)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return self._basic(request) if urlsplit(request.url or "")[:2] == self._origin else request


def _index_url() -> str:
    return os.environ.get("PIP_INDEX_URL") or PYPI_SIMPLE_ENDPOINT


@contextmanager
def _session(index_url: str) -> Iterator[tuple[str, requests.Session]]:
    """Give the index's address without its credentials, and a session that knows them."""
    endpoint = index_url
    with requests.Session() as session:
        adapter = requests.adapters.HTTPAdapter(max_retries=_RETRY)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        parts = urlsplit(endpoint)
        if parts.username is not None:
            endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            session.auth = _OriginAuth(endpoint, unquote(parts.username), unquote(parts.password or ""))
        yield endpoint, session


@cache
def _wheels(index_url: str) -> Mapping[Version, str]:
    """Give the address of one wheel of each release that can be judged, ascending."""
    try:
        with _session(index_url) as (endpoint, session):
            page = PyPISimple(endpoint, session=session).get_project_page("vllm", timeout=_TIMEOUT)
    except NoSuchProjectError as error:
        raise _IndexTroubleError("the package index has no vllm: check PIP_INDEX_URL") from error
    except requests.HTTPError as error:
        answer = str(error).partition(" for url")[0]
        raise _IndexTroubleError(
            f"the package index answers with an error ({answer}): check PIP_INDEX_URL"
        ) from error
    except (ValueError, UnsupportedRepoVersionError) as error:
        raise _IndexTroubleError(
            f"the package index gives no list of releases ({type(error).__name__}): check PIP_INDEX_URL"
        ) from error
    except requests.RequestException as error:
        raise _IndexTroubleError(
            f"the package index cannot be reached ({type(error).__name__}): connect once"
        ) from error

    # Of a release rebuilt under the same version the last build counts, as for pip. The platform does not
    # matter: the module is the same file in all.
    ranked: dict[Version, list[tuple[tuple[int, str] | tuple[()], str, str]]] = {}
    for package in page.packages:
        try:
            _, version, build, _ = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        if version >= Version(OLDEST) and not version.is_prerelease and not package.is_yanked:
            ranked.setdefault(version, []).append((build, package.filename, package.url))
    if not ranked:
        raise _IndexTroubleError(f"the package index lists no vLLM wheel from {OLDEST} on: check PIP_INDEX_URL")
    return MappingProxyType({version: max(ranked[version])[-1] for version in sorted(ranked)})


def _read_member(index_url: str, wheel_url: str) -> bytes:
    try:
        with (
            _session(index_url) as (_, session),
            RemoteZip(
                wheel_url,
                _TAIL_BYTES,
                session=session,
                timeout=_TIMEOUT,
                headers={"Accept-Encoding": "identity"},  # a range of a compressed answer would be no range
            ) as archive,
        ):
            if _MEMBER not in archive.namelist():
                raise _IndexTroubleError(f"its wheel has no {_MEMBER}: name another release")
            source: bytes = archive.read(_MEMBER)
            return source
    except RangeNotSupported as error:
        raise _IndexTroubleError(
            "its wheel is only served whole: set PIP_INDEX_URL to an index that serves byte ranges"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _IndexTroubleError("its wheel is damaged: check PIP_INDEX_URL") from error
    except (OSError, RemoteZipError, urllib3.exceptions.HTTPError) as error:
        cause = error.__context__ or error  # a RemoteIOError hides what happened
        raise _IndexTroubleError(f"its wheel cannot be read ({type(cause).__name__}): connect once") from error


# --- The cache --------------------------------------------------------------------------------------------


def _cached_folders() -> list[tuple[Version, Path]]:
    found = []
    for folder in (cache_root() / _ROOM).glob("*/"):
        try:
            found.append((Version(folder.name), folder))
        except InvalidVersion:
            continue
    return found


def _is_intact(folder: Path) -> bool:
    try:
        source, recorded = (folder / _MODULE).read_bytes(), (folder / _DIGEST).read_bytes()
    except OSError:
        return False
    return recorded == _digest_line(source)


def _digest_line(source: bytes) -> bytes:
    return f"{hashlib.sha256(source).hexdigest()}  {_MODULE}\n".encode()  # as sha256sum writes and checks it


def _keep(source: bytes, folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _MODULE, source)
        write_whole(folder / _DIGEST, _digest_line(source))
    except OSError as error:
        raise TargetError(
            f"The cache folder {folder} cannot be written ({error.strerror}): set EVICTCHECK_CACHE to one "
            "that can."
        ) from error
    return folder / _MODULE


# --- Executing a module -----------------------------------------------------------------------------------


def _compiled(path: Path) -> CodeType:
    try:
        source = path.read_bytes().decode("utf-8-sig")
        # dont_inherit: the file is compiled under its own __future__ imports, not under this one's.
        return compile(source, str(path), "exec", dont_inherit=True)
    except (FileNotFoundError, NotADirectoryError):
        raise TargetError(f"{path} does not exist: pass a file like vLLM's {_MEMBER}.") from None
    except OSError as error:
        if path.is_dir():
            raise TargetError(f"{path} is a directory: pass the {_MODULE} itself.") from None
        raise TargetError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TargetError(f"{path} is not UTF-8 text (byte {error.start}): pass a Python source.") from error
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise TargetError(f"{path} is not Python: {line}{error.msg}.") from error
    except ValueError as error:  # a NUL character, up to Python 3.11
        raise TargetError(f"{path} is not Python: {error}.") from error


# One load at a time, since two of the same name would share the entry in sys.modules.
_loading = threading.RLock()


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Keep a module in `sys.modules` while it is executed, under a name that no import can ask for.

    `dataclass` looks there for the module of a class whose annotations are strings.
    """
    with _loading:
        sys.modules[module.__name__] = module
        try:
            yield
        finally:
            del sys.modules[module.__name__]


def _execution_failure(path: Path, error: BaseException) -> str:
    if isinstance(error, ImportError) and error.name:
        return (
            f"{path} imports {error.name}, which fails here ({error}): only vLLM's own names have stand-ins, "
            "so that everything else must be installed."
        )
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path} cannot be loaded alone: line {lines[-1]} raises {_described(error)}."


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    """Answer vLLM's names with stand-ins, and all others as the interpreter does."""
    if level:
        return _StandIn("." * level + name)
    if name.partition(".")[0] == "vllm":
        return _StandIn(name if fromlist else "vllm")
    return builtins.__import__(name, globals, locals, fromlist, level)


class _StandIn:
    """Whatever a vLLM module offers: it can be named, and does nothing.

    Falsy, so that a switch read from it is off. A value that is computed with, compared or iterated raises
    TypeError: a guess would falsify what is judged.
    """

    __slots__ = ("_stand_in_name",)
    __iter__ = None  # else __getitem__ would make it an endless sequence

    def __init__(self, name: str) -> None:
        self._stand_in_name = name

    def __repr__(self) -> str:
        return f"<stand-in for {self._stand_in_name}>"

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, attribute: str) -> "_StandIn":
        if attribute.startswith("__"):
            # Libraries probe for special attributes; finding one would promise its protocol.
            raise AttributeError(attribute)
        return _StandIn(f"{self._stand_in_name}.{attribute}")

    def __getitem__(self, key: object) -> "_StandIn":
        return self

    def __call__(self, *args: object, **kwargs: object) -> object:
        # Called with one function or class it is a decorator, which leaves what it decorates as it is.
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | type | staticmethod | classmethod):
            return args[0]
        return self

    def __or__(self, other: object) -> "_StandIn":
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> "_StandIn":
        return self

    def __exit__(self, *exception: object) -> None:
        pass
