# SPDX-License-Identifier: GPL-2.0-only
"""SCSI RDMA Protocol: ib_srpt on one HCA, ib_srp on the other. No IP involved."""

from . import ulp


class Srp:
    """`target` and `initiator` are (HCA, port)."""

    comm = "srp"

    def __init__(self, vm, target=("vhca1", 1), initiator=("vhca0", 1), disk="/dev/ram2"):
        self.vm = vm
        self.target, self.initiator, self.disk = target, initiator, disk
        self.device = None

    def _gid(self, where):
        dev, port = where
        return self.vm.read(f"/sys/class/infiniband/{dev}/ports/{port}/gids/0").strip().replace(":", "")

    def serve(self):
        vm = self.vm
        store = ulp.lio_disk(vm, "srp", self.disk, 1)
        vm.modprobe("ib_srpt")
        name = "0x" + self._gid(self.target)
        group = f"{ulp.TARGET}/srpt/{name}/{name}"
        vm.run(f"mkdir -p {group}/lun/lun_0 && ln -s {store} {group}/lun/lun_0/disk")
        # ib_srpt looks the initiator up by its port GUID, with or without the rest of the initiator port id.
        port_guid = self._gid(self.initiator)[16:]
        for acl in (f"0x{self._gid(self.initiator)}", f"0x{'0' * 16}{port_guid}"):
            vm.run(f"mkdir -p {group}/acls/{acl}/lun_0 && ln -s {group}/lun/lun_0 {group}/acls/{acl}/lun_0/disk")
        vm.write(f"{group}/enable", "1")
        self.group = group
        return self

    def login_command(self):
        """The shell command that logs in, for a scenario that has to go on meanwhile; `found` is the second half."""
        vm = self.vm
        vm.modprobe("sd_mod")
        vm.modprobe("ib_srp")
        service = vm.read("/sys/module/ib_srpt/parameters/srpt_service_guid").strip().removeprefix("0x")
        self.before = ulp.scsi_disks(vm)
        dev, port = self.initiator
        target = f"id_ext={service},ioc_guid={service},dgid={self._gid(self.target)},pkey=ffff,service_id={service}"
        return f"echo {target} >/sys/class/infiniband_srp/srp-{dev}-{port}/add_target"

    def found(self):
        """Wait for the disk of a login. Returns itself with `device` set (/dev/sda)."""
        self.device = "/dev/" + wait_new_disk(self.vm, self.before)
        return self

    def connect(self):
        """Log in. Returns itself with `device` set (/dev/sda)."""
        self.vm.run(self.login_command())
        return self.found()

    def hurry(self):
        """Short timers, in seconds: the SCSI layer's patience with a command, and the pause between reconnects."""
        disk = self.device.removeprefix("/dev/")
        self.vm.write(f"/sys/block/{disk}/device/timeout", "4")
        for delay in self.vm.glob("/sys/class/srp_remote_ports/*/reconnect_delay"):
            self.vm.write(delay, "1")

    def up(self):
        return self.serve().connect()

    def disconnect(self, timeout=60):
        self.vm.run("for f in /sys/class/srp_remote_ports/*/delete; do echo 1 >$f; done", timeout=timeout)
        self.vm.wait_run("! ls /sys/class/srp_remote_ports/* 2>/dev/null | grep -q .", timeout)
        self.device = None

    def drops(self):
        """Times that the initiator lost the connection (and reconnected or gave up)."""
        return ulp.count_dmesg(self.vm, "reconnect succeeded", "reconnect attempt", "failed RECV status", "failed SEND")


def wait_new_disk(vm, before, timeout=60):
    """Wait for a SCSI disk that was not there before; returns its name."""
    known = "|".join(sorted(before)) or "none"
    got = vm.wait_run(f"ls /sys/block | grep '^sd' | grep -vxE '{known}'", timeout)
    name = got.out.split()[0]
    vm.wait_run(f"[ -b /dev/{name} ]", timeout)
    return name
