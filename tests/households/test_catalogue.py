"""The catalogue: fetched whole or not at all, from the second address too, resumed, compared by what is inside."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from fedenergy import cli
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.households import catalogue, fetch
from fedenergy.households.catalogue import DataSet, Item

INSIDE = b"a;b\n" + b"1;2\n" * 20_000
SHA = hashlib.sha256(INSIDE).hexdigest()


def zipped(data=INSIDE, name="folder/inner.txt"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("readme", "x")
        archive.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def server():
    """A publisher on loopback: files by path; `breaks` cuts a file's first answers after so many bytes."""
    state = SimpleNamespace(files={}, breaks={}, asked=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append((self.path, self.headers.get("Range")))
            data = state.files.get(self.path)
            if data is None:
                return self.send_error(404)
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            if start >= len(data):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            cut = state.breaks.pop(self.path, None)
            self.wfile.write(data[start:] if cut is None else data[start:start + cut])
            if cut is not None:
                self.close_connection = True
            return None

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}"
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture
def sets(server, monkeypatch):
    """Two sets of our own; no pause between tries."""
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(catalogue, "SETS", {
        "pinned": DataSet("pinned", "t", "l", "c", (Item("pinned/inner.txt", (f"{server.url}/gone", f"{server.url}/a.zip"),
                                                         "inner.txt", len(INSIDE), SHA),)),
        "free": DataSet("free", "t", "l", "c", (Item("free/inner.txt", (f"{server.url}/inner.txt",)),)),
        "hand": DataSet("hand", "t", "l", "c", (Item("hand/one.csv"), Item("hand/two.csv")), "ask for it")})
    server.files |= {"/a.zip": zipped(), "/inner.txt": INSIDE}
    return server


def fedenergy(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(arg) for arg in args])
    return left.value.code


def test_a_set_is_fetched_from_the_second_address_and_verified(sets, tmp_path):
    ((_, place, what),) = fetch.fetch(tmp_path, "pinned")
    assert what == "fetched"
    assert place.read_bytes() == INSIDE
    assert [path for path, _ in sets.asked] == ["/gone", "/a.zip"]
    assert [one.verdict for one in catalogue.verify(tmp_path, "pinned")] == ["ok"]
    assert [path.name for path in place.parent.iterdir()] == ["inner.txt"]
    assert fetch.fetch(tmp_path, "pinned")[0][2] == "there already"
    assert len(sets.asked) == 2


def test_a_broken_connection_is_gone_on_with(sets, tmp_path):
    sets.breaks["/inner.txt"] = 1_000
    fetch.fetch(tmp_path, "free")
    assert sets.asked == [("/inner.txt", None), ("/inner.txt", "bytes=1000-")]
    assert (tmp_path / "free/inner.txt").read_bytes() == INSIDE


def test_a_fetch_that_failed_leaves_a_part_that_is_no_data(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "TRIES", 1)
    sets.breaks["/inner.txt"] = 1_000
    with pytest.raises(RunFailed, match=r"goes on from there"):
        fetch.fetch(tmp_path, "free")
    assert catalogue.verify(tmp_path, "free")[0].verdict == "absent"
    fetch.fetch(tmp_path, "free")
    assert sets.asked[-1] == ("/inner.txt", "bytes=1000-")
    assert (tmp_path / "free/inner.txt").read_bytes() == INSIDE


def test_what_is_not_the_published_file_is_not_kept(sets, tmp_path):
    sets.files["/a.zip"] = zipped(INSIDE[:-1])
    with pytest.raises(ConfigError, match=f"not the published file.*{SHA}"):
        fetch.fetch(tmp_path, "pinned")
    assert list((tmp_path / "pinned").iterdir()) == []
    sets.files["/a.zip"] = b"<html>sorry</html>"
    with pytest.raises(RunFailed, match=r"no archive with inner\.txt"):
        fetch.fetch(tmp_path, "pinned")
    assert catalogue.verify(tmp_path, "pinned")[0].verdict == "absent"


