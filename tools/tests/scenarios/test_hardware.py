# SPDX-License-Identifier: GPL-2.0-only
"""What real HCAs do otherwise than the simplest of fabrics (tools/vfabric/core/src/model/knobs.rs)."""

import pytest

from harness import Apm, Fabric, Fio, Ipoib, Nvme
from harness.wire import REP, Wire
from scenarios.common import ENDS, qps_by_end, storage, use_every_queue, wait_armed, wait_ios, wait_no_qps

# One at a time, so that a failure names its cause.
KNOBS = (
    "retransmit=0",
    "path_mig_events=0",
    "path_mig_events=2",
    "query_swaps=0",
    "timer_stretch=4",
    "ack_delay_us=500",
    "modify_us=100",
    "round_depth=1",
    "port_err_on_join=1",
    "reorder_events=1",
)
# Target ACK delay that a profile's HCAs tell.
ACK_DELAYS = {"plain": 8, "mlx5": 16}


def failover(vm, fabric, ulp, connections):
    """Cut under verified I/O, and what an admin sees of it: nothing. Returns the migrations counted."""
    before = fabric.migrations()["total"]
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(before + 2)
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() == 0
    assert [len(end) for end in qps_by_end(vm)] == [connections, connections]
    return fabric.migrations()["total"] - before


@pytest.mark.parametrize("profile", ["plain", "mlx5"])
@pytest.mark.parametrize("name", ["iser", "srp"])
def test_profiles(vm, name, profile):
    """The same cut on HCAs that behave like the simplest ones and like a whole family ends the same for the ULP."""
    fabric = Fabric(vm, knobs=f"all profile={profile}").up()
    wire = Wire(fabric)
    Apm(vm).up()
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)
    assert {rep.body[26] >> 3 for rep in wire.messages(REP)} == {ACK_DELAYS[profile]}
    assert failover(vm, fabric, ulp, connections) >= 2
    use_every_queue(vm, ulp.device)
    ulp.disconnect()
    wait_no_qps(vm, "vhca1")


def test_each_knob(vm):
    """Each peculiarity alone: armed, cut, migrated, followed by the CM, and gone when disconnected."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, proactive=0, rearm=0).up()
    Ipoib(fabric).up()
    nvme = Nvme(vm, keep_alive=30).serve()
    for knob in KNOBS:
        fabric.control("knob all profile=plain")
        fabric.control(f"knob all {knob}")
        nvme.connect()
        connections = wait_armed(vm)
        moved = failover(vm, fabric, nvme, connections)
        migrated = apm.connections(state="Migrated")
        assert len(migrated) == moved, knob
        # Whatever a query says, the path in use is the second one.
        assert {c["path"].split(":")[0] for c in migrated} == {"2"}, knob
        nvme.disconnect()
        wait_no_qps(vm, "vhca1")
        fabric.join(*ENDS["initiator"])
        fabric.wait_active()


def test_failing_modify(vm):
    """When the HCA refuses a modify the connection fails as it would without us, and the next one works."""
    fabric = Fabric(vm).up()
    Apm(vm).up()
    Ipoib(fabric).up()
    nvme = Nvme(vm).serve()
    refused = 0
    for nth in range(1, 5):
        fabric.control(f"knob vhca0 fail_modify={nth}")
        try:
            nvme.connect()
        except Exception:
            refused += 1
        else:
            nvme.disconnect()
        wait_no_qps(vm, "vhca1")
    fabric.control("knob vhca0 fail_modify=0")
    assert refused > 0
    nvme.connect()
    wait_armed(vm)
    Fio(vm, nvme.device, seconds=1).run().check()
