#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""`make shell`: an interactive guest with the fabric, a subnet manager and the module."""

import subprocess
import sys
import tempfile
from pathlib import Path

from harness.machine import qemu_command, write_payload
from harness.snapshot import BASE
from harness.tier import MODULES

RC = """
cd /root
modprobe -a ib_umad ib_cm rdma_cm ib_ipoib
insmod /mnt/vfabric.ko
printf 'subnet_timeout 12\\n' >/run/opensm.conf
opensm -B -g 0x$(cut -d: -f5-8 /sys/class/infiniband/vhca2/ports/1/gids/0 | tr -d :) -F /run/opensm.conf \\
	-f /tmp/opensm.log >/dev/null
until ! grep -qv ACTIVE /sys/class/infiniband/*/ports/*/state; do sleep 0.1; done
insmod /mnt/ib-cm-apm.ko
PS1='guest:\\w# '
cat <<'END'
Kernel with fabric, OpenSM and ib_cm_apm. To look around:
  ibstat | ibnetdiscover | rdma link | rdma resource show qp
  cat /sys/kernel/debug/ib_cm_apm/connections        cat /sys/kernel/debug/vfabric/ports
  echo cut vhca0/1 >/sys/kernel/debug/vfabric/control (join vhca0/1 puts the cable back)
`exit` ends the guest.
END
"""


def main():
    with tempfile.TemporaryDirectory(prefix="shell-") as tmp:
        payload = Path(tmp) / "payload.tar"
        content = BASE | {"shell": RC.encode()}
        for module in ("vfabric", "ib-cm-apm"):
            content[f"{module}.ko"] = MODULES / f"{module}.ko"
        write_payload(payload, content)
        command = qemu_command(payload, 2048, 2, "quiet") + [
            *("-serial", f"file:{tmp}/console.log"),
            *("-chardev", "stdio,id=tty,signal=off"),
            *("-device", "virtconsole,chardev=tty"),
        ]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
