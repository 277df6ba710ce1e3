# SPDX-License-Identifier: GPL-2.0-only
"""IPoIB between HCAs of one kernel.

iSER and NVMe-oF live in the initial network namespace only, so initiator and target share one. That the traffic
between two local addresses goes through the fabric all the same takes three things: the table `local` is asked late
(preference 100), a rule per address sends what starts here out of the *other* HCA's interface, and the receiving side
accepts packets that come from a local address.
"""

# Addresses by HCA and port: initiator vhca0, target vhca1, one network per rail.
ADDRESSES = {
    ("vhca0", 1): "10.0.1.1",
    ("vhca0", 2): "10.0.2.1",
    ("vhca1", 1): "10.0.1.2",
    ("vhca1", 2): "10.0.2.2",
}


class Ipoib:
    def __init__(self, fabric, addresses=None):
        self.fabric = fabric
        self.vm = fabric.vm
        self.addresses = dict(addresses or ADDRESSES)
        self.devices = {}

    def up(self):
        """Load IPoIB, give addresses, set the rules, wait until each pair has carried a ping. Returns itself."""
        vm = self.vm
        vm.modprobe("ib_ipoib")
        for dev, port in self.addresses:
            self.devices[dev, port] = self._netdev(dev, port)
        script = []
        for name in ["all", "default", *self.devices.values()]:
            for key, value in (("accept_local", 1), ("rp_filter", 0), ("arp_ignore", 1), ("arp_announce", 2)):
                script.append(f"echo {value} >/proc/sys/net/ipv4/conf/{name}/{key}")
        for key, address in self.addresses.items():
            script.append(f"ip addr replace {address}/24 dev {self.devices[key]}")
            script.append(f"ip link set {self.devices[key]} up")
        script.append("ip rule add pref 100 lookup local")
        script.append("ip rule del pref 0")
        for table, (key, to) in enumerate(self.addresses.items(), start=10):
            near = self._other_end(key)
            if near is None:
                continue
            source, netdev = self.addresses[near], self.devices[near]
            script.append(f"ip route add {to} dev {netdev} src {source} scope link table {table}")
            script.append(f"ip rule add pref {table} iif lo to {to} lookup {table}")
        vm.run("set -e\n" + "\n".join(script))
        for netdev in self.devices.values():
            vm.wait_file(f"/sys/class/net/{netdev}/carrier", "1")
        for key, to in self.addresses.items():
            near = self._other_end(key)
            if near:
                # Through the fabric, not past it.
                assert f"dev {self.devices[near]} " in vm.out(f"ip route get {to}")
                vm.wait_run(f"ping -c 1 -W 1 {to}")
        return self

    def down(self):
        """Take the interfaces down and unload IPoIB (before the fabric is unloaded: it waits for multicast)."""
        for netdev in self.devices.values():
            self.vm.run(f"ip link set {netdev} down", check=False)
        self.vm.run("modprobe -r ib_ipoib")

    def _netdev(self, dev, port):
        """The interface of an HCA port. The device's class folder holds them all; dev_port counts from 0."""
        where = f"/sys/class/infiniband/{dev}/device/net/*"
        for path in self.vm.glob(where) or self.vm.glob("/sys/class/net/ib*"):
            guid = self.fabric.gid(dev, port).replace(":", "")[16:]
            address = self.vm.read(path + "/address").strip().replace(":", "")
            if address.endswith(guid):
                return path.rsplit("/", 1)[1]
        raise LookupError(f"{dev} port {port} has no IPoIB interface")

    def _other_end(self, key):
        """Key of the other HCA's address in the same /24."""
        network = self.addresses[key].rsplit(".", 1)[0]
        for other, address in self.addresses.items():
            if other[0] != key[0] and address.rsplit(".", 1)[0] == network:
                return other
        return None
