// SPDX-License-Identifier: GPL-2.0-only

//! Attributes of an RC queue pair: what `modify` takes and `query` gives.

use super::super::packet::Grh;

/// QP state, with the names of `enum ib_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is kept; work requests are refused.
    Reset,
    /// Receives may be posted; packets are dropped.
    Init,
    /// The responder works, the requester does not.
    Rtr,
    /// Both work.
    Rts,
    /// The requester finishes what it has begun and begins nothing.
    Sqd,
    /// Send queue error; an RC queue pair never is in it and goes to ERR instead (IBA 10.3.1.6).
    Sqe,
    /// Everything posted is flushed; packets are dropped.
    Err,
}

/// Path migration state, `enum ib_mig_state` (IBA 17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigState {
    /// The path in use is the only one; packets say MigReq = 1.
    Migrated,
    /// An alternate path is loaded, the peer has not been heard with MigReq = 0 since.
    Rearm,
    /// Both sides have loaded an alternate: any of them may migrate.
    Armed,
}

/// One way to the peer (`struct rdma_ah_attr` and what goes with it in `struct ib_qp_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local port, from 1.
    pub port: u8,
    /// LID of the peer's port.
    pub dlid: u16,
    /// Source path bits: the low LMC bits of the own LID.
    pub path_bits: u8,
    /// Service level.
    pub sl: u8,
    /// Global route, seen from here: `sgid` is the own GID, `dgid` the peer's.
    pub grh: Option<Grh>,
    /// Index into the P_Key table of `port`.
    pub pkey_index: u16,
    /// ACK timeout, 4.096 us x 2^timeout; 0 stands for infinite.
    pub timeout: u8,
}

/// A change of attributes; what is `None` stays as it is.
///
/// Which of them may or must come with which transition is `ib_modify_qp_is_ok`'s business, not
/// checked here. The fields are those of `struct ib_qp_attr`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modify {
    /// IB_QP_STATE.
    pub state: Option<State>,
    /// IB_QP_AV, with port and P_Key index. Its `timeout` counts, too: pass the one in force where
    /// IB_QP_TIMEOUT is not in the mask, or use [`Modify::timeout`] (which goes over this).
    pub path: Option<Path>,
    /// IB_QP_ALT_PATH, with its port, P_Key index and timeout.
    pub alt_path: Option<Path>,
    /// IB_QP_PATH_MIG_STATE.
    pub mig: Option<MigState>,
    /// IB_QP_DEST_QPN, 24 bits.
    pub dest_qpn: Option<u32>,
    /// IB_QP_SQ_PSN, 24 bits.
    pub sq_psn: Option<u32>,
    /// IB_QP_RQ_PSN, 24 bits.
    pub rq_psn: Option<u32>,
    /// IB_QP_PATH_MTU, in bytes: 256 to 4096.
    pub mtu: Option<u16>,
    /// IB_QP_TIMEOUT: ACK timeout of the path in use, 4.096 us x 2^timeout, 0 for infinite.
    pub timeout: Option<u8>,
    /// IB_QP_RETRY_CNT, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// IB_QP_RNR_RETRY, 0 to 7; 7 stands for ever.
    pub rnr_retry: Option<u8>,
    /// IB_QP_MIN_RNR_TIMER: code of IBA table 45, 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// IB_QP_MAX_QP_RD_ATOMIC: READs outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// IB_QP_MAX_DEST_RD_ATOMIC: READs outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// IB_QP_EN_SQD_ASYNC_NOTIFY.
    pub sqd_notify: Option<bool>,
}

/// Everything `ib_query_qp` reports that is the transport's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// State.
    pub state: State,
    /// Requests begun before SQD are still outstanding (`sq_draining`).
    pub sq_draining: bool,
    /// Migration state.
    pub mig: MigState,
    /// Primary path.
    pub path: Option<Path>,
    /// Alternate path.
    pub alt_path: Option<Path>,
    /// QP number of the peer.
    pub dest_qpn: u32,
    /// PSN of the next new packet of a request.
    pub sq_psn: u32,
    /// PSN that is expected next.
    pub rq_psn: u32,
    /// Path MTU in bytes.
    pub mtu: u16,
    /// Retry count.
    pub retry_cnt: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// RNR timer code that this side asks of its peer.
    pub min_rnr_timer: u8,
    /// READs outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs outstanding as responder.
    pub max_dest_rd_atomic: u8,
}

/// Why a change was refused; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A value outside its range.
    Invalid,
    /// Not in this state.
    State,
    /// RTR or RTS without a path.
    NoPath,
    /// REARM without an alternate path.
    NoAlternate,
    /// MIGRATED from another migration state than ARMED, or ARMED asked for (the HCA's own to set).
    MigState,
    /// MIGRATED while the alternate cannot be used; [`QpEvent::PathMigErr`] has been raised.
    ///
    /// [`QpEvent::PathMigErr`]: super::super::host::QpEvent::PathMigErr
    AlternateUnusable,
}

/// In what HCAs differ. The default is what one would wish for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// Outstanding requests go out again at once when this side migrates by command or by the
    /// peer's request; otherwise the ACK timer or a NAK has to ask for them.
    pub retransmit_on_migration: bool,
    /// PATH_MIG events after a commanded migration: 0, 1 or 2.
    pub path_mig_events: u8,
    /// `query` gives the path in use as the primary after a migration; otherwise each path stays in
    /// the place it was loaded to.
    pub query_swaps_paths: bool,
    /// ACK timers run this many times as long as they say: 1 to 4.
    pub timer_stretch: u8,
    /// An ACK is held back for this long, in nanoseconds, so that one answers several requests.
    pub ack_delay: u32,
    /// No alternate path can be used, whatever its port is like: PATH_MIG_ERR instead of a migration.
    pub alternate_unusable: bool,
}

impl Quirks {
    /// No peculiarities.
    pub const NONE: Quirks = Quirks {
        retransmit_on_migration: true,
        path_mig_events: 1,
        query_swaps_paths: true,
        timer_stretch: 1,
        ack_delay: 0,
        alternate_unusable: false,
    };
}

impl Default for Quirks {
    fn default() -> Self {
        Self::NONE
    }
}

/// What happened since RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times that requests were sent again: ACK timer, sequence NAK, lost READ response.
    pub retries: u32,
    /// RNR NAKs received.
    pub rnr_naks: u32,
    /// Migrations.
    pub migrations: u32,
    /// Packets dropped for their path or their P_Key.
    pub refused: u32,
    /// Requests received again.
    pub duplicates: u32,
}

impl Counters {
    /// Nothing yet.
    pub const ZERO: Counters = Counters {
        retries: 0,
        rnr_naks: 0,
        migrations: 0,
        refused: 0,
        duplicates: 0,
    };
}
