# SPDX-License-Identifier: GPL-2.0-only
"""pytest side of the harness: a fresh guest per scenario, its logs kept, and the dmesg gate after each."""

import re
from pathlib import Path

import pytest

from harness.tier import DEBUG, RESULTS
from harness.vm import Vm, VmDied


class GateFailure(AssertionError):
    """The guest's kernel complained during a scenario that itself went through."""


def pytest_configure(config):
    config.addinivalue_line("markers", "vm(modules=..., args=..., memory_mb=..., cpus=...): how the guest is booted")
    config.addinivalue_line("markers", "gate_must_find(kind): passes only if the dmesg gate fails it with this kind")
    config.addinivalue_line("markers", "stock: about the stock kernel, not collected in the debug tier")
    config.addinivalue_line("markers", "debug: wants the debug kernel, not collected without it")
    config.addinivalue_line("markers", "leaks: memory that nothing refers to any more fails it (debug kernel)")


def pytest_collection_modifyitems(config, items):
    """Scenarios that make no sense on this tier's kernel are not there, rather than skipped."""
    foreign = "stock" if DEBUG else "debug"
    gone = [item for item in items if item.get_closest_marker(foreign)]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


def workdir(item):
    """Folder of a scenario's logs: build/tests/<file>.<test>."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{Path(item.fspath).stem}.{item.name}".removeprefix("test_"))
    return RESULTS / name.strip("-")


@pytest.fixture
def vm(request):
    """A fresh guest. The mark `vm` sets how it is booted; see harness.vm.Vm."""
    options = {}
    for mark in reversed(list(request.node.iter_markers("vm"))):
        options |= mark.kwargs
    if DEBUG and request.node.get_closest_marker("leaks"):
        options["find_leaks"] = True
    try:
        guest = Vm(workdir(request.node), **options)
    except VmDied as died:
        # The emulated machine did not get as far as its first process, be it that it ended or that it hangs: nothing of
        # ours has run in it.
        (workdir(request.node) / "boot.log").write_text(f"{died}\n")
        guest = Vm(workdir(request.node), **options)
    request.node.guests = [guest]
    yield guest
    guest.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """The scenario, and then the gate: also when the scenario failed, for the kernel's complaint is often the cause."""
    wanted = item.get_closest_marker("gate_must_find")
    try:
        result = yield
    except BaseException:
        report_findings(item)
        raise
    findings = report_findings(item)
    if wanted:
        if not any(finding.kind == wanted.args[0] for finding in findings):
            raise GateFailure(f"the dmesg gate overlooked a planted {wanted.args[0]}, it found: {findings}")
    elif findings:
        raise GateFailure("\n".join(map(str, findings)))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Put down at once why a scenario failed: pytest itself says so when the last one has ended."""
    report = yield
    log = workdir(item) / "failure.log"
    if report.failed:
        log.parent.mkdir(parents=True, exist_ok=True)
        parts = [f"{report.when}\n{report.longreprtext}", *(f"--- {name}\n{text}" for name, text in report.sections)]
        log.write_text("\n".join(parts) + "\n")
    elif report.when == "setup":
        log.unlink(missing_ok=True)
    return report


def report_findings(item):
    findings = []
    for guest in getattr(item, "guests", []):
        findings += guest.findings()
        log = guest.dmesg()
        (guest.workdir / "dmesg.log").write_text("\n".join(log) + "\n")
    if findings:
        item.add_report_section("call", "dmesg gate", "\n".join(map(str, findings)))
    return findings