def test_a_hash_that_is_not_known_is_recorded_once_and_told_as_unpinned(sets, tmp_path):
    fetch.fetch(tmp_path, "free")
    assert json.loads((tmp_path / catalogue.LOCK).read_text()) == {"free/inner.txt": SHA}
    assert catalogue.verify(tmp_path, "free")[0].verdict == "unpinned"
    (tmp_path / "free/inner.txt").write_bytes(INSIDE + b"x")
    assert catalogue.verify(tmp_path, "free")[0].verdict == "differs"
    with pytest.raises(ConfigError, match="not the file that is published"):
        fetch.fetch(tmp_path, "free")
    (tmp_path / catalogue.LOCK).write_text("[")
    with pytest.raises(ConfigError, match="damaged"):
        catalogue.verify(tmp_path)


def test_compressed_files_are_judged_by_what_is_inside(sets, tmp_path):
    (tmp_path / "pinned").mkdir()
    place = tmp_path / "pinned/inner.txt.gz"
    place.write_bytes(gzip.compress(INSIDE))
    assert catalogue.verify(tmp_path, "pinned")[0].verdict == "ok"
    place.write_bytes(gzip.compress(INSIDE)[:-50])
    assert "damaged" in catalogue.verify(tmp_path, "pinned")[0].told


@pytest.mark.parametrize("make", [
    lambda folder: (folder / "x.zip", zipped()), lambda folder: (folder / "inner.txt", INSIDE),
    lambda folder: (folder / "inner.txt.gz", gzip.compress(INSIDE)), lambda folder: (folder / "other-name.txt", INSIDE)],
    ids=["zip", "plain", "gz", "renamed"])
def test_a_file_at_hand_serves_without_reaching_out(sets, tmp_path, make):
    path, data = make(tmp_path)
    path.write_bytes(data)
    ((_, place, what),) = fetch.fetch(tmp_path / "data", "pinned", offline=True, given=path)
    assert place.read_bytes() == INSIDE
    assert what == f"taken from {path.name}"
    assert sets.asked == []


def test_a_wrong_file_at_hand_is_refused(sets, tmp_path):
    wrong = tmp_path / "inner.txt"
    wrong.write_bytes(b"else")
    with pytest.raises(ConfigError, match="not the published file"):
        fetch.fetch(tmp_path / "data", "pinned", given=wrong)
    with pytest.raises(ConfigError, match="holds no file of hand"):
        fetch.fetch(tmp_path / "data", "hand", given=wrong)
    with pytest.raises(ConfigError, match="no such file"):
        fetch.fetch(tmp_path / "data", "hand", given=tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "options", "told"), [
    ("pinned", {"offline": True}, "--offline reaches nowhere"), ("hand", {}, "no address that anybody may fetch"),
    ("pined", {}, 'Did you mean "pinned"?')])
def test_what_cannot_be_fetched_says_how_else(sets, tmp_path, name, options, told):
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        fetch.fetch(tmp_path, name, **options)


def test_the_commands(sets, tmp_path, capsys):
    assert fedenergy("data", "fetch", "pinned", "--data", tmp_path) == 0
    assert "licence: l; cite: c" in capsys.readouterr().out
    assert fedenergy("data", "verify", "--data", tmp_path) == 0
    assert capsys.readouterr().out.startswith(f"ok        pinned/inner.txt  {SHA}")
    assert fedenergy("data", "list", "--data", tmp_path) == 0
    assert "here: " in capsys.readouterr().out
    (tmp_path / "pinned/inner.txt").write_bytes(b"else")
    assert fedenergy("data", "verify", "pinned", "--data", tmp_path) == 1
    assert fedenergy("data", "verify", "hand", "--data", tmp_path) == 1
    assert fedenergy("data", "fetch", "nothing", "--data", tmp_path) == 2


def test_the_real_catalogue_has_a_licence_and_a_citation_for_each_set_and_https_addresses():
    for one in catalogue.SETS.values():
        assert one.licence
        assert one.citation
        for item in one.items:
            assert all(url.startswith("https://") for url in item.urls)
            assert len(item.sha256) in (0, 64)


def test_the_files_of_the_data_folder_that_are_pinned_are_the_published_ones(data_dir):
    verdicts = {one.path: one for one in catalogue.verify(data_dir)}
    pinned = [item.path for one in catalogue.SETS.values() for item in one.items if item.sha256]
    assert {path: verdicts[path].verdict for path in pinned} == dict.fromkeys(pinned, "ok")
