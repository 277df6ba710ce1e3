// SPDX-License-Identifier: GPL-2.0-only

//! Asynchronous events of queue pairs and ports, on their way to the consumers.

use super::bindings;
use super::hca::Hca;
use super::qp::Qp;
use crate::model::host::QpEvent;
use kernel::sync::atomic::Acquire;
use kernel::sync::Arc;

/// An event.
pub(crate) enum Event {
    /// Of a queue pair.
    Qp(Arc<Qp>, QpEvent),
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

impl Event {
    /// Tells the consumer, unless its object is gone. Engine only, delivery lock held.
    pub(crate) fn tell(&self) {
        let mut e = bindings::ib_event::default();
        match self {
            Event::Qp(qp, event) => {
                if qp.dead.load(Acquire) {
                    return;
                }
                // SAFETY: Not dead under the delivery lock: `destroy_qp` waits for that lock after
                // it has set `dead`, so core's object is still there.
                unsafe {
                    let ib = qp.handle.0;
                    e.device = (*ib).device;
                    *e.element.qp.as_mut() = ib;
                    e.event = code(*event);
                    if let Some(handler) = (*ib).event_handler {
                        handler(&mut e, (*ib).qp_context);
                    }
                }
            }
            Event::Port(hca, port, event) => {
                if !hca.live.load(Acquire) {
                    return;
                }
                e.device = hca.ib();
                e.event = *event;
                // SAFETY: This is the member that goes with a port's event. Live under the delivery lock: registered, and removal waits for that
                // lock after it has taken `live` back.
                unsafe {
                    *e.element.port_num.as_mut() = u32::from(*port);
                    bindings::ib_dispatch_event(&e);
                }
            }
        }
    }
}
