# SPDX-License-Identifier: GPL-2.0-only
"""iSCSI Extensions for RDMA: LIO with ib_isert on one HCA, open-iscsi with ib_iser on the other."""

from . import ulp
from .srp import wait_new_disk

IQN = "iqn.2026-01.ib-cm-apm:disk"
CONF = "/etc/iscsi/iscsid.conf"

# open-iscsi's own defaults of the timers that decide how long a lost session takes, in seconds.
TIMERS = {
    "node.conn[0].timeo.noop_out_interval": 5,
    "node.conn[0].timeo.noop_out_timeout": 5,
    "node.session.timeo.replacement_timeout": 120,
    "node.conn[0].timeo.login_timeout": 15,
    "node.session.initial_login_retry_max": 8,
}


class Iser:
    """`timers` replaces values of TIMERS or adds settings of iscsid.conf."""

    comm = "iser"

    def __init__(self, vm, target="10.0.1.2", disk="/dev/ram1", timers=None):
        self.vm = vm
        self.target, self.disk = target, disk
        self.timers = TIMERS | (timers or {})
        self.device = None
        self.iscsid = None

    def serve(self):
        vm = self.vm
        store = ulp.lio_disk(vm, "iser", self.disk, 0)
        vm.modprobe("iscsi_target_mod", "ib_isert")
        group = f"{ulp.TARGET}/iscsi/{IQN}/tpgt_1"
        vm.run(f"mkdir -p {group}/lun/lun_0 && ln -s {store} {group}/lun/lun_0/disk")
        for name, value in (
            ("authentication", 0),
            ("demo_mode_write_protect", 0),
            ("generate_node_acls", 1),
            ("cache_dynamic_acls", 1),
        ):
            vm.write(f"{group}/attrib/{name}", value)
        vm.run(f"mkdir {group}/np/{self.target}:3260")
        vm.write(f"{group}/np/{self.target}:3260/iser", "1")
        vm.write(f"{group}/enable", "1")
        return self

    def connect(self, timeout=60):
        """Log in. Returns itself with `device` set (/dev/sda)."""
        vm = self.vm
        vm.modprobe("sd_mod")
        vm.modprobe("ib_iser")
        if self.iscsid is None:
            keep = [line for line in vm.read(CONF).splitlines() if line.split("=")[0].strip() not in self.timers]
            vm.write(CONF, "\n".join(keep + [f"{key} = {value}" for key, value in self.timers.items()]) + "\n")
            self.iscsid = vm.spawn("exec iscsid -f -d 1")
            vm.wait_run("iscsiadm -m session 2>&1 | grep -qE 'No active sessions|iser'")
        before = ulp.scsi_disks(vm)
        vm.run(f"iscsiadm -m node -o new -T {IQN} -p {self.target}:3260 -I iser")
        vm.run(f"iscsiadm -m node -T {IQN} -p {self.target}:3260 --login", timeout=timeout)
        self.device = "/dev/" + wait_new_disk(vm, before)
        return self

    def up(self):
        return self.serve().connect()

    def disconnect(self, timeout=60):
        self.vm.run(f"iscsiadm -m node -T {IQN} -p {self.target}:3260 --logout", timeout=timeout)
        self.device = None

    def drops(self):
        """Times that the initiator lost its session (iscsi transport class: "detected conn error")."""
        return ulp.count_dmesg(self.vm, "detected conn error")
