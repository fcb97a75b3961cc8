"""Environments on a node, by Python's own venv and pip, from wheels of a directory: no network is asked."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from agent.code.unpack import Limits
from agent.environments import install, store
from agent.environments.files import PlainFiles
from agent.environments.install import Installer, Interpreter
from recovery.stores.allowed import AllowedStores
from recovery.stores.open import Stores
from supervisor.contract.errors import BadArchive, NotFound, Refused, Unreachable, UserError
from supervisor.contract.job.spec import EnvironmentRef
from tests.agent.other_users import open_python, own_uid
from tests.environments.site import LOCK, QuickInstaller, Site, is_writable, make_wheel, paths_below

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SAY = "import sys, tiny; print(tiny.VERSION, sys.prefix != sys.base_prefix)"


def say(tree: Path) -> list[str]:
    """The words of a program that runs under the environment."""
    return subprocess.run(
        [tree / "bin/python", "-c", SAY], capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def quick(tmp_path: Path) -> Site:
    return Site(tmp_path, QuickInstaller())


async def test_it_is_made_once_for_all_who_ask_at_once(site: Site) -> None:
    ref = site.lock(make_wheel(site.wheels))
    make_wheel(site.wheels, "other")
    one, two = await asyncio.gather(site.make(ref), site.make(ref))
    assert one == two
    assert say(one) == ["1.0", "True"]
    assert f"{one}/bin/python" in (one / "bin/tiny-say").read_text()
    installed = {path.name.partition("-")[0] for path in one.glob("lib/python*/site-packages/*.dist-info")}
    assert installed == {"tiny"}
    assert not [path for path in paths_below(one) if not path.is_symlink() and is_writable(path)]
    assert site.names() == {one.name, f"{ref.key}.json"}
    # Another life of the agent on this boot believes the record.
    assert await site.make(ref, site.again()) == one


@pytest.mark.slow
async def test_a_wheel_of_another_hash_is_refused_with_pips_own_words(site: Site) -> None:
    line = make_wheel(site.wheels)
    make_wheel(site.wheels, **{"tiny.py": "VERSION = 'evil'\n"})
    with pytest.raises(BadArchive, match=r"pip install` failed:.*DO NOT MATCH THE HASHES") as caught:
        await site.make(site.lock(line))
    assert "tiny" in str(caught.value)
    assert site.names() == set()


@pytest.mark.slow
async def test_a_lock_that_leaves_out_what_its_packages_need_is_refused(site: Site) -> None:
    make_wheel(site.wheels, "other")
    with pytest.raises(Refused, match=r"pip install` failed:.*other \(from tiny"):
        await site.make(site.lock(make_wheel(site.wheels, needs="other")))


@pytest.mark.slow
async def test_a_package_that_the_wheelhouse_lacks_is_named(site: Site) -> None:
    line = make_wheel(site.wheels)
    (site.wheels / "tiny-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Refused, match=r"No matching distribution found for tiny==1\.0") as caught:
        await site.make(site.lock(line))
    assert not isinstance(caught.value, BadArchive)


async def test_a_wheelhouse_that_is_not_here_is_named(quick: Site) -> None:
    ref = replace(quick.lock(make_wheel(quick.wheels)), wheelhouse="file:///no/such")
    with pytest.raises(NotFound, match="/no/such is no directory on this node"):
        await quick.make(ref)


async def test_only_allowed_places_are_read(quick: Site) -> None:
    ref = quick.lock(make_wheel(quick.wheels))
    quick.node._files = PlainFiles(Stores(allowed=AllowedStores(("file:///mnt/ours",))))
    with pytest.raises(UserError, match="is in no store"):
        await quick.make(ref)


async def test_a_lock_that_has_changed_since_the_submit_is_refused(quick: Site) -> None:
    ref = quick.lock(make_wheel(quick.wheels))
    quick.lock(make_wheel(quick.wheels, "other"))
    with pytest.raises(Refused, match="is not the lock file that the job was submitted with"):
        await quick.make(ref)


async def test_a_job_does_not_fail_of_what_another_one_brings(quick: Site, tmp_path: Path) -> None:
    ref = quick.lock(make_wheel(quick.wheels))
    other = tmp_path / "other"
    other.mkdir()
    (other / LOCK).write_text("tiny==1.0\n")
    with pytest.raises(Refused):
        await quick.node.ensure(ref, str(other))
    assert (await quick.make(ref)).is_dir()
    assert Path(await quick.node.ensure(ref, str(other))).is_dir(), "it is there now, whoever asks"


async def test_a_failure_is_told_again_without_another_try_for_a_while(
    quick: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = quick.lock(make_wheel(quick.wheels))
    (quick.work / "requirements.lock").rename(quick.work / "away")
    with pytest.raises(NotFound):
        await quick.make(ref)
    (quick.work / "away").rename(quick.work / "requirements.lock")
    with pytest.raises(NotFound):
        await quick.make(ref)
    monkeypatch.setattr(store, "AGAIN_S", 0.0)
    assert (await quick.make(ref, quick.again())).is_dir()


async def test_an_interpreter_that_is_not_here_is_named(quick: Site) -> None:
    ref = replace(quick.lock(make_wheel(quick.wheels)), python="python2.99")
    with pytest.raises(Refused, match=r"there is no python2\.99 in the PATH"):
        await quick.make(ref)


async def test_a_call_waits_for_a_part_of_the_work_alone(
    quick: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.0)
    ref = quick.lock(make_wheel(quick.wheels))
    with pytest.raises(Unreachable, match="are being installed"):
        await quick.node.ensure(ref, str(quick.work))
    assert (await quick.make(ref)).is_dir()


@pytest.mark.slow
async def test_an_index_that_does_not_answer_is_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = site.lock(make_wheel(site.wheels), wheelhouse=False)
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(Unreachable, match="tiny"):
        await site.make(ref)


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from the file.\n  a\n", BadArchive, "FROM"),
        (
            "ERROR: In --require-hashes mode, all requirements must have their versions pinned\n",
            BadArchive,
            "",
        ),
        ("WARNING: Retrying (Retry(total=1)) after connection broken by x\nERROR: last", Unreachable, "last"),
        ("a\nb\nERROR: No matching distribution found for a==1\n", Refused, "a | b | ERROR: No matching"),
        ("", Refused, "it says nothing"),
    ],
)
async def test_what_pip_says_tells_who_is_to_blame(
    running: tuple[Installer, Path], said: str, kind: type[Exception], told: str
) -> None:
    installer, scratch = running
    program = "import sys; print(sys.argv[1], end=''); sys.exit(1)"
    with pytest.raises(kind) as caught:
        await installer._run([sys.executable, "-c", program, said], scratch, scratch)
    assert type(caught.value) is kind
    assert told.lower() in str(caught.value).lower()


@pytest.fixture
def running(tmp_path: Path) -> tuple[Installer, Path]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Installer(), scratch


async def test_an_environment_that_grows_without_end_is_given_up(
    running: tuple[Installer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installer, scratch = running
    monkeypatch.setattr(install, "LOOK_S", 0.05)
    monkeypatch.setattr(install, "MOST_BYTES", 1 << 20)
    fill = "import time; open('bomb', 'wb').write(bytes(4 << 20)); time.sleep(600)"
    with pytest.raises(BadArchive, match="takes more than"):
        await installer._run([sys.executable, "-c", fill], scratch, scratch)


async def test_a_child_that_does_not_end_is_given_up(
    running: tuple[Installer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installer, scratch = running
    monkeypatch.setattr(install, "LOOK_S", 0.05)
    monkeypatch.setattr(install, "LONGEST_S", 0.0)
    with pytest.raises(Unreachable, match="has not ended within"):
        await installer._run([sys.executable, "-c", "import time; time.sleep(600)"], scratch, scratch)


async def test_children_see_no_variables_of_the_agents_own(
    running: tuple[Installer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installer, scratch = running
    monkeypatch.setenv("TFSUP_SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/evil")
    monkeypatch.setenv("PIP_INDEX_URL", "http://index")
    said = await installer._run(
        [sys.executable, "-c", "import os; print(sorted(os.environ))"], scratch, scratch
    )
    assert "PIP_INDEX_URL" in said
    assert "TFSUP_SECRET" not in said
    assert "PYTHONPATH" not in said


seen: set[int] = set()
"""The owners of what children have written."""


class Noting(Installer):
    """Notes the owners of an environment before the agent takes it over."""

    def _take_over(self, tree: Path) -> None:
        seen.update(each.lstat().st_uid for each in paths_below(tree))
        super()._take_over(tree)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as another user")
async def test_pip_runs_as_a_user_of_no_job_and_the_result_belongs_to_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uid = own_uid(61_000)
    monkeypatch.setattr(install, "_OWN", Interpreter(os.path.realpath(open_python()), "3.11"))
    seen.clear()
    with tempfile.TemporaryDirectory(prefix="environments-") as root:
        Path(root).chmod(0o711)
        site = Site(Path(root), Noting((uid, uid)))
        site.wheels.chmod(0o700)
        made = await site.make(site.lock(make_wheel(site.wheels)))
        assert {each.lstat().st_uid for each in (made, *paths_below(made))} == {0}
        assert say(made) == ["1.0", "True"]
    assert seen == {uid}


# What is kept.


async def make_many(quick: Site, count: int) -> list[EnvironmentRef]:
    refs = []
    for number in range(count):
        ref = quick.lock(make_wheel(quick.wheels, f"p{number}"))
        made = await quick.make(ref)
        refs.append(ref)
        os.utime(quick.directory / f"{ref.key}.json", (number, number))
        assert made.is_dir()
    return refs


async def test_unused_environments_go_but_for_those_used_last(quick: Site) -> None:
    refs = await make_many(quick, store.KEPT_UNUSED + 3)
    await quick.node.keep(frozenset({refs[0].key}))
    kept = {name.partition(".")[0] for name in quick.names() if name.endswith(".json")}
    assert kept == {refs[0].key, *(ref.key for ref in refs[-store.KEPT_UNUSED :])}
    assert {name[:64] for name in quick.names()} == kept
    assert (await quick.make(refs[0])).is_dir()


async def test_what_a_crash_has_left_goes_and_what_is_in_use_stays(quick: Site) -> None:
    (ref,) = await make_many(quick, 1)
    made = await quick.make(ref)
    half = quick.directory / f"{ref.key}-00000000"
    for each in (half, quick.directory / f"{half.name}.tmp"):
        each.mkdir()
    foreign = quick.directory / "notes"
    foreign.mkdir()
    await quick.again().keep(frozenset({ref.key}))
    assert quick.names() == {made.name, f"{ref.key}.json", "notes"}


async def test_after_a_boot_it_is_compared_with_its_record_once(quick: Site) -> None:
    (ref,) = await make_many(quick, 1)
    made = await quick.make(ref)
    quick.boot_id = "boot2"
    assert await quick.make(ref, quick.again()) == made
    made.chmod(0o755)
    (made / "p0.py").unlink()
    (made / "p0.py").write_text("torn")
    assert await quick.make(ref, quick.again()) == made, "it was compared on this boot already"
    quick.boot_id = "boot3"
    again = await quick.make(ref, quick.again())
    assert again != made
    assert (again / "p0.py").read_text() == "1.0"


# Archives.


def packed(root: Path, *members: tuple[str, str, str], version: str = "") -> tuple[str, str]:
    """An archive, its URI and sha256. Members are path, kind (file, link, program or device), and content."""
    config = f"home = /elsewhere\nversion = {version or f'{PYTHON}.1'}\n"
    path = root / "venv.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in (("./pyvenv.cfg", "file", config), *members):
            info = tarfile.TarInfo(name)
            if kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, content
            elif kind == "device":
                info.type = tarfile.CHRTYPE
            else:
                info.size, info.mode = len(content), 0o755 if kind == "program" else 0o644
            archive.addfile(info, io.BytesIO(content.encode()) if info.size else None)
    return path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest()


PACKED = (
    ("./bin/python3", "link", "/opt/elsewhere/python3"),
    ("./bin/python", "link", "python3"),
    (
        f"./lib/python{PYTHON}/site-packages/tiny.py",
        "file",
        "VERSION = 'packed'\n",
    ),
)


async def test_a_packed_environment_is_led_to_the_nodes_own_python(site: Site) -> None:
    uri, digest = packed(site.root, *PACKED)
    made = await site.make(EnvironmentRef(digest, archive=uri))
    assert say(made) == ["packed", "True"]
    site.boot_id = "boot2"
    assert await site.make(EnvironmentRef(digest, archive=uri), site.again()) == made


async def test_one_with_an_interpreter_of_its_own_is_left_as_it_is(site: Site) -> None:
    path = site.root / "own.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("bin/python")
        info.size, info.mode = 10, 0o755
        archive.addfile(info, io.BytesIO(b"#!/bin/sh\n"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    made = await site.make(EnvironmentRef(digest, archive=path.as_uri()))
    assert (made / "bin/python").read_bytes() == b"#!/bin/sh\n"


async def test_an_archive_of_another_content_is_refused(site: Site) -> None:
    uri, digest = packed(site.root, *PACKED)
    with pytest.raises(Refused, match=f"has the sha256 {digest}, not {'0' * 64}"):
        await site.make(EnvironmentRef("0" * 64, archive=uri))
    assert site.names() == set()


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("../evil", "file", "x"), "a member with the name"),
        (("/etc/evil", "file", "x"), "a member with the name"),
        (("./bin/pip", "link", "/etc/passwd"), "leads outside"),
        (("lib", "link", "../.."), "leads outside"),
        (("./bin/python", "link", "../../../etc/passwd"), "twice|leads outside"),
        (("null", "device", ""), "which is no plain file"),
        (("./bin/python/x", "file", "x"), "a directory bin/python"),
    ],
)
async def test_hostile_archives_are_refused_and_leave_nothing(
    site: Site, member: tuple[str, str, str], why: str
) -> None:
    uri, digest = packed(site.root, ("./bin/activate", "file", ""), member)
    with pytest.raises(BadArchive, match=why):
        await site.make(EnvironmentRef(digest, archive=uri))
    assert site.names() == set()


async def test_bombs_and_other_formats_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, digest = packed(site.root, ("big", "file", "x" * 100_000))
    monkeypatch.setattr("agent.environments.packed._LIMITS", Limits(1000, 1))
    with pytest.raises(BadArchive, match=r"unpacks to more|more than 1 members"):
        await site.make(EnvironmentRef(digest, archive=uri))
    gnu = site.root / "gnu.tar.gz"
    with tarfile.open(gnu, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("pyvenv.cfg"))
    ref = EnvironmentRef(hashlib.sha256(gnu.read_bytes()).hexdigest(), archive=gnu.as_uri())
    with pytest.raises(BadArchive, match="packed with `tar -C VENV --format=posix"):
        await site.make(ref)
    plain = site.root / "plain.tar.gz"
    plain.write_bytes(b"PK\x03\x04")
    ref = EnvironmentRef(hashlib.sha256(plain.read_bytes()).hexdigest(), archive=plain.as_uri())
    with pytest.raises(BadArchive, match="the archive is damaged"):
        await site.make(ref)


async def test_another_version_of_python_is_told(site: Site) -> None:
    uri, digest = packed(site.root, *PACKED, version="2.7.18")
    with pytest.raises(Refused, match=r"was made with Python 2\.7, and this node's \S+ is") as caught:
        await site.make(EnvironmentRef(digest, archive=uri))
    assert not isinstance(caught.value, BadArchive)


async def test_an_archive_of_something_else_is_refused_with_advice(site: Site) -> None:
    path = site.root / "other.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("venv/pyvenv.cfg"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(BadArchive, match=r"neither pyvenv\.cfg nor bin/python at its top"):
        await site.make(EnvironmentRef(digest, archive=path.as_uri()))


def compressed(root: Path, uri: str) -> Path:
    """The archive that `packed` has made, by zstd."""
    plain = gzip.decompress((root / "venv.tar.gz").read_bytes())
    path = root / "venv.tar.zst"
    path.write_bytes(subprocess.run(["zstd", "-qc"], input=plain, capture_output=True, check=True).stdout)
    assert uri.endswith("/venv.tar.gz")
    return path


def by_zstd(path: Path) -> EnvironmentRef:
    return EnvironmentRef(hashlib.sha256(path.read_bytes()).hexdigest(), archive=path.as_uri())


async def test_an_archive_of_zstd_is_made_by_the_nodes_own(site: Site) -> None:
    path = compressed(site.root, packed(site.root, *PACKED)[0])
    made = await site.make(by_zstd(path))
    assert say(made) == ["packed", "True"]
    assert site.names() == {made.name, f"{by_zstd(path).key}.json"}


async def test_hostile_archives_of_zstd_are_refused_as_others_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compressed(
        site.root, packed(site.root, ("./bin/activate", "file", ""), ("../evil", "file", "x"))[0]
    )
    with pytest.raises(BadArchive, match="a member with the name"):
        await site.make(by_zstd(path))
    whole = path.read_bytes()
    for content in (whole[:-10], b"PK\x03\x04", whole + b"more", b""):
        path.write_bytes(content)
        with pytest.raises(BadArchive, match=r"`zstd` failed: (zstd: )?archive ?: "):
            await site.make(by_zstd(path))
    path = compressed(site.root, packed(site.root, ("big", "file", "x" * 100_000))[0])
    monkeypatch.setattr("agent.environments.packed._LIMITS", Limits(1000, 1))
    with pytest.raises(BadArchive, match="unpacks to more"):
        await site.make(by_zstd(path))
    assert site.names() == set()


def zeros_by_zstd(root: Path, size: int) -> Path:
    path = root / "venv.tar.zst"
    with path.open("wb") as file:
        command = f"head -c {size} /dev/zero | zstd -q1"
        subprocess.run(["sh", "-c", command], stdout=file, check=True)
    return path


async def test_a_bomb_of_zstd_is_given_up_while_it_grows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros: where they were left out of the file, its growth would not be seen."""
    monkeypatch.setattr(install, "MOST_BYTES", 32 << 20)
    monkeypatch.setattr(install, "LOOK_S", 0.02)
    with pytest.raises(BadArchive, match="takes more than"):
        await site.make(by_zstd(zeros_by_zstd(site.root, 1 << 30)))
    assert site.names() == set()


async def test_what_zstd_unpacks_is_counted_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "MOST_BYTES", 300 << 20)
    monkeypatch.setattr(install, "LOOK_S", 0.005)
    with pytest.raises(BadArchive) as told:
        await site.make(by_zstd(zeros_by_zstd(site.root, 256 << 20)))
    assert "takes more than" not in str(told.value)


async def test_a_node_without_zstd_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(site.root, packed(site.root, *PACKED)[0])
    monkeypatch.setenv("PATH", str(site.root))
    with pytest.raises(Refused, match="there is no zstd in the PATH of this node's agent") as told:
        await site.make(by_zstd(path))
    assert not isinstance(told.value, BadArchive)
