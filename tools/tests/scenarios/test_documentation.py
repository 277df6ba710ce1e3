# SPDX-License-Identifier: GPL-2.0-only
"""What the documentation tells a stranger to type works as it stands there."""

import re
import textwrap
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]


def first_script(path):
    """The first bash code block of a reStructuredText file."""
    block = re.search(r"^\.\. code-block:: bash\n\n((?: +.*\n|\n)+)", (TOP / path).read_text(), re.M)
    return textwrap.dedent(block[1])


@pytest.mark.vm(modules=("vfabric",))
def test_first_run_of_the_fabric(vm):
    """Documentation/vfabric.rst, "A first run": verified I/O through a cut, and all is taken down again."""
    vm.write("/run/first-run.sh", first_script("Documentation/vfabric.rst"))
    done = vm.run("MODULE=/mnt/vfabric.ko bash /run/first-run.sh 2>&1", timeout=240)
    assert re.search(r"err= 0\b", done.out), done.out
    assert re.search(r"^dev=vhca0 .*state=RTS", done.out, re.M), done.out
    assert "retries exhausted" in done.out
    assert re.search(r"scsi host\d+: .*reconnect succeeded", done.out), done.out
    assert vm.glob("/sys/class/infiniband/*") == []
