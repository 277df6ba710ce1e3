// SPDX-License-Identifier: GPL-2.0-only

//! The devices of a fabric: registered at load, unregistered at unload or on command.
//!
//! Locks: the list's mutex is the outermost and is held while core registers or unregisters, which
//! calls clients, which call our verbs, which take the engine's lock.

use super::bindings;
use super::engine::Shared;
use super::event::Event;
use super::hca::{Device, Hca};
use super::state;
use crate::model::fabric::{NodeId, PortState};
use crate::model::topology::Name;
use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::atomic::Release;
use kernel::sync::{new_mutex, Arc, Mutex};

/// The devices that are registered.
#[pin_data(PinnedDrop)]
pub(crate) struct Devices {
    shared: Arc<Shared>,
    #[pin]
    list: Mutex<KVec<Device>>,
}

impl Devices {
    /// None yet.
    pub(crate) fn new(shared: Arc<Shared>) -> impl PinInit<Self> {
        pin_init!(Self {
            shared,
            list <- new_mutex!(KVec::new()),
        })
    }

    /// Registers a device for every HCA of the fabric.
    pub(crate) fn add_all(&self, module: &'static ThisModule) -> Result {
        let mut hcas: KVec<(NodeId, Name)> = KVec::new();
        for (node, def) in self.shared.lock().fabric.hcas() {
            hcas.push((node, def.name), GFP_KERNEL)?;
        }
        for (index, (node, name)) in hcas.iter().enumerate() {
            self.add(index, *node, name, module)?;
        }
        Ok(())
    }

    fn add(&self, index: usize, node: NodeId, name: &Name, module: &'static ThisModule) -> Result {
        let device = Device::new(&self.shared, index, node, module)?;
        let hca = device.hca().clone();
        let mut list = self.list.lock();
        list.reserve(1, GFP_KERNEL)?;
        self.shared.lock().hca(index).hca = Some(hca.clone());
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        if let Err(e) = device.register(&name) {
            pr_err!("{}: not registered: {}\n", &*name, e.to_errno());
            self.shared.lock().hca(index).forget_device();
            return Err(e);
        }
        hca.live.store(true, Release);
        self.tell_state(&hca);
        if list.push(device, GFP_KERNEL).is_err() {
            return Err(ENOMEM);
        }
        Ok(())
    }

    /// What a subnet manager did while core was not listening yet is told again.
    fn tell_state(&self, hca: &Arc<Hca>) {
        let mut st = self.shared.lock();
        for port in 1..=hca.ports {
            let p = st.fabric.port(hca.node, port);
            let (lid, state) = p.map_or((0, PortState::Down), |p| (p.lid, p.state));
            if lid != 0 {
                let event = bindings::ib_event_type_IB_EVENT_LID_CHANGE;
                st.out.event(Event::Port(hca.clone(), port, event));
            }
            if state == PortState::Active {
                let event = bindings::ib_event_type_IB_EVENT_PORT_ACTIVE;
                st.out.event(Event::Port(hca.clone(), port, event));
            }
        }
        st.tell();
    }

    /// Takes a device away from under its clients, as unbinding its driver would; its ports go down
    /// after it. -ENOENT where it has gone already.
    ///
    /// Who wants a card that is pulled out cuts its cables first.
    pub(crate) fn remove(&self, node: NodeId) -> Result {
        let mut list = self.list.lock();
        let at = list
            .iter()
            .position(|d| d.hca().node == node)
            .ok_or(ENOENT)?;
        let device = list.remove(at).map_err(|_| ENOENT)?;
        self.take_down(device);
        self.cut(node);
        Ok(())
    }

    fn cut(&self, node: NodeId) {
        let mut st = self.shared.lock();
        let Some((name, count)) = st.fabric.node(node).map(|n| (n.name, n.port_count())) else {
            return;
        };
        for port in 1..=count {
            let command = CString::try_from_fmt(fmt!("cut {}/{}", name.as_str(), port));
            let Ok(command) = command else {
                return;
            };
            // A port without a cable has nothing to be cut.
            let _ = st
                .fabric
                .control(command.to_str().unwrap_or(""), state::now());
        }
        drop(st);
        self.shared.kick();
    }

    fn take_down(&self, device: Device) {
        let hca = device.hca().clone();
        hca.live.store(false, Release);
        self.shared.wait_for_delivery();
        device.unregister();
        self.shared.lock().hca(hca.index).forget_device();
        // A port event may have been on its way with a reference of its own.
        self.shared.wait_for_delivery();
        drop(device);
    }

    /// Takes all devices away, in the order of the text: a subnet manager on the last one is there
    /// to the end, and clients who want to leave a multicast group need not wait for it in vain.
    pub(crate) fn remove_all(&self) {
        let mut list = self.list.lock();
        while let Ok(device) = list.remove(0) {
            self.take_down(device);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Devices {
    fn drop(self: Pin<&mut Self>) {
        self.remove_all();
    }
}
