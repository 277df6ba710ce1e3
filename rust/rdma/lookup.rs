// SPDX-License-Identifier: GPL-2.0-only

//! Questions that take a while, asked once for all who want the answer.
//!
//! The first who asks starts a work; an answer is kept for as long as the question says. Who is in a
//! call of a ULP waits for it ([`Asked::done`]); a connection that is up does not wait, it is woken.
//!
//! Locks: `Cache::list`, then `Asked::progress`; leaves both, taken with a connection's mutex held.

use super::bindings as rdma;
use super::conn::Connection;
use super::device::Device;
use super::service::Service;
use super::stats;
use super::sync::Latch;
use super::work::OwnedQueue;
use crate::apm::stats::Stat;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::{Instant, Monotonic};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Different questions remembered.
const CAPACITY: usize = 512;

/// Something that subnet administration is asked about.
pub(crate) trait Question: Copy + PartialEq + Send + Sync + 'static {
    /// What comes of it, failures included.
    type Answer: Copy + Send + Sync + Unpin + 'static;

    /// Finds out. Process context, with no lock held.
    fn ask(&self, device: &Device) -> Self::Answer;

    /// The answer where the device is going.
    fn gone() -> Self::Answer;

    /// For how long an answer is believed, in milliseconds.
    fn keep_ms(answer: &Self::Answer) -> i64;
}

/// How far a question has come.
enum Progress<A> {
    /// It is under way; these are to be woken when it is answered.
    Running(KVec<Arc<Connection>>),
    /// The answer, and when it came.
    Done(A, Instant<Monotonic>),
}

/// A question that was asked.
#[pin_data]
pub(crate) struct Asked<Q: Question> {
    device: usize,
    question: Q,
    /// When it was asked first.
    pub(crate) born: Instant<Monotonic>,
    /// Opened when it is answered, or when nobody is to wait any more.
    #[pin]
    pub(crate) done: Latch,
    #[pin]
    progress: Mutex<Progress<Q::Answer>>,
    #[pin]
    work: Work<Asked<Q>>,
}

impl_has_work! {
    impl{Q: Question} HasWork<Self> for Asked<Q> { self.work }
}

impl<Q: Question> WorkItem for Asked<Q> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // SAFETY: A work of the service's own queue.
        let service = unsafe { Service::current() };
        let answer = match service.and_then(|s| s.devices.enter(this.device as *mut _)) {
            Some(device) => this.question.ask(&device),
            None => Q::gone(),
        };
        let before = core::mem::replace(
            &mut *this.progress.lock(),
            Progress::Done(answer, Instant::now()),
        );
        this.done.open();
        if let (Some(service), Progress::Running(waiting)) = (service, before) {
            for conn in &waiting {
                service.wake(conn);
            }
        }
    }
}

impl<Q: Question> Asked<Q> {
    fn new(device: *mut rdma::ib_device, question: Q) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device: device as usize,
                question,
                born: Instant::now(),
                done <- Latch::new(),
                progress <- new_mutex!(Progress::Running(KVec::new())),
                work <- new_work!("Asked::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// The answer, where there is one that may still be used.
    fn fresh(&self) -> Option<Q::Answer> {
        let Progress::Done(answer, when) = &*self.progress.lock() else {
            return None;
        };
        (when.elapsed().as_millis() < Q::keep_ms(answer)).then_some(*answer)
    }

    fn is_pending(&self) -> bool {
        matches!(*self.progress.lock(), Progress::Running(_))
    }

    /// The answer, however old; `None` as long as there is none.
    pub(crate) fn answer(&self) -> Option<Q::Answer> {
        match &*self.progress.lock() {
            Progress::Running(_) => None,
            Progress::Done(answer, _) => Some(*answer),
        }
    }
}

/// An answer, or a question that is being asked.
pub(crate) enum Known<Q: Question> {
    /// As it is kept.
    Answer(Q::Answer),
    /// To be waited for.
    Soon(Arc<Asked<Q>>),
}

/// Why a question was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The module is going.
    Stopping,
    /// Too many are being asked.
    Busy,
    /// There is no memory.
    Memory,
}

/// Questions being asked, and their answers.
#[pin_data]
pub(crate) struct Cache<Q: Question> {
    #[pin]
    list: Mutex<KVec<Arc<Asked<Q>>>>,
    stopping: Atomic<bool>,
}

impl<Q: Question> Cache<Q> {
    /// An empty one.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
            stopping: Atomic::new(false),
        })
    }

    /// Whether the module is going.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// The answer to a question about what `raw` is connected to; it is asked where need be.
    pub(crate) fn get(
        &self,
        queue: &OwnedQueue,
        raw: *mut rdma::ib_device,
        question: &Q,
    ) -> core::result::Result<Known<Q>, Refused> {
        let mut list = self.list.lock();
        let same = |a: &Arc<Asked<Q>>| a.device == raw as usize && a.question == *question;
        if let Some(known) = list.iter().find(|a| same(a)) {
            if let Some(answer) = known.fresh() {
                stats::count(Stat::CacheHits);
                return Ok(Known::Answer(answer));
            }
            if known.is_pending() {
                return Ok(Known::Soon(known.clone()));
            }
        }
        list.retain(|a| !same(a));
        if list.len() >= CAPACITY {
            let Some(oldest) = list.iter().position(|a| !a.is_pending()) else {
                return Err(Refused::Busy);
            };
            let _ = list.remove(oldest);
        }
        if self.is_stopping() {
            return Err(Refused::Stopping);
        }
        let asked = Asked::new(raw, *question).map_err(|_| Refused::Memory)?;
        list.push(asked.clone(), GFP_KERNEL)
            .map_err(|_| Refused::Memory)?;
        let _ = queue.enqueue(asked.clone());
        Ok(Known::Soon(asked))
    }

    /// The same for a connection that does not wait: `None` where it is woken when there is an answer.
    pub(crate) fn get_later(
        &self,
        queue: &OwnedQueue,
        conn: &Arc<Connection>,
        question: &Q,
    ) -> core::result::Result<Option<Q::Answer>, Refused> {
        let asked = match self.get(queue, conn.device(), question)? {
            Known::Answer(answer) => return Ok(Some(answer)),
            Known::Soon(asked) => asked,
        };
        let mut progress = asked.progress.lock();
        match &mut *progress {
            Progress::Done(answer, _) => Ok(Some(*answer)),
            Progress::Running(waiting) => waiting
                .push(conn.clone(), GFP_KERNEL)
                .map(|()| None)
                .map_err(|_| Refused::Memory),
        }
    }

    /// Forgets one answer that is at least `age_ms` old; a question being asked goes on.
    pub(crate) fn forget_one(&self, raw: *mut rdma::ib_device, question: &Q, age_ms: i64) {
        self.list.lock().retain(|a| {
            a.device != raw as usize
                || a.question != *question
                || match &*a.progress.lock() {
                    Progress::Running(_) => true,
                    Progress::Done(_, when) => when.elapsed().as_millis() < age_ms,
                }
        });
    }

    /// Forgets what was found out for a device; questions being asked go on.
    pub(crate) fn forget(&self, raw: *mut rdma::ib_device) {
        self.list.lock().retain(|a| a.device != raw as usize);
    }

    /// Lets all who wait go; nothing is asked any more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
        // Under the lock: who has not seen the flag has put its question on the list before.
        for asked in self.list.lock().iter() {
            asked.done.open();
        }
    }

    /// Number of questions remembered, for display.
    pub(crate) fn len(&self) -> usize {
        self.list.lock().len()
    }
}
