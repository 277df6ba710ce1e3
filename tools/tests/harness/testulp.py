# SPDX-License-Identifier: GPL-2.0-only
"""The test ULP (tools/ulp): many connections, both ends in the guest's kernel, whose data both ends check."""

from .fabric import fields, numbers

DEBUGFS = "/sys/kernel/debug/apm_test_ulp"

# Counters that stay 0 where no data is lost, whatever else happens to a connection.
DATA = ("lost", "duplicate", "reordered", "corrupt")
# And those that stay 0 where nothing happens to it that a ULP notices.
TROUBLE = (*DATA, "wc_error", "wc_flush", "wc_unknown", "post_error", "qp_other", "cm_other")


class TestUlp:
    """Loads apm-test-ulp. Connections have numbers of the caller's choice; commands say FIRST and COUNT.

    Keywords of listen(), connect() and busy() are those of tools/ulp/README.md: cq="pool", "softirq", "workqueue",
    "direct" or "plain", window, size, sq_depth, parallel, retry; every (ms) and op ("send", "write" or "read").
    """

    __test__ = False  # for pytest: not a class of tests

    def __init__(self, vm, active="vhca0", passive="vhca1", address="10.0.1.2"):
        """`active` and `passive`: HCAs of the two ends (their port 1, or "vhca0/2"). `address`: for rdma_cm."""
        self.vm = vm
        self.active, self.passive, self.address = active, passive, address

    def up(self):
        self.vm.modprobe("ib_cm", "rdma_cm")
        self.vm.insmod("apm-test-ulp")
        return self

    def down(self, timeout=60):
        self.vm.rmmod("apm_test_ulp", timeout=timeout)

    def control(self, command, *flags, **options):
        """Write one command; GuestError when it is refused."""
        words = [command, *map(str, flags), *(f"{key}={value}" for key, value in options.items())]
        self.vm.write(f"{DEBUGFS}/control", " ".join(words) + "\n")

    # --- connections ------------------------------------------------------------------------------------------

    def listen(self, cm="rdma", **options):
        if cm == "ib":
            options = {"dev": self.passive} | options
        self.control("listen", cm=cm, **options)
        return self

    def unlisten(self):
        self.control("unlisten")

    def connect(self, first, count, cm="rdma", wait=True, timeout=60, flags=(), **options):
        """Connect; waits until all of them are there, at both ends. `flags`: ("busy",) makes them busy at once."""
        if cm == "ib":
            to = self.passive if "/" in self.passive else f"{self.passive}/1"
            options = {"dev": self.active, "to": to} | options
        else:
            options = {"to": self.address} | options
        goal = self.summary()["active"]["established"] + count
        self.control("connect", first, count, *flags, cm=cm, **options)
        if wait:
            self.wait_established(goal, timeout)

    def wait_established(self, count, timeout=60):
        """Wait until exactly so many connections are established, at both ends."""
        this = rf"connecting=0 established={count} "
        self.vm.wait_file(f"{DEBUGFS}/summary", rf"active {this}.*\npassive {this}", timeout)

    def wait_gone(self, timeout=60):
        """Wait until there is no connection any more, in no state."""
        none = "connecting=0 established=0 disconnecting=0 dead=0"
        self.vm.wait_file(f"{DEBUGFS}/summary", rf"active {none}.*\npassive {none}", timeout)

    def disconnect(self, first, count, side="active"):
        """One side disconnects. Waiting is up to the caller (wait_established, wait_gone)."""
        self.control("disconnect", first, count, **{"from": side})

    def destroy(self, first, count, side="active"):
        """Take ends apart as they are; the CM says to the peer what it has to say."""
        self.control("destroy", first, count, side=side)

    # --- traffic ----------------------------------------------------------------------------------------------

    def busy(self, first, count, **options):
        """Requests from now on; the next one `every` ms (default 10) after an answer, 0: at once."""
        self.control("busy", first, count, **options)

    def idle(self, first, count, timeout=60):
        """No new requests; waits until all that were made are answered."""
        self.control("idle", first, count)
        ids = range(first, first + count)
        self.vm.wait_run(
            f"! awk -F'[ =]' '$4 == \"active\" && $2 >= {ids.start} && $2 < {ids.stop}' {DEBUGFS}/connections"
            " | grep -qv ' outstanding=0 '",
            timeout,
        )

    def mark(self):
        """Progress and longest pause are counted from here on."""
        self.control("mark")

    def wait_progress(self, timeout=60):
        """Wait until every busy connection has had a further answer."""
        self.mark()
        # shell: the fields busy= and progressed= of the first line
        self.vm.wait_run(
            f"set -- $(sed -n 's/^active .*busy=\\([0-9]*\\) progressed=\\([0-9]*\\).*/\\1 \\2/p' {DEBUGFS}/summary);"
            ' [ "$1" -gt 0 ] && [ "$2" -ge "$1" ]',
            timeout,
        )

    def fill(self, number, side="active"):
        """Use the send queue of an end to its last slot."""
        self.control("fill", number, side=side)

    def drain(self, number, side="active"):
        """Drain an end's QP and leave it there."""
        self.control("drain", number, side=side)

    def inject(self, number, fault, side="active"):
        """The next message of an end is corrupt ("corrupt"), left out ("skip") or sent twice ("repeat")."""
        self.control("inject", number, fault, side=side)

    # --- state ------------------------------------------------------------------------------------------------

    def summary(self):
        """{"active": {"connecting": 0, "established": 200, "busy": …}, "passive": {…}}."""
        return self._lines("summary")

    def paths(self):
        """By side: how many QPs are migrated, rearm, armed, apart, and by port, as ib_query_qp tells."""
        return self._lines("paths")

    def counters(self):
        """{"requests": {"active": 1000, "passive": 1000}, …}: sums over all connections there ever were."""
        return self._lines("counters")

    def connections(self, **match):
        """A dict for each end, those whose fields equal what is given: connections(side="active")."""
        found = [numbers(fields(line)) for line in self.vm.read(f"{DEBUGFS}/connections").splitlines()]
        return [c for c in found if all(c.get(key) == value for key, value in match.items())]

    def pause_ms(self):
        """The longest time since the last mark() that a connection waited for an answer."""
        return self.summary()["active"]["pause_us"] / 1000

    def check(self, *but):
        """Nothing went wrong on any connection so far, except the counters named in `but`. Returns the counters."""
        counters = self.counters()
        wrong = {name: counters[name] for name in TROUBLE if name not in but and any(counters[name].values())}
        assert not wrong, wrong
        assert counters["answers"]["active"] > 0, counters
        return counters

    def wait_armed(self, count, timeout=60, apart=False):
        """Wait until the QPs of exactly so many connections are ARMED, at both ends, and none is in another state.

        `apart`: and until path in use and alternate have no port in common, at both ends. Right after a port has come
        back an alternate may still be one that shares a port.
        """
        armed = rf"migrated=0 rearm=0 armed={count} apart={count if apart else ''}.*"
        self.vm.wait_file(f"{DEBUGFS}/paths", rf"active {armed}\npassive {armed}", timeout)

    def _lines(self, name):
        lines = self.vm.read(f"{DEBUGFS}/{name}").splitlines()
        return {line.split()[0]: numbers(fields(line)) for line in lines}
