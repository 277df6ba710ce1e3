// SPDX-License-Identifier: GPL-2.0

//! Reliable connected queue pair: IBA vol. 1, chapter 9.7, and automatic path migration, 17.2.8.
//!
//! To host one, keep an [`Rc`] for each QP and call it from one place at a time:
//!
//! - [`Rc::modify`] and [`Rc::query`] for the verbs of these names;
//! - [`Rc::posted`] after send requests were posted (in ERR it flushes them), [`Rc::flush`] after
//!   receives were posted to a QP in ERR;
//! - [`Rc::receive`] for each packet that names this QP, with the port it came in by;
//! - [`Rc::tick`] when the time that [`Rc::timer`] gave has come; ask again after every call.
//!
//! All it does to the outside goes by way of the [`Host`] that comes with each call: completions,
//! memory, events, packets. The host must not call back into the QP from there. In RESET the host
//! forgets what was posted; index 0 is the first send request after it.

mod attr;
mod psn;

use super::host::Host;
use super::packet::Packet;
pub use attr::{Attributes, Counters, Error, MigState, Modify, Path, Quirks, State};

/// An RC queue pair.
#[derive(Debug)]
pub struct Rc {
    qpn: u32,
    state: State,
    quirks: Quirks,
    counters: Counters,
}

impl Rc {
    /// A queue pair in RESET. The number is for the record: packets name their destination only.
    pub const fn new(qpn: u32) -> Self {
        let _ = qpn;
        todo!()
    }

    /// QP number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// What happened since RESET.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes the QP behave as `quirks` say from now on.
    pub fn set_quirks(&mut self, quirks: Quirks) {
        self.quirks = quirks;
    }

    /// Changes attributes: all of them or, with an error, none.
    ///
    /// The move to ERR flushes both queues before it returns; ARMED to MIGRATED moves the QP to its
    /// alternate path and sends again what is outstanding.
    pub fn modify(&mut self, _m: &Modify, _host: &mut impl Host) -> Result<(), Error> {
        todo!()
    }

    /// The attributes in force.
    pub fn query(&self) -> Attributes {
        todo!()
    }

    /// Send requests were posted: transmits what the window allows.
    pub fn posted(&mut self, _host: &mut impl Host) {
        todo!()
    }

    /// A packet for this QP came in by `port`.
    pub fn receive(&mut self, _port: u8, _packet: Packet, _host: &mut impl Host) {
        todo!()
    }

    /// When [`Rc::tick`] wants to be called next, in [`Host::now`]'s nanoseconds.
    pub fn timer(&self) -> Option<u64> {
        todo!()
    }

    /// Does what is due by now; harmless when nothing is.
    pub fn tick(&mut self, _host: &mut impl Host) {
        todo!()
    }

    /// In ERR: ends every request that is posted, sends and receives, with a flush. Nothing
    /// otherwise.
    pub fn flush(&mut self, _host: &mut impl Host) {
        todo!()
    }
}
