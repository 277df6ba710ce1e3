// SPDX-License-Identifier: GPL-2.0-only

//! Asynchronous events of queue pairs and ports, on their way to the consumers.

use super::bindings;
use super::hca::Hca;
use super::qp::Qp;
use super::srq::Srq;
use crate::model::host::QpEvent;
use kernel::sync::atomic::Acquire;
use kernel::sync::Arc;

/// An event.
pub(crate) enum Event {
    /// Of a queue pair.
    Qp(Arc<Qp>, QpEvent),
    /// A queue pair in ERR takes nothing more from its shared receive queue.
    LastWqe(Arc<Qp>),
    /// A shared receive queue has become shorter than its limit.
    SrqLimit(Arc<Srq>),
    /// Of a port: `enum ib_event_type`.
    Port(Arc<Hca>, u8, bindings::ib_event_type),
}

fn code(event: QpEvent) -> bindings::ib_event_type {
    match event {
        QpEvent::CommEst => bindings::ib_event_type_IB_EVENT_COMM_EST,
        QpEvent::PathMig => bindings::ib_event_type_IB_EVENT_PATH_MIG,
        QpEvent::PathMigErr => bindings::ib_event_type_IB_EVENT_PATH_MIG_ERR,
        QpEvent::AccessErr => bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        QpEvent::ReqErr => bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
        QpEvent::Fatal => bindings::ib_event_type_IB_EVENT_QP_FATAL,
        QpEvent::SqDrained => bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
    }
}

fn tell_qp(qp: &Qp, event: bindings::ib_event_type) {
    if qp.dead.load(Acquire) {
        return;
    }
    let mut e = bindings::ib_event::default();
    // SAFETY: Not dead under the delivery lock: `destroy_qp` waits for that lock after it has set
    // `dead`, so core's object is still there.
    unsafe {
        let ib = qp.handle.0;
        e.device = (*ib).device;
        *e.element.qp.as_mut() = ib;
        e.event = event;
        if let Some(handler) = (*ib).event_handler {
            handler(&mut e, (*ib).qp_context);
        }
    }
}

impl Event {
    /// Tells the consumer, unless its object is gone. Engine only, delivery lock held.
    pub(crate) fn tell(&self) {
        match self {
            Event::Qp(qp, event) => tell_qp(qp, code(*event)),
            Event::LastWqe(qp) => {
                tell_qp(qp, bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED);
            }
            Event::SrqLimit(srq) => srq.tell_limit(),
            Event::Port(hca, port, event) => {
                if !hca.live.load(Acquire) {
                    return;
                }
                let mut e = bindings::ib_event {
                    device: hca.ib(),
                    event: *event,
                    ..Default::default()
                };
                // SAFETY: This is the member that goes with a port's event. Live under the delivery
                // lock: registered, and removal waits for that lock after it has taken `live` back.
                unsafe {
                    *e.element.port_num.as_mut() = u32::from(*port);
                    bindings::ib_dispatch_event(&e);
                }
            }
        }
    }
}
