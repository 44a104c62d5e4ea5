"""--amp-known, which does nothing yet, and so is refused."""

from __future__ import annotations

from tests.project import Project, refused


def test_it_is_refused(project: Project) -> None:
    project.write(test_it="def test_it():\n    pass")
    project.file("known.toml", "")
    problem = "this option is not available yet in this version; valid: leave it out"
    assert refused(project.here("--amp-known=known.toml")) == f"--amp-known (command line): {problem}"
    project.file("pytest.ini", "[pytest]\namp_known = known.toml\n")
    assert refused(project.here()) == f"amp_known (pytest.ini): {problem}"
