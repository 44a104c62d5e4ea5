"""Hooks that pytest calls. Nothing here imports torch or numpy, or starts a process."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_amp import config as options
from pytest_amp import hookspecs, markers
from pytest_amp.fixtures import (  # noqa: F401  # pytest finds fixtures in the plugin's namespace
    NAMES,
    _amp_state_guard,
    _amp_target,
    amp,
    amp_autocast,
    amp_device,
    amp_dtype,
    amp_precision,
    amp_scaler,
    concerned,
)
from pytest_amp.run import workers
from pytest_amp.run.controller import (  # noqa: F401  # hooks, as the fixtures
    Recorder,
    pytest_configure_node,
    pytest_testnodedown,
    pytest_xdist_setupnodes,
)
from pytest_amp.run.session import KEY, AmpSession


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that projects and back ends may implement."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and ini keys."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Refuse a conftest.py that ends the process as a green run."""
    try:
        yield
    except SystemExit as ended:
        from pytest_amp.run.removed import refuse_exit

        refuse_exit(ended, early_config)
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Return another status for a run that ended as green before it was judged, or whose status was changed later."""
    status = yield
    session = config.stash.get(KEY, None)
    runs = not (config.option.help or config.option.version or workers.is_worker(config))
    if status == 0 and runs and (session is None or session.conclusion.status or session.options.explicit):
        from pytest_amp.run.removed import expect_judged

        options_of_run = None if session is None else session.options
        status = expect_judged(config, options_of_run, None if session is None else session.conclusion.status)
    return status


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and refuse invalid ones before anything runs."""
    for line in markers.LINES:
        config.addinivalue_line("markers", line)
    if config.option.help or config.option.version:
        return  # --help must survive any invalid configuration
    names: tuple[str, ...] = ()
    if config.hook.pytest_amp_devices.get_hookimpls():
        from pytest_amp.failure import AmpUsageError
        from pytest_amp.run.resolution import added_device_types

        try:
            names = tuple(device_type.name for device_type in added_device_types(config))
        except AmpUsageError as error:
            raise pytest.UsageError(str(error)) from None
        except ValueError as error:
            raise pytest.UsageError(f"the hook pytest_amp_devices: {error}") from None
        except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
            raise pytest.UsageError(hookspecs.raised_in("pytest_amp_devices", error)) from None
    session = config.stash[KEY] = AmpSession(config, options.read(config, names), names)
    config.pluginmanager.register(Recorder(session), "amp-recorder")
    _ = session.baseline
    if not workers.is_worker(config):
        from pytest_amp.run.controller import check_before_start

        check_before_start(session.options, config)
        if session.options.record is not None or session.options.report:
            from pytest_amp.run.termination import end_as_interrupted

            config.add_cleanup(end_as_interrupted(session.ending, session.messages))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with an amp fixture over device and dtype."""
    marked = any(metafunc.definition.get_closest_marker(name) is not None for name in ("amp", "amp_long"))
    uses_amp, session = concerned(metafunc.fixturenames), metafunc.config.stash[KEY]
    named = NAMES.intersection(metafunc.fixturenames)
    if named and not uses_amp:
        from pytest_amp.run.parametrization import check_own

        check_own(metafunc, session.messages, named)
    if not uses_amp and not marked:
        return
    if session.targets.torch_problem is not None:
        session.targets.refuse(session.targets.torch_problem)
        return
    session.selection.active = True
    from pytest_amp.run.parametrization import check_marker, parametrize

    if uses_amp:
        parametrize(metafunc, session.targets, session.messages)
    else:
        check_marker(metafunc, session.messages)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, object, object]:
    """Count the tests that a function becomes, or note a function or a class that becomes none."""
    items = yield
    session = collector.config.stash[KEY]
    if not items and name.startswith(("test_", "Test")):
        from pytest_amp.run.left_out import note_object

        note_object(collector, obj, session.collected)
    elif items and session.selection.active:
        from pytest_amp.run.selection import count_made

        count_made(items, session.selection)
    return items


@pytest.hookimpl(wrapper=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Generator[None, bool | None, bool | None]:
    """Note an ignored folder or file of a family."""
    ignored = yield
    if ignored and (collection_path.suffix == ".py" or (collection_path / "__init__.py").is_file()):
        from pytest_amp.run.left_out import note_ignored

        note_ignored(collection_path, config, config.stash[KEY].collected)
    return ignored


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note a collector that skips itself, and a module or a class without a test."""
    report = yield
    session = collector.config.stash[KEY]
    if report.skipped:
        from pytest_amp.run.left_out import note_skipped

        note_skipped(collector, report, session.selection, session.messages)
    elif (
        report.passed
        and not report.result
        and not session.targets.refused
        and isinstance(collector, (pytest.Module, pytest.Class))
    ):
        from pytest_amp.run.left_out import note_empty

        note_empty(collector, session.collected)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, list[object], list[object]]:
    """Note a file of a family from which nothing is collected."""
    collectors = yield
    if not collectors and file_path.name.startswith("test_") and file_path.suffix == ".py":
        from pytest_amp.run.left_out import note_file

        note_file(file_path, parent.config, parent.config.stash[KEY].collected)
    return collectors


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Deselect tests that do not exist on their device, order the rest, and raise the usage errors of collection.

    Runs last, so that only tests that ``-k``, ``-m`` and other plugins have left are considered.
    """
    amp_session = session.config.stash[KEY]
    messages, collected = amp_session.messages, amp_session.collected
    if collected.left_out:
        from pytest_amp.run.left_out import judge

        judge(session, collected, messages)
    if not amp_session.selection.active and not messages.usage_errors:
        return
    if not messages.usage_errors:
        from pytest_amp.run.provenance import note_devices, note_families
        from pytest_amp.run.selection import folders_of, keep_together, select

        if amp_session.options.speed == "gate":
            _ = amp_session.targets.speed  # validate an explicit --amp-speed=gate, even without a test of speed
        dropped = select(items, amp_session.options.tier, amp_session.targets, messages)
        amp_session.selection.deselected.update(reason for _, reason in dropped)
        note_devices(amp_session.facts, amp_session.targets.low)
        note_families(amp_session.facts, folders_of(items))
        if dropped:
            collected.dropped += [item for item, _ in dropped]
            session.config.hook.pytest_deselected(items=[item for item, _ in dropped])
        keep_together(items)
    if messages.usage_errors:
        items.clear()
        if not workers.is_worker(session.config):
            raise pytest.UsageError("\n".join(messages.usage_errors))
        # The controller ends the run: an error raised in a worker would end with another status.


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note each amp test, before it can be deselected or removed."""
    session = item.config.stash[KEY]
    if session.selection.active and concerned(getattr(item, "fixturenames", ())):
        session.collected.items.append(item)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note deselected tests, to distinguish them from tests that are removed silently."""
    if items:
        items[0].config.stash[KEY].collected.deselected += items


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the selected tests."""
    amp_session = session.config.stash[KEY]
    amp_session.collected.ended = True
    if amp_session.selection.active:
        from pytest_amp.run.selection import count_selected

        count_selected(session.items, amp_session.selection, amp_session.collected)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Note whether the function is called: a hook that answers first may not call it."""
    if not pyfuncitem.config.stash[KEY].selection.active:
        return (yield)
    from pytest_amp.run.false_passes import noting

    function = pyfuncitem.obj
    pyfuncitem.obj = noting(pyfuncitem)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = function


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the test's identity and observations; complete the messages of failures."""
    session = item.config.stash[KEY]
    if not session.selection.active:
        report = yield
        if session.options.explicit and "amp" in getattr(item, "fixturenames", ()):
            from pytest_amp.run.false_passes import expect_no_mock

            expect_no_mock(item, report)
        return report
    from pytest_amp.run.false_passes import expect_called, expect_finite, expect_no_mock
    from pytest_amp.run.machine_faults import tell_fault
    from pytest_amp.run.outcomes import accept_known, attach, complete_failure
    from pytest_amp.run.unreceived import fail_unreceived, say_failed

    account, messages = session.isolation.account, session.messages
    complete_failure(item, call, session.options, session.baseline)
    report = yield
    expect_called(item, report)
    expect_no_mock(item, report)
    expect_finite(item, report)
    if account is not None:
        fail_unreceived(item, call, report, account, messages)
    attach(item, report, session.selection, session.facts)
    say_failed(item, call, report)
    accept_known(item, call, report, session.options.known, messages)
    tell_fault(item, call, report, session.isolation)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Note tests removed since collection, and keep an account of failures while tests run in this process."""
    amp_session = session.config.stash[KEY]
    active, messages, limits = amp_session.selection.active, amp_session.messages, amp_session.options.timeout
    if active:
        from pytest_amp.account import Account
        from pytest_amp.run.removed import note_removed

        note_removed(session, amp_session.collected, amp_session.selection, messages)
        amp_session.isolation.account = Account()
    if not (active or limits[1]):
        return (yield)
    from pytest_amp.run.time_limits import watched
    from pytest_amp.run.verdict import conclude_hang

    with watched(limits, session.config, messages, partial(conclude_hang, amp_session)):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None]:
    """Judge the run as a whole, and write the requested files; a worker reports to its controller.

    Innermost of the wrappers: after pytest-xdist has ended its workers, before the summary is printed.
    """
    yield
    amp_session = session.config.stash[KEY]
    account, amp_session.isolation.account = amp_session.isolation.account, None
    if account is not None:
        from pytest_amp.run.unreceived import close

        close(account, amp_session.messages)
    if workers.is_worker(session.config):
        session.config.workeroutput["amp"] = amp_session.to_controller()  # type: ignore[attr-defined]
    elif amp_session.concerned or amp_session.finished_nodes or amp_session.options.explicit:
        from pytest_amp.run.verdict import finish

        session.exitstatus = amp_session.conclusion.status = finish(amp_session, int(exitstatus))


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Count an expected failure that passes separately from failures: the run is red, and torch has fixed a fault."""
    if report.when != "call" or not report.failed:
        return None
    from pytest_amp.run.outcomes import is_fixed

    return ("fixed upstream", "U", ("FIXED UPSTREAM", {"yellow": True})) if is_fixed(report) else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the values of the options, with their sources."""
    session = config.stash.get(KEY, None)
    if session is None or not session.options.explicit:
        return []
    from pytest_amp.data_files.releases import installed_torch
    from pytest_amp.report.terminal import header

    return header(session.options, installed_torch())


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return the devices of the run, and whether speed is timed."""
    session = config.stash[KEY]
    if not session.selection.active or workers.is_controller(config):
        return []
    from pytest_amp.report.terminal import devices

    return devices(session.targets.low, session.targets.speed_reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the summary: executed tests, tests not run, differences, and written files."""
    session = config.stash[KEY]
    usage_errors = session.messages.usage_errors
    if workers.is_controller(config):
        for message in usage_errors:
            sys.stderr.write(f"ERROR: {message}\n")
    if session.concerned and not usage_errors:
        from pytest_amp.report.terminal import summarize
        from pytest_amp.run.freeze import freeze

        summarize(freeze(session), terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add facts that times depend on besides the host: torch, card, driver, CUDA, cuDNN."""
    session = config.stash[KEY]
    if session.selection.active:
        machine_info["amp"] = dict(session.facts.provenance)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_compare_machine_info(config: pytest.Config, compared_benchmark: dict[str, Any]) -> None:
    """Remove these facts from earlier times: the comparison runs before this run has a device, so they would differ."""
    earlier = compared_benchmark["machine_info"].pop("amp", None)
    if isinstance(earlier, dict):
        config.stash[KEY].facts.earlier_times.append(earlier)
