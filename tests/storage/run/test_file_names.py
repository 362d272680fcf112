"""A file in a folder that has a second name by a link has one name."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.run.file_names import absolute, link_is_made


def test_a_link_that_the_script_has_made_is_followed_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for name in ("latest", "data"):
        (tmp_path / name).symlink_to("one")

    link_is_made(str(tmp_path / "latest"))

    assert absolute(str(tmp_path / "latest" / "log.txt")) == str(tmp_path / "one" / "log.txt")
    assert absolute(str(tmp_path / "data" / "log.txt")) == str(tmp_path / "data" / "log.txt")
    assert absolute(str(tmp_path / "latest")) == str(tmp_path / "latest")


def test_a_link_that_points_elsewhere_now_is_followed_there(tmp_path: Path) -> None:
    link = tmp_path / "newest"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link_is_made(str(link))

    assert absolute(str(link / "log.txt")) == str(tmp_path / "two" / "log.txt")
