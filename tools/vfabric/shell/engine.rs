// SPDX-License-Identifier: GPL-2.0-only

//! The engine: one thread, under one lock, makes all progress of all protocols.
//!
//! Verbs that may be called in any context only queue: they take a work queue's spinlock, put the
//! queue pair on the list of active ones and kick the thread. Verbs that may sleep take the engine's
//! lock and act themselves. Whatever the consumers are to hear (completion handlers, events) is
//! collected in an [`Outbox`] under the lock and told by the thread alone, in order, without it.
//!
//! Lock order, outermost first:
//!
//! 1. the list of devices (`device`),
//! 2. the engine's lock (a mutex),
//! 3. one of these spinlocks, never two of them: the list of active queue pairs, a send queue, a
//!    receive queue, a completion ring, a region's staged pages.
//!
//! The delivery lock (a mutex) is taken with no other held. Who destroys an object first makes it
//! dead, then passes through the delivery lock, and knows that nobody calls its consumer any more.

use super::bindings;
use super::cq::Cq;
use super::event::Event;
use super::qp::Qp;
use super::state::State;
use kernel::list::{List, ListArc};
use kernel::prelude::*;
use kernel::sync::lock::mutex::MutexBackend;
use kernel::sync::lock::Guard;
use kernel::sync::{new_mutex, new_spinlock_irq, Arc, ArcBorrow, Mutex, SpinLockIrq};
use kernel::types::Opaque;

/// Packets and queue pairs handled before the lock is given up and consumers are told.
const BATCH: usize = 64;

/// What consumers are to hear.
pub(crate) struct Outbox {
    /// Completion queues whose handler is to be called.
    pub(crate) notify: List<Cq>,
    /// Events, in order.
    pub(crate) events: KVec<Event>,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            notify: List::new(),
            events: KVec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.notify.is_empty() && self.events.is_empty()
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, event: Event) {
        if self.events.push(event, GFP_KERNEL).is_err() {
            pr_err!("out of memory: an event is lost\n");
        }
    }
}

/// The engine and what it drives.
#[pin_data]
pub(crate) struct Shared {
    #[pin]
    state: Mutex<State>,
    #[pin]
    active: SpinLockIrq<List<Qp>>,
    #[pin]
    delivery: Mutex<()>,
    #[pin]
    thread: Opaque<bindings::vf_thread>,
}

// SAFETY: All but the thread's handle is locked; that handle is made for use from any context.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

/// The engine's lock, held.
///
/// Memory is allocated without starting I/O meanwhile: that I/O could be waiting for this lock.
pub(crate) struct Locked<'a> {
    state: Guard<'a, State, MutexBackend>,
    shared: &'a Shared,
    _noio: NoIo,
}

impl Locked<'_> {
    /// Whoever is not the engine says so when it has left something to tell.
    pub(crate) fn tell(self) {
        let kick = !self.state.out.is_empty();
        let shared = self.shared;
        drop(self);
        if kick {
            shared.kick();
        }
    }
}

impl core::ops::Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl core::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

struct NoIo(u32);

impl NoIo {
    fn new() -> Self {
        // SAFETY: Changes a flag of the calling task, which `drop` restores.
        NoIo(unsafe { bindings::vf_noio_save() })
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        // SAFETY: What `new` saved, in the same task: neither is sent elsewhere.
        unsafe { bindings::vf_noio_restore(self.0) };
    }
}

impl Shared {
    /// The engine, not running yet.
    pub(crate) fn new(state: State) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_mutex!(state),
                active <- new_spinlock_irq!(List::new()),
                delivery <- new_mutex!(()),
                thread: Opaque::new(bindings::vf_thread::default()),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes the engine's lock.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let noio = NoIo::new();
        Locked {
            state: self.state.lock(),
            shared: self,
            _noio: noio,
        }
    }

    /// The lock itself, for what it protects elsewhere (`LockedBy`).
    pub(crate) fn mutex(&self) -> &Mutex<State> {
        &self.state
    }

    /// Says that there is work. Any context.
    pub(crate) fn kick(&self) {
        // SAFETY: The thread runs as long as there are devices (see `Engine`), and only they and
        // the thread's owner kick.
        unsafe { bindings::vf_thread_kick(self.thread.get()) };
    }

    /// Puts a queue pair on the list of active ones. Any context.
    pub(crate) fn activate(&self, qp: ArcBorrow<'_, Qp>) {
        // Where it is on the list already, the engine has not looked at it yet: it takes a queue
        // pair off the list before it does.
        if let Some(item) = ListArc::try_from_arc_borrow(qp) {
            self.active.lock().push_back(item);
        }
        self.kick();
    }

    /// Waits until the engine no longer calls a consumer on behalf of an object that the caller has
    /// made dead. May sleep; not from a handler that the engine calls.
    pub(crate) fn wait_for_delivery(&self) {
        drop(self.delivery.lock());
    }

    /// Works until there is nothing to do; gives the time of the next thing, if any.
    fn turn(&self) -> Option<u64> {
        loop {
            let (out, next) = {
                let mut st = self.lock();
                let more = self.batch(&mut st);
                let out = core::mem::replace(&mut st.out, Outbox::new());
                (out, if more { Some(0) } else { st.next_deadline() })
            };
            self.deliver(out);
            match next {
                Some(t) if t <= super::state::now() => {}
                next => return next,
            }
        }
    }

    /// One batch; whether there may be more to do at once.
    fn batch(&self, st: &mut State) -> bool {
        st.expire_timers();
        for _ in 0..BATCH {
            if st.deliver_packet() {
                continue;
            }
            let Some(item) = self.active.lock().pop_front() else {
                return false;
            };
            // From here on it can be put on the list again.
            let qp = item.into_arc();
            st.run(&qp);
        }
        true
    }

    fn deliver(&self, mut out: Outbox) {
        for event in out.events.drain_all() {
            let guard = self.delivery.lock();
            event.tell();
            drop(guard);
        }
        while let Some(item) = out.notify.pop_front() {
            let cq = item.into_arc();
            let guard = self.delivery.lock();
            cq.tell();
            drop(guard);
        }
    }
}

/// The engine's thread, running.
pub(crate) struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the thread. It stops when the handle is dropped; that must be after the last device
    /// has gone.
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self> {
        let data = Arc::as_ptr(&shared).cast_mut().cast();
        // SAFETY: `thread` is ours, `main` gets what it expects, and `shared` outlives the thread:
        // the handle keeps it and stops the thread when it is dropped.
        let ret = unsafe { bindings::vf_thread_start(shared.thread.get(), Some(main), data) };
        kernel::error::to_result(ret)?;
        Ok(Self { shared })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: Started once, stopped once.
        unsafe { bindings::vf_thread_stop(self.shared.thread.get()) };
        // What is left belongs to nobody any more.
        let mut left = List::new();
        left.push_all_back(&mut self.shared.active.lock());
    }
}

/// The thread.
///
/// # Safety
///
/// For [`Engine::start`] alone.
unsafe extern "C" fn main(data: *mut kernel::ffi::c_void) -> i32 {
    // SAFETY: What `Engine::start` gave.
    let shared = unsafe { &*data.cast::<Shared>() };
    loop {
        let next = shared.turn().unwrap_or(u64::MAX);
        // SAFETY: This is the thread.
        if unsafe { bindings::vf_thread_wait(shared.thread.get(), next) } {
            return 0;
        }
    }
}
