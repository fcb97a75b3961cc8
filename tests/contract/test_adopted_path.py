"""Paths that a job may adopt."""

from __future__ import annotations

import pytest

from supervisor.contract.errors import UserError
from supervisor.contract.job.adopted_path import check_adopted, holds_program


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("/tmp/my_working_dir", "/tmp/my_working_dir"),
        ("//tmp/./a//b/", "/tmp/a/b"),
        ("train_dir", "train_dir"),
        ("./out/", "out"),
        ("/devices/x", "/devices/x"),
        ("etc", "etc"),
    ],
)
def test_a_path_of_the_program_is_taken(given: str, taken: str) -> None:
    assert check_adopted(given) == taken


@pytest.mark.parametrize(
    "given",
    [
        "",
        "/",
        "//",
        ".",
        "./",
        "..",
        "a/../../b",
        "/tmp",
        "/srv/",
        "/mnt",
        "/var/tmp",
        "/tmp/..",
        "/etc",
        "/etc/x",
        "//etc/x",
        "/proc/self",
        "/sys",
        "/dev/shm/x",
        "/usr/share/x",
        "/run/x",
        "~/x",
        "$HOME/x",
        "{checkpoint_dir}/x",
        "/a\nb",
        "/" + "x" * 400,
    ],
)
def test_what_is_the_systems_or_not_plain_is_refused(given: str) -> None:
    with pytest.raises(UserError):
        check_adopted(given)


@pytest.mark.parametrize("path", ["/home/me/train", "/home/me/train/", "/home/me"])
def test_the_directory_of_the_program_itself_cannot_be_adopted(path: str) -> None:
    assert "{output_dir}" in holds_program(path, "/home/me/train")


@pytest.mark.parametrize("path", ["/home/me/train/saves", "/home/me/tra", "saves", "/tmp/x"])
def test_other_directories_can(path: str) -> None:
    assert holds_program(path, "/home/me/train") == ""
