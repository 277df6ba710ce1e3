# SPDX-License-Identifier: GPL-2.0-only
"""NVMe over Fabrics: nvmet-rdma on one HCA, nvme-rdma with the stock nvme-cli on the other."""

from . import ulp

NQN = "nqn.2026-01.ib-cm-apm:disk"


class Nvme:
    """`queues` I/O queues (None: one per CPU), `keep_alive` in seconds (nvme-cli's default: 5)."""

    comm = "nvme"

    def __init__(self, vm, target="10.0.1.2", source="10.0.1.1", disk="/dev/ram0", queues=2, keep_alive=None):
        self.vm = vm
        self.target, self.source, self.disk = target, source, disk
        self.queues, self.keep_alive = queues, keep_alive
        self.controller = None
        self.device = None

    def serve(self):
        """Set the target up."""
        vm = self.vm
        ulp.ram_disks(vm)
        vm.modprobe("nvmet-rdma")
        base = f"{ulp.CONFIG}/nvmet"
        subsystem, port = f"{base}/subsystems/{NQN}", f"{base}/ports/1"
        vm.run(f"mkdir {subsystem} {subsystem}/namespaces/1 {port}")
        vm.write(f"{subsystem}/attr_allow_any_host", "1")
        vm.write(f"{subsystem}/namespaces/1/device_path", self.disk)
        vm.write(f"{subsystem}/namespaces/1/enable", "1")
        for name, value in (("trtype", "rdma"), ("adrfam", "ipv4"), ("traddr", self.target), ("trsvcid", "4420")):
            vm.write(f"{port}/addr_{name}", value)
        vm.run(f"ln -s {subsystem} {port}/subsystems/{NQN}")
        return self

    def connect(self, *options):
        """Connect the initiator. Returns itself with `device` set (/dev/nvme0n1)."""
        vm = self.vm
        vm.modprobe("nvme-rdma")
        cmd = f"nvme connect -t rdma -a {self.target} -s 4420 -w {self.source} -n {NQN} -Q 64"
        if self.queues:
            cmd += f" -i {self.queues}"
        if self.keep_alive:
            cmd += f" -k {self.keep_alive}"
        vm.run(" ".join([cmd, *options]))
        self.controller = vm.out("basename $(dirname $(grep -l 'rdma' /sys/class/nvme/nvme*/transport | tail -n 1))")
        vm.wait_run(f"ls /sys/class/nvme/{self.controller}/ | grep -q 'n1$'")
        self.device = f"/dev/{self.controller}n1"
        vm.wait_run(f"[ -b {self.device} ]")
        return self

    def up(self):
        return self.serve().connect()

    def disconnect(self, timeout=60):
        self.vm.run(f"nvme disconnect -n {NQN}", timeout=timeout)
        self.controller = self.device = None

    def state(self):
        """State of the controller: live, connecting, resetting ..."""
        return self.vm.read(f"/sys/class/nvme/{self.controller}/state").strip()

    def unserve(self):
        """Take the target down."""
        base = f"{ulp.CONFIG}/nvmet"
        self.vm.run(
            f"rm {base}/ports/1/subsystems/{NQN}; rmdir {base}/ports/1 {base}/subsystems/{NQN}/namespaces/1 "
            f"{base}/subsystems/{NQN}"
        )

    def drops(self):
        """Times that the initiator lost the controller and began to reconnect."""
        return ulp.count_dmesg(self.vm, "starting error recovery", "Reconnecting in")
