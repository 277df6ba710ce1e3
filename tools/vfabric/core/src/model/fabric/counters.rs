// SPDX-License-Identifier: GPL-2.0-only

//! What a port counts.

/// Totals of one port since the fabric was made; nothing resets them.
///
/// Data is counted in 32-bit words, from the LRH to the ICRC, as PortXmitData does (IBA 16.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// PortXmitData.
    pub xmit_data: u64,
    /// PortRcvData.
    pub rcv_data: u64,
    /// PortXmitPkts.
    pub xmit_packets: u64,
    /// PortRcvPkts.
    pub rcv_packets: u64,
    /// PortUnicastXmitPkts.
    pub unicast_xmit: u64,
    /// PortUnicastRcvPkts.
    pub unicast_rcv: u64,
    /// PortMulticastXmitPkts.
    pub multicast_xmit: u64,
    /// PortMulticastRcvPkts.
    pub multicast_rcv: u64,
    /// PortRcvErrors: packets that a lossy cable has spoilt.
    pub rcv_errors: u64,
    /// PortXmitDiscards: the port was down, not active, or the packet larger than its MTU.
    pub xmit_discards: u64,
    /// PortRcvSwitchRelayErrors: the switch knew no way on.
    pub relay_errors: u64,
    /// VL15Dropped: no memory to keep a subnet management packet in.
    pub vl15_dropped: u64,
    /// LinkDownedCounter.
    pub link_downed: u64,
}

/// Counters of one port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// All there has been.
    pub total: Totals,
    /// Every packet that was lost at this port, for whatever reason, a blackhole included. What
    /// `loss` of this port loses on its way out counts here, too, and not at the other end.
    pub dropped: u64,
    /// What PortCounters subtracts: the totals when the PMA last set them, less what it set.
    pub(super) base: Totals,
    /// The same for PortCountersExtended.
    pub(super) base_extended: Totals,
}

impl Counters {
    pub(super) fn sent(&mut self, words: u64, multicast: bool) {
        let t = &mut self.total;
        t.xmit_data = t.xmit_data.wrapping_add(words);
        t.xmit_packets = t.xmit_packets.wrapping_add(1);
        let kind = if multicast {
            &mut t.multicast_xmit
        } else {
            &mut t.unicast_xmit
        };
        *kind = kind.wrapping_add(1);
    }

    pub(super) fn received(&mut self, words: u64, multicast: bool) {
        let t = &mut self.total;
        t.rcv_data = t.rcv_data.wrapping_add(words);
        t.rcv_packets = t.rcv_packets.wrapping_add(1);
        let kind = if multicast {
            &mut t.multicast_rcv
        } else {
            &mut t.unicast_rcv
        };
        *kind = kind.wrapping_add(1);
    }

    /// A packet was lost here without anybody being able to notice.
    pub(super) fn vanished(&mut self) {
        self.dropped = self.dropped.wrapping_add(1);
    }

    /// A packet has arrived that is of no use.
    pub(super) fn spoilt(&mut self, words: u64, multicast: bool) {
        self.received(words, multicast);
        self.total.rcv_errors = self.total.rcv_errors.wrapping_add(1);
    }

    /// A packet could not be sent.
    pub(super) fn discarded(&mut self) {
        self.vanished();
        self.total.xmit_discards = self.total.xmit_discards.wrapping_add(1);
    }

    /// The switch had no way on for a packet received here.
    pub(super) fn not_relayed(&mut self) {
        self.vanished();
        self.total.relay_errors = self.total.relay_errors.wrapping_add(1);
    }

    /// No memory for a packet.
    pub(super) fn no_room(&mut self, vl15: bool) {
        self.vanished();
        let t = &mut self.total;
        let counter = if vl15 {
            &mut t.vl15_dropped
        } else {
            &mut t.xmit_discards
        };
        *counter = counter.wrapping_add(1);
    }

    /// The link went down.
    pub(super) fn link_lost(&mut self) {
        self.total.link_downed = self.total.link_downed.wrapping_add(1);
    }
}
