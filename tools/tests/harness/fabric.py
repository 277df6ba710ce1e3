# SPDX-License-Identifier: GPL-2.0-only
"""The software fabric in the guest, with a subnet manager on it."""

import re
from contextlib import suppress

DEBUGFS = "/sys/kernel/debug/vfabric"
OSM_LOG = "/tmp/opensm.log"
OSM_CONF = "/tmp/opensm.conf"

# NodeGUID of the topology's first node; each further node is 0x100 higher, an HCA's port p is p higher.
GUID_BASE = 0x0002C90300000100


class Fabric:
    """Loads vfabric with a topology and runs OpenSM on it.

    `topology` is "rails" or the text of one. `sm` is the HCA whose port 1 OpenSM binds to. `subnet_timeout` is the
    OpenSM option: the lifetime of every path is 4.096 us x 2^subnet_timeout (18, OpenSM's default, makes a QP's retries
    take 17.7 s). `knobs` sets HCAs before there are devices ("all profile=mlx5"); later there is control("knob ...").
    """

    module = "vfabric"

    def __init__(self, vm, topology="rails", sm="vhca2", subnet_timeout=12, knobs=None):
        self.vm = vm
        self.knobs = knobs
        self.topology = topology
        self.sm = sm
        self.subnet_timeout = subnet_timeout
        self.opensm = None

    def up(self):
        """Load, start OpenSM, wait until every cabled HCA port is ACTIVE. Returns itself."""
        self.load()
        self.start_opensm()
        self.wait_active()
        return self

    def load(self):
        self.vm.modprobe("ib_umad", "ib_cm", "rdma_cm")
        params = {} if self.topology == "rails" else {"topology": self.topology.strip().replace("\n", ";")}
        if self.knobs:
            params["knobs"] = self.knobs
        self.vm.insmod(self.module, **params)

    def unload(self, timeout=60):
        """Stop OpenSM and remove the fabric. The IPoIB interfaces must be down before (see Ipoib.down)."""
        self.stop_opensm()
        self.vm.rmmod(self.module, timeout=timeout)

    # --- subnet manager ----------------------------------------------------------------------------------------

    def start_opensm(self, **options):
        """Start OpenSM; further options are lines of its configuration file."""
        conf = {"subnet_timeout": self.subnet_timeout} | options
        self.vm.write(OSM_CONF, "".join(f"{key} {value}\n" for key, value in conf.items()))
        guid = port_guid(self.vm, self.sm, 1)
        self.opensm = self.vm.spawn(f"exec opensm -g {guid:#x} -F {OSM_CONF} -f {OSM_LOG}")

    def stop_opensm(self):
        if self.opensm is not None:
            self.opensm.kill(15)
            self.opensm.wait()
            self.opensm = None

    def opensm_log(self):
        return self.vm.read(OSM_LOG)

    # --- ports -------------------------------------------------------------------------------------------------

    def port_states(self):
        """State of every HCA port out of sysfs, as {("vhca0", 1): "ACTIVE", ...}."""
        states = {}
        lines = self.vm.out("grep -H . /sys/class/infiniband/*/ports/*/state").splitlines()
        for line in lines:
            match = re.match(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/state:\d+: (\w+)", line)
            if match:
                states[match[1], int(match[2])] = match[3]
        return states

    def wait_state(self, dev, port, state="ACTIVE", timeout=60):
        """Wait until sysfs shows a port in a state (ACTIVE, INIT, DOWN ...)."""
        self.vm.wait_file(f"/sys/class/infiniband/{dev}/ports/{port}/state", rf": {state}\b", timeout)

    def wait_active(self, timeout=60):
        """Wait until all ports of all HCAs are ACTIVE."""
        states = "cat /sys/class/infiniband/*/ports/*/state >/run/ports"
        self.vm.wait_run(f"{states} && [ -s /run/ports ] && ! grep -qv ACTIVE /run/ports", timeout)

    def lid(self, dev, port):
        return int(self.vm.read(f"/sys/class/infiniband/{dev}/ports/{port}/lid"), 16)

    def gid(self, dev, port, index=0):
        """A GID as sysfs prints it (colons)."""
        return self.vm.read(f"/sys/class/infiniband/{dev}/ports/{port}/gids/{index}").strip()

    # --- faults ------------------------------------------------------------------------------------------------

    def control(self, command):
        """Write one command to vfabric's control file; GuestError when it is refused."""
        self.vm.write(f"{DEBUGFS}/control", command + "\n")

    def cut(self, node, port):
        """Take the cable out of a port (given as HCA or switch name and port number)."""
        self.control(f"cut {node}/{port}")

    def join(self, node, port):
        """Put the cable back."""
        self.control(f"join {node}/{port}")

    def blackhole(self, node, port, way="both"):
        """Lose every packet at a port while its link stays up. `way`: in, out or both, as seen from the port."""
        self.control(f"blackhole {node}/{port} {way}")

    def clear(self, node, port):
        """End a blackhole."""
        self.control(f"clear {node}/{port}")

    # --- what the fabric has seen ------------------------------------------------------------------------------

    def ports(self):
        """debugfs `ports`: {"vhca0/1": {"state": "ACTIVE", "lid": "4", ...}, ...}."""
        result = {}
        for line in self.vm.read(f"{DEBUGFS}/ports").splitlines():
            name, _, rest = line.partition(" ")
            result[name] = fields(rest)
        return result

    def qps(self):
        """debugfs `qps`: one dict per RC QP; numbers are converted to int."""
        return [numbers(fields(line)) for line in self.vm.read(f"{DEBUGFS}/qps").splitlines() if line.strip()]

    def migrations(self):
        """Path migrations as the fabric counted them: {"total": n, "by_exhaustion": ..., "by_peer": ..., ...}."""
        first = self.vm.read(f"{DEBUGFS}/migrations").splitlines()[0]
        return numbers(fields(first))

    def wait_migrations(self, at_least, timeout=60):
        """Wait until the fabric has counted so many migrations in all. Returns the counts."""
        self.vm.wait_run(
            f"read -r line <{DEBUGFS}/migrations; n=${{line#total=}}; [ ${{n%% *}} -ge {at_least} ]", timeout
        )
        return self.migrations()

    def wait_sent(self, timeout=60):
        """Wait until no RC QP has anything in its send queue: nothing is under way, of the ULP's or of ours."""
        self.vm.wait_run(f"! grep -q ' sq=[1-9]' {DEBUGFS}/qps", timeout)


def port_guid(vm, dev, port):
    """GUID of an HCA port, out of its first GID."""
    gid = vm.read(f"/sys/class/infiniband/{dev}/ports/{port}/gids/0").strip()
    return int("".join(gid.split(":")[4:]), 16)


def fields(text):
    """Parse `key=value key=value`."""
    return dict(part.split("=", 1) for part in text.split() if "=" in part)


def numbers(values):
    """Convert what is a number, decimal or 0x…, to int."""
    result = {}
    for key, value in values.items():
        result[key] = value
        with suppress(ValueError):
            result[key] = int(value, 0)
    return result
