import base64
import collections
import importlib
import io
import json
import linecache
import os
import random
import re
import socket
import subprocess
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest

from impl import upstream
from impl.errors import TargetError
from model.errors import EvictcheckError

MEMBER = "vllm/v1/core/encoder_cache_manager.py"

SOURCE = """
from vllm.logger import init_logger

logger = init_logger(__name__)


class EncoderCacheManager:
    def __init__(self, cache_size):
        self.cache_size = cache_size
        self.request_cached_ids = {}

    def check_and_update_cache(self, request, input_id):
        return False
"""

# All that were published when this was written.
RELEASES = (
    *("0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1"),
    *("0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2"),
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1"),
    *("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)


# --- A package index on the loopback ------------------------------------------------------------------------


def wheel(source: str | None = SOURCE, padding: bytes = b"", compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive with the module between padding, as a wheel is mostly compiled code."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("vllm/_C.abi3.so", padding)
        if source is not None:
            archive.writestr(MEMBER, source, compression)
        archive.writestr("vllm/_moe_C.abi3.so", padding)
    return buffer.getvalue()


def garbled_wheel() -> bytes:
    before, name, after = wheel().partition(MEMBER.encode())
    return before + name + b"\xff" + after[1:]  # no such kind of deflate block


class Index:
    """A package index that counts what it sends, and that can be made to misbehave."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.origin = f"http://127.0.0.1:{server.server_address[1]}"
        self.url = f"{self.origin}/simple"
        self.files: dict[str, bytes] = {}
        self.yanked: set[str] = set()
        self.files_origin = self.origin
        self.as_html = False
        self.page: tuple[str, bytes] | None = None
        self.credentials: str | None = None
        self.ranges = True
        self.failures: list[int] = []
        self.cut_bodies = False
        self.bytes_sent = 0
        self.requests: list[tuple[str, str | None]] = []

    def publish(self, version: str, content: bytes | None = None, *, build: str = "", tag: str = "x") -> str:
        name = f"vllm-{version}{build}-cp38-abi3-{tag}.whl"
        self.files[name] = wheel() if content is None else content
        return name

    def project_page(self) -> tuple[str, bytes]:
        if self.page is not None:
            return self.page
        links = {name: f"{self.files_origin}/files/{name}" for name in self.files}
        if self.as_html:
            anchors = [
                f'<a href="{url}#sha256=00"{" data-yanked" if name in self.yanked else ""}>{name}</a>'
                for name, url in links.items()
            ]
            return "text/html", f"<!DOCTYPE html><html><body>{''.join(anchors)}</body></html>".encode()
        files = [
            {"filename": name, "url": url, "hashes": {}, "yanked": name in self.yanked}
            for name, url in links.items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": "vllm", "files": files, "versions": []}
        return "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up early is part of some tests."""


@contextmanager
def serving() -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization")
            served.requests.append((self.path, authorization))
            if served.failures:
                self.answer(served.failures.pop(0), b"no", {"Retry-After": "3600"})
            elif served.credentials is not None and authorization != f"Basic {served.credentials}":
                self.answer(401, b"no", {"WWW-Authenticate": 'Basic realm="index"'})
            elif self.path == "/simple/vllm/":
                content_type, body = served.project_page()
                self.answer(200, body, {"Content-Type": content_type})
            elif self.path.startswith("/files/"):
                self.answer_file(served.files[self.path.removeprefix("/files/")])
            else:
                self.answer(404, b"no", {})

        def answer_file(self, content: bytes) -> None:
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if asked is None or not served.ranges:
                self.answer(200, content, {})
                return
            first, last = asked.groups()
            start = int(first) if first else max(len(content) - int(last), 0)
            stop = min(int(last) + 1, len(content)) if first and last else len(content)
            self.answer(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if served.cut_bodies and status == 206:
                body = body[: len(body) // 2]
                self.close_connection = True
            served.bytes_sent += len(body)
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    served = Index(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing remembered of any index."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EVICTCHECK_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    upstream._wheels.cache_clear()
    return folder


@pytest.fixture
def index(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving() as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture
def no_network(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def refusal(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(TargetError) as caught:
        call(*arguments)
    return str(caught.value)


# --- Releases -----------------------------------------------------------------------------------------------


def test_a_target_error_is_one_that_a_person_reads() -> None:
    assert issubclass(TargetError, EvictcheckError)


@pytest.mark.parametrize("as_html", [False, True])
def test_published_lists_final_releases_with_a_wheel_that_is_not_yanked_ascending(
    index: Index, as_html: bool
) -> None:
    index.as_html = as_html
    for version in ("0.9.2", "0.10.1.1", "0.10.2rc1", "0.10.2", "0.26.0", "0.9.0", "0.27.0rc2", "0.100.0"):
        index.publish(version)
    index.yanked.add(index.publish("0.28.0"))
    index.yanked.add(index.publish("0.29.0", tag="a"))
    index.publish("0.29.0", tag="b")
    index.files["vllm-0.30.0.tar.gz"] = b""
    index.files["vllm-what.whl"] = b""

    assert upstream.published() == ("0.10.2", "0.26.0", "0.29.0", "0.100.0")


def test_fetch_reads_one_member_of_a_large_wheel(index: Index, cache_folder: Path) -> None:
    padding = random.Random(0).randbytes(10_000_000)
    name = index.publish("0.26.0", wheel(padding=padding))
    assert len(index.files[name]) > 20_000_000

    path = upstream.fetch("0.26.0")

    assert path == cache_folder / "vllm" / "0.26.0" / "encoder_cache_manager.py"
    assert path.read_text() == SOURCE
    assert index.bytes_sent < 10_000


def test_fetch_asks_the_index_once_and_then_never(index: Index) -> None:
    index.publish("0.26.0")
    index.publish("0.27.0")
    upstream.fetch("0.26.0")
    upstream.fetch("0.27.0")
    assert [path for path, _ in index.requests].count("/simple/vllm/") == 1

    asked = len(index.requests)
    upstream.fetch("0.26.0")
    assert len(index.requests) == asked


def test_of_two_builds_of_a_release_the_last_is_read(index: Index) -> None:
    index.publish("0.23.0", wheel("first = 1\n"), tag="z")
    index.publish("0.23.0", wheel("second = 1\n"), build="-2", tag="a")
    index.publish("0.23.0", wheel("tenth = 1\n"), build="-10", tag="a")
    assert upstream.fetch("0.23.0").read_text() == "tenth = 1\n"


@pytest.mark.parametrize("typed", ["0.26.0", "v0.26.0", "0.26", " 0.26.0 ", "0.26.0.0"])
def test_a_release_is_found_as_people_type_it(index: Index, cache_folder: Path, typed: str) -> None:
    index.publish("0.26.0")
    for _ in range(2):  # from the index, then from the cache
        assert upstream.fetch(typed) == cache_folder / "vllm" / "0.26.0" / "encoder_cache_manager.py"
    assert upstream.resolve(typed).name == "vllm:0.26.0"


def test_the_cache_holds_the_digest_as_sha256sum_writes_it(index: Index) -> None:
    index.publish("0.26.0", wheel("x = 1\n"))
    path = upstream.fetch("0.26.0")
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "encoder_cache_manager.py",
        "encoder_cache_manager.py.sha256",
    ]
    assert (path.parent / "encoder_cache_manager.py.sha256").read_text() == (
        "9e26bf369911c45c243c684147b23fc9e1dcfcf257d299a1c632016a6fcd33f4  encoder_cache_manager.py\n"
    )


@pytest.mark.parametrize("damaged", ["encoder_cache_manager.py", "encoder_cache_manager.py.sha256"])
@pytest.mark.parametrize("damage", ["altered", "emptied", "removed"])
def test_a_cached_file_that_does_not_match_its_digest_is_read_again(
    index: Index, damaged: str, damage: str
) -> None:
    index.publish("0.26.0")
    path = upstream.fetch("0.26.0")
    file = path.parent / damaged
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"# more\n" if damage == "altered" else b"")
    assert upstream.cached_releases() == ()

    assert upstream.fetch("0.26.0").read_text() == SOURCE
    assert upstream.cached_releases() == ("0.26.0",)


def test_a_damaged_cache_is_not_used_offline_either(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.publish("0.26.0")
    path = upstream.fetch("0.26.0")
    path.write_text("class EncoderCacheManager: pass\n")
    upstream._wheels.cache_clear()
    monkeypatch.setenv("PIP_INDEX_URL", closed_port_url())
    assert refusal(upstream.resolve, "0.26.0").startswith("vLLM 0.26.0 is not cached and ")


def test_cached_releases_are_listed_ascending_without_network(index: Index, cache_folder: Path) -> None:
    assert upstream.cached_releases() == ()
    for version in ("0.26.0", "0.100.0", "0.27.0"):
        index.publish(version)
        upstream._wheels.cache_clear()
        upstream.fetch(version)
    (cache_folder / "vllm" / "notes").mkdir()
    (cache_folder / "vllm" / "0.28.0").mkdir()
    asked = len(index.requests)
    assert upstream.cached_releases() == ("0.26.0", "0.27.0", "0.100.0")
    assert len(index.requests) == asked


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing(
    index: Index, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def interrupted(source: object, target: object) -> NoReturn:
        raise error

    index.publish("0.26.0")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises((TargetError, KeyboardInterrupt)):
        upstream.fetch("0.26.0")
    assert list((cache_folder / "vllm" / "0.26.0").iterdir()) == []


@pytest.mark.parametrize("writes_done", [0, 1])
def test_a_process_killed_while_it_writes_leaves_nothing_that_is_used(index: Index, writes_done: int) -> None:
    index.publish("0.26.0")
    script = f"""
import os
from impl import upstream
replace, done = os.replace, []
def dying(source, target):
    if len(done) == {writes_done}:
        os._exit(9)
    done.append(target)
    replace(source, target)
os.replace = dying
upstream.fetch("0.26.0")
"""
    killed = subprocess.run([sys.executable, "-c", script], env=child_environment(), check=False)
    assert killed.returncode == 9
    assert upstream.cached_releases() == ()
    assert upstream.fetch("0.26.0").read_text() == SOURCE


def test_processes_may_fetch_the_same_release_at_once(index: Index) -> None:
    index.publish("0.26.0")
    script = 'from impl import upstream; print(upstream.resolve("0.26.0").release)'
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=child_environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert [child.communicate()[0] for child in children] == ["0.26.0\n"] * 4
    assert upstream.cached_releases() == ("0.26.0",)


def test_a_cached_release_needs_no_network_at_all(
    index: Index, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    index.publish("0.26.0")
    upstream.fetch("0.26.0")
    upstream._wheels.cache_clear()
    request.getfixturevalue("no_network")
    monkeypatch.delenv("PIP_INDEX_URL")

    target = upstream.resolve("0.26")
    assert (target.name, target.release, target.era) == ("vllm:0.26.0", "0.26.0", frozenset())
    assert target.manager_class(cache_size=4).cache_size == 4


def test_a_folder_that_cannot_be_written_is_named(index: Index, cache_folder: Path) -> None:
    index.publish("0.26.0")
    cache_folder.write_text("a file where the folder should be")
    assert refusal(upstream.fetch, "0.26.0") == (
        f"The cache folder {cache_folder}{os.sep}vllm{os.sep}0.26.0 cannot be written (Not a directory): set "
        "EVICTCHECK_CACHE to one that can."
    )


def test_without_a_variable_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EVICTCHECK_CACHE", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    kept = tmp_path / "evictcheck" / "vllm" / "0.26.0"
    upstream._keep(b"x = 1\n", kept)
    assert upstream.cached_releases() == ("0.26.0",)


# --- Refusals of a name -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("9.9.9", "vLLM 9.9.9 is not published: the nearest release is 0.33.0."),
        ("0.26.5", "vLLM 0.26.5 is not published: the nearest releases are 0.26.0 and 0.33.0."),
        ("0.25", "vLLM 0.25 is not published: the nearest releases are 0.11.0 and 0.26.0."),
        ("0.10.3", "vLLM 0.10.3 is not published: the nearest release is 0.11.0."),
        ("0.26.0+cpu", "vLLM 0.26.0+cpu is not published: the nearest releases are 0.26.0 and 0.33.0."),
    ],
)
def test_an_unpublished_release_is_refused_with_its_neighbours(index: Index, argument: str, sentence: str) -> None:
    for version in ("0.11.0", "0.26.0", "0.33.0"):
        index.publish(version)
    assert refusal(upstream.resolve, argument) == sentence


@pytest.mark.parametrize("argument", ["0.10.1", "0.10.1.1", "v0.6", "0.9.0rc1"])
def test_an_older_release_is_refused_with_the_reason(no_network: None, argument: str) -> None:
    assert refusal(upstream.resolve, argument) == (
        f"vLLM {argument.removeprefix('v')} is older than 0.10.2: its manager is keyed by request and input, "
        "and only the later one, keyed by hash, can be judged."
    )


@pytest.mark.parametrize("argument", ["0.27.0rc1", "0.10.2rc1", "0.26.0.dev3"])
def test_a_pre_release_is_refused(no_network: None, argument: str) -> None:
    assert refusal(upstream.resolve, argument) == (
        f"vLLM {argument} is a pre-release, and only final releases are read from the package index: "
        "pass its file (vllm:PATH)."
    )


@pytest.mark.parametrize("argument", ["", "latest", "0.26.x"])
def test_what_is_no_release_is_refused(no_network: None, argument: str) -> None:
    assert refusal(upstream.resolve, argument) == (
        f"{argument!r} names no vLLM: give a release (vllm:0.26.0), vllm:installed, or the path of a file "
        '(with a separator, or ending in ".py").'
    )


# --- Trouble with the index ---------------------------------------------------------------------------------


def closed_port_url() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/simple"


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(upstream.__file__).parents[1])}


def test_no_network_and_no_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", closed_port_url())
    assert refusal(upstream.resolve, "0.26.0") == (
        "vLLM 0.26.0 is not cached and the package index cannot be reached (ConnectionError): connect once, "
        "or pass a file (vllm:PATH)."
    )
    assert refusal(upstream.published) == (
        "The releases of vLLM cannot be listed since the package index cannot be reached (ConnectionError): "
        "connect once."
    )


def test_an_index_that_never_answers_is_given_up(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        assert refusal(upstream.fetch, "0.26.0") == (
            "vLLM 0.26.0 is not cached and the package index cannot be reached (ConnectionError): connect "
            "once, or pass a file (vllm:PATH)."
        )


def test_a_dead_index_is_given_up_in_seconds() -> None:
    connect, read = upstream._TIMEOUT
    assert upstream._RETRY.connect == upstream._RETRY.read == 1
    assert 2 * max(connect, read) <= 20


def test_a_flaky_index_is_asked_again(index: Index) -> None:
    index.publish("0.26.0")
    index.failures = [503, 502]
    assert upstream.fetch("0.26.0").read_text() == SOURCE


@pytest.mark.parametrize(
    ("trouble", "clause"),
    [
        ({"failures": [503] * 3}, "answers with an error (503 Server Error: Service Unavailable)"),
        ({"failures": [403]}, "answers with an error (403 Client Error: Forbidden)"),
        ({"failures": [404]}, "has no vllm"),
        ({"page": ("text/html", b"Welcome to this network")}, "lists no vLLM wheel from 0.10.2 on"),
        ({"page": ("image/png", b"")}, "gives no list of releases (UnsupportedContentTypeError)"),
        (
            {"page": ("application/vnd.pypi.simple.v1+json", b"{")},
            "gives no list of releases (JSONDecodeError)",
        ),
        (
            {"page": ("application/vnd.pypi.simple.v1+json", b"[]")},
            "gives no list of releases (ValidationError)",
        ),
        (
            {
                "page": (
                    "text/html",
                    b'<html><head><meta name="pypi:repository-version" content="9.0"></head>',
                )
            },
            "gives no list of releases (UnsupportedRepoVersionError)",
        ),
    ],
)
def test_an_index_in_trouble_is_described(index: Index, trouble: dict[str, Any], clause: str) -> None:
    vars(index).update(trouble)
    assert refusal(upstream.fetch, "0.26.0") == (
        f"vLLM 0.26.0 is not cached and the package index {clause}: check PIP_INDEX_URL, or pass a file "
        "(vllm:PATH)."
    )


def test_an_index_url_that_is_none_is_described(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "my-index")
    assert refusal(upstream.published) == (
        "The releases of vLLM cannot be listed since the package index gives no list of releases "
        "(MissingSchema): check PIP_INDEX_URL."
    )


def test_an_index_without_ranges_is_refused_before_it_sends_the_wheel(index: Index) -> None:
    index.publish("0.26.0")
    index.ranges = False
    assert refusal(upstream.fetch, "0.26.0") == (
        "vLLM 0.26.0 is not cached and its wheel is only served whole: set PIP_INDEX_URL to an index that "
        "serves byte ranges, or pass a file (vllm:PATH)."
    )


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (b"no archive" * 1000, "is damaged: check PIP_INDEX_URL"),
        (
            wheel(compression=zipfile.ZIP_STORED).replace(b"check", b"CHECK"),
            "is damaged: check PIP_INDEX_URL",
        ),
        (garbled_wheel(), "is damaged: check PIP_INDEX_URL"),
        (wheel(None), f"has no {MEMBER}: name another release"),
    ],
)
def test_a_wheel_that_cannot_be_read_is_described(
    index: Index, cache_folder: Path, content: bytes, clause: str
) -> None:
    index.publish("0.26.0", content)
    assert refusal(upstream.fetch, "0.26.0") == (
        f"vLLM 0.26.0 is not cached and its wheel {clause}, or pass a file (vllm:PATH)."
    )
    assert upstream.cached_releases() == ()


def test_a_connection_cut_in_the_middle_caches_nothing(index: Index) -> None:
    index.publish("0.26.0")
    index.cut_bodies = True
    assert refusal(upstream.fetch, "0.26.0") == (
        "vLLM 0.26.0 is not cached and its wheel cannot be read (IncompleteRead): connect once, or pass a "
        "file (vllm:PATH)."
    )
    assert upstream.cached_releases() == ()


def test_credentials_go_to_the_index_and_nowhere_else(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.credentials = base64.b64encode(b"me:p@ss/word").decode()
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:p%40ss%2Fword@"))
    index.publish("0.26.0")
    assert upstream.fetch("0.26.0").read_text() == SOURCE
    assert {authorization for _, authorization in index.requests} == {f"Basic {index.credentials}"}

    with serving() as elsewhere:
        upstream._wheels.cache_clear()
        elsewhere.files[index.publish("0.27.0")] = wheel()
        index.files_origin = elsewhere.origin
        assert upstream.fetch("0.27.0").read_text() == SOURCE
        assert {authorization for _, authorization in elsewhere.requests} == {None}


def test_a_refusal_never_shows_the_credentials(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.credentials = "others"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:hush@"))
    with pytest.raises(TargetError) as caught:
        upstream.fetch("0.26.0")
    assert str(caught.value) == (
        "vLLM 0.26.0 is not cached and the package index answers with an error (401 Client Error: "
        "Unauthorized): check PIP_INDEX_URL, or pass a file (vllm:PATH)."
    )
    assert "hush" not in "".join(traceback.format_exception(caught.value))


# --- Loading a file -----------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def written(source: str | bytes) -> Path:
        path = tmp_path / "copy.py"
        path.write_bytes(source.encode() if isinstance(source, str) else source)
        return path

    return written


Write = Callable[[str | bytes], Path]


def test_a_working_copy_is_resolved(write: Write, no_network: None) -> None:
    path = write(SOURCE)
    target = upstream.resolve(str(path))
    assert (target.name, target.release, target.era, target.path) == (f"vllm:{path}", None, frozenset(), path)
    assert target.manager_class.__module__ == f"vllm:{path}"
    assert target.manager_class.__qualname__ == "EncoderCacheManager"


def test_a_bare_file_name_and_a_home_are_paths(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(SOURCE)
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setenv("USERPROFILE", str(path.parent))
    assert upstream.resolve("copy.py").name == "vllm:copy.py"
    assert upstream.resolve("~/copy.py").path == path


def test_each_load_gives_a_class_of_its_own(write: Write) -> None:
    path = write(SOURCE)
    first, second = upstream.load(path, "vllm:a"), upstream.load(path, "vllm:a")
    assert first is not second
    first.check_and_update_cache = None  # type: ignore[attr-defined]
    assert second(cache_size=1).check_and_update_cache(None, 0) is False


def test_loading_leaves_the_interpreter_as_it_was(write: Write) -> None:
    before = dict(sys.modules)
    upstream.load(write(SOURCE), "vllm:copy")
    assert sys.modules == before
    assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)


def test_stand_ins_are_made_for_whatever_is_imported(write: Write) -> None:
    path = write(
        """
from __future__ import annotations
import collections.abc
import vllm.some.new.module
import vllm.other as other
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Optional, TypeVar
from vllm import envs
from vllm.a.b import Base, Metadata, decorate, decorate_with, profiled
from .sibling import helper
from .. import uncle

T = TypeVar("T")
log = vllm.some.new.module.get("x", level=3)["y"].z
Either = Metadata | None
Neither = None | Metadata | int
Maybe = Optional[Metadata]
Many = dict[str, list[Metadata]]
assert not envs.SOME_SWITCH
assert not TYPE_CHECKING

@dataclass(frozen=True)
class Entry:
    size: int
    unit: ClassVar[int] = 7

@decorate
class EncoderCacheManager(Base[int], other.Mixin, Generic[T]):
    @decorate_with("x", retries=2)
    def check_and_update_cache(self, request: Metadata | None, input_id: int) -> Either:
        from vllm.late import something
        something(log.debug("%s", uncle))
        with profiled("check"):
            return [helper(1), Entry(input_id).unit, OrderedDict(a=1)]

    @decorate
    @staticmethod
    def unbound():
        return "unbound"
"""
    )
    manager = upstream.load(path, "vllm:copy")()
    helped, unit, ordered = manager.check_and_update_cache(None, 3)
    assert repr(helped) == "<stand-in for .sibling.helper>"
    assert unit == 7
    assert ordered == {"a": 1}
    assert manager.unbound() == "unbound"


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("list(limit)", "TypeError: '_StandIn' object is not iterable"),
        ("1 in limit", "TypeError: argument of type '_StandIn' is not"),
        ("limit + 1", "TypeError: unsupported operand type(s) for +: '_StandIn' and 'int'"),
        ("limit < 1", "TypeError: '<' not supported between instances of '_StandIn' and 'int'"),
        ("range(limit)", "TypeError: '_StandIn' object cannot be interpreted as an integer"),
    ],
)
def test_a_stand_in_is_never_taken_for_a_value(write: Write, expression: str, error: str) -> None:
    path = write(f"from vllm.limits import limit\n\n{expression}\n")
    assert refusal(upstream.load, path, "vllm:copy").startswith(
        f"{path} cannot be loaded alone: line 3 raises {error}"
    )


def test_a_stand_in_kept_by_a_manager_can_be_copied(write: Write) -> None:
    path = write(SOURCE.replace("self.cache_size = cache_size", "self.cache_size, self.log = 1, logger.child"))
    manager = upstream.load(path, "vllm:copy")(cache_size=1)
    assert repr(deepcopy(manager).log) == "<stand-in for vllm.logger.init_logger.child>"


def test_an_optional_import_of_something_absent_is_the_files_own_affair(write: Write) -> None:
    guarded = "try:\n    import no_such_package\nexcept ImportError:\n    no_such_package = None\n"
    assert upstream.load(write(guarded + SOURCE), "vllm:copy").__name__ == "EncoderCacheManager"


def test_the_files_own_lines_appear_in_tracebacks(write: Write) -> None:
    path = write(SOURCE.replace("return False", "return request.absent"))
    manager = upstream.load(path, "vllm:copy")(cache_size=1)
    linecache.checkcache()
    with pytest.raises(AttributeError) as caught:
        manager.check_and_update_cache(None, 0)
    shown = "".join(traceback.format_exception(caught.value))
    assert f'File "{path}", line 13, in check_and_update_cache' in shown
    assert "return request.absent" in shown


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (b"caf\xe9 = 1\n", "{path} is not UTF-8 text (byte 3): pass a Python source."),
        ("x = 1\nclass :\n", "{path} is not Python: line 2: invalid syntax."),
        ("x = 1\n\0", "{path} is not Python: source code string cannot contain null bytes."),
        (
            "import no_such_package\n",
            "{path} imports no_such_package, which fails here (No module named 'no_such_package'): only "
            "vLLM's own names have stand-ins, so that everything else must be installed.",
        ),
        (
            "from collections import NoSuchThing\n",
            "{path} imports collections, which fails here (cannot import name 'NoSuchThing' from "
            f"'collections' ({collections.__file__})): only vLLM's own names have stand-ins, so that"
            " everything else must be installed.",
        ),
        (
            "def half(n):\n    return 1 / n\n\nhalf(0)\n",
            "{path} cannot be loaded alone: line 2 raises ZeroDivisionError: division by zero.",
        ),
        ("assert False\n", "{path} cannot be loaded alone: line 1 raises AssertionError."),
        ("raise SystemExit(3)\n", "{path} cannot be loaded alone: line 1 raises SystemExit: 3."),
        (
            "",
            "{path} defines no class EncoderCacheManager: pass a file like vLLM's "
            "vllm/v1/core/encoder_cache_manager.py.",
        ),
        (
            "from vllm.elsewhere import EncoderCacheManager\n",
            "{path} defines no class EncoderCacheManager: pass a file like vLLM's "
            "vllm/v1/core/encoder_cache_manager.py.",
        ),
        (
            "class EncoderDecoderCacheManager:\n    pass\n",
            "{path} defines EncoderDecoderCacheManager but no EncoderCacheManager: only the latter is "
            "judged, since the former has another contract (nothing of it is ever cached).",
        ),
        (
            "class EncoderCacheManager:\n"
            "    def has_cache(self, request, input_id): ...\n"
            "    def get_freed_ids(self): ...\n",
            "{path} holds the manager of the releases before 0.10.2, keyed by request and input: only the "
            "later one, keyed by hash, can be judged.",
        ),
    ],
)
def test_a_file_that_cannot_be_judged_is_refused(write: Write, source: str | bytes, sentence: str) -> None:
    path = write(source)
    assert refusal(upstream.load, path, "vllm:copy") == sentence.format(path=path)


def test_a_byte_order_mark_is_no_reason_to_refuse(write: Write) -> None:
    assert upstream.load(write(b"\xef\xbb\xbf" + SOURCE.encode()), "vllm:copy").__module__ == "vllm:copy"


def test_a_path_that_is_no_file_is_refused(tmp_path: Path, write: Write) -> None:
    absent = "{} does not exist: pass a file like vLLM's vllm/v1/core/encoder_cache_manager.py."
    assert refusal(upstream.resolve, "no/such/file.py") == absent.format(Path("no/such/file.py"))
    below_a_file = write("") / "file.py"
    assert refusal(upstream.resolve, str(below_a_file)) == absent.format(below_a_file)
    assert refusal(upstream.resolve, str(tmp_path)) == (
        f"{tmp_path} is a directory: pass the encoder_cache_manager.py itself."
    )


def test_a_file_that_cannot_be_read_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    path = write(SOURCE)
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert refusal(upstream.load, path, "vllm:copy") == f"{path} cannot be read: Permission denied."


# --- The era ------------------------------------------------------------------------------------------------


class Exact:
    def __init__(self, cache_size: int) -> None:
        self.request_cached_ids: dict[str, set[int]] = {}


class ByMembership:
    def __init__(self, cache_size: int) -> None:
        pass


class Broken:
    def __init__(self) -> None:
        pass


def test_a_difference_is_declared_with_its_last_release() -> None:
    assert [(era.property, era.until) for era in upstream.ERA_DIFFERENCES] == [("cached-ids-exact", "0.22.1")]
    assert all(era.sentence and not era.sentence.endswith(".") for era in upstream.ERA_DIFFERENCES)


@pytest.mark.parametrize("release", ["0.10.2", "0.22.1", "0.22.1+cu129", "0.22.1.post1"])
def test_a_release_up_to_the_last_differs(release: str) -> None:
    assert upstream.era_differences(release, Exact) == {"cached-ids-exact"}


@pytest.mark.parametrize("release", ["0.23.0", "0.23.0+cpu", "0.33.0"])
def test_a_later_release_does_not_differ(release: str) -> None:
    assert upstream.era_differences(release, ByMembership) == frozenset()


@pytest.mark.parametrize("release", [None, "0.23.0rc1", "0.1.dev1+gabcdef", "0.22.2.dev7"])
def test_an_unknown_release_is_dated_by_its_instances(release: str | None) -> None:
    assert upstream.era_differences(release, Exact) == frozenset()
    assert upstream.era_differences(release, ByMembership) == {"cached-ids-exact"}


def test_a_manager_of_unknown_release_that_cannot_be_made_is_refused(write: Write) -> None:
    path = write("class EncoderCacheManager:\n    def __init__(self, size, /): ...\n")
    assert refusal(upstream.resolve, str(path)).startswith(
        f"vllm:{path}: EncoderCacheManager(cache_size=1) raises TypeError: "
    )


# --- The installed vLLM -------------------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Installs a vLLM that must not be imported, in place of any that is there."""
    elsewhere = [entry for entry in sys.path if not (Path(entry) / "vllm").exists()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *elsewhere])

    def installed(version: str, source: str | None = SOURCE) -> Path:
        package = tmp_path / "vllm"
        core = package / "v1" / "core"
        core.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        if source is not None:
            (core / "encoder_cache_manager.py").write_text(source)
        metadata = tmp_path / f"vllm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        importlib.invalidate_caches()
        return core / "encoder_cache_manager.py"

    importlib.invalidate_caches()
    return installed


Install = Callable[..., Path]


@pytest.mark.parametrize(
    ("version", "era"),
    [("0.26.0", set()), ("0.22.1+cu129", {"cached-ids-exact"}), ("0.30.1.dev4+gabc", set())],
)
def test_the_installed_vllm_is_found_without_importing_it(
    install: Install, no_network: None, version: str, era: set[str]
) -> None:
    path = install(version)
    assert upstream.installed() == (path, version)
    target = upstream.resolve("installed")
    assert (target.name, target.release, target.path) == ("vllm:installed", version, path)
    assert target.era == era


NONE_INSTALLED = (
    "No vLLM is installed in this interpreter: name a release (vllm:0.26.0), or pass a file (vllm:PATH)."
)


def test_no_vllm_installed(install: Install) -> None:
    assert refusal(upstream.resolve, "installed") == NONE_INSTALLED


def test_a_bare_module_called_vllm_is_no_installation(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", type(sys)("vllm"))
    assert refusal(upstream.installed) == NONE_INSTALLED


def test_a_source_tree_beside_is_no_installation(install: Install, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    assert refusal(upstream.installed) == NONE_INSTALLED


@pytest.mark.parametrize("version", ["0.10.1.1", "0.9.0+cpu", "0.1.dev1+gabc"])
def test_an_older_installation_is_refused(install: Install, version: str) -> None:
    path = install(version)
    assert refusal(upstream.installed) == (
        f"The installed vLLM is {version}, older than 0.10.2, the first whose manager is keyed by hash: if "
        f"that version is wrong, pass its file (vllm:{path})."
    )


def test_an_installation_without_the_module_is_refused(install: Install) -> None:
    install("0.26.0", None)
    assert refusal(upstream.installed) == (
        "The installed vLLM 0.26.0 has no vllm/v1/core/encoder_cache_manager.py: pass a file (vllm:PATH)."
    )


def test_an_installation_without_a_proper_version_is_refused(install: Install) -> None:
    path = install("dev")
    assert refusal(upstream.installed) == (
        f"The installed vLLM calls itself 'dev', which is no version: pass its file (vllm:{path})."
    )


# --- The published releases, themselves ---------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_every_published_release_loads(release: str) -> None:
    target = upstream.resolve(release)
    assert (target.name, target.release) == (f"vllm:{release}", release)
    manager = target.manager_class(cache_size=4)
    assert (manager.num_free_slots, manager.num_freeable_slots) == (4, 4)
    for method in (
        "check_and_update_cache",
        "can_allocate",
        "allocate",
        "get_cached_input_ids",
        "free_encoder_input",
        "free",
        "get_freed_mm_hashes",
    ):
        assert callable(getattr(manager, method))
    assert manager.get_freed_mm_hashes() == []
    # Dated by its instances the file comes out in the same era.
    assert upstream.era_differences(None, target.manager_class) == target.era
    assert bool(target.era) == (RELEASES.index(release) <= RELEASES.index("0.22.1"))


def test_the_releases_known_are_all_supported() -> None:
    assert len(RELEASES) == 36
    assert RELEASES[0] == upstream.OLDEST
