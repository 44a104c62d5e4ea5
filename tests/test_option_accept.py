"""--amp-accept, which does nothing yet, and so is refused."""

from __future__ import annotations

from tests.project import Project, refused


def test_it_is_refused(project: Project) -> None:
    project.write(test_it="def test_it():\n    pass")
    problem = "this option is not available yet in this version; valid: leave it out"
    assert refused(project.here("--amp-accept")) == f"--amp-accept (command line): {problem}"
    project.file("pytest.ini", "[pytest]\namp_accept = true\n")
    assert refused(project.here()) == f"amp_accept (pytest.ini): {problem}"
    project.file("pytest.ini", "[pytest]\namp_accept = false\n")
    assert project.here().ret == 0
