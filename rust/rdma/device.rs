// SPDX-License-Identifier: GPL-2.0-only

//! HCAs: as they come and go, and what happens to their ports.
//!
//! Whoever works on a device outside of a wrapper holds a [`DeviceUse`]; removal ends what the users
//! wait for, waits until they have left, and only then returns to ib_core.
//!
//! Locks: `Devices::list` is a leaf; `Device::asking` is held while the ports are asked for their state.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::bindings as rdma;
pub(crate) use super::facts::{device_name, driver_name, has_apm, has_infiniband};
use super::facts::{is_active, is_infiniband};
use super::gid;
use super::mad::Sender;
use super::name::Name;
use super::sa::Agent;
use super::service::Service;
use super::stats;
use super::sync::Gate;
use crate::apm::reason::Reason;
use crate::apm::search::LocalPort;
use crate::apm::stats::Stat;
use crate::apm::wishes::bit;
use crate::wire::Gid;
use core::cell::UnsafeCell;
use core::ops::Deref;
use kernel::error::to_result;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A port with InfiniBand link layer.
pub(crate) struct Port {
    /// From 1.
    pub(crate) num: u32,
    /// For messages to the peers' communication managers.
    pub(crate) cm: Pin<KBox<Sender>>,
    /// For questions to the subnet administration of the port's subnet.
    pub(crate) sa: Pin<KBox<Agent>>,
    /// The port was ACTIVE when last asked. Asked anew at every event of a port of its device.
    active: Atomic<bool>,
    /// Subnet administration did not answer in time; nobody waits for it until it has.
    pub(crate) silent: Atomic<bool>,
}

/// A device.
#[pin_data]
pub(crate) struct Device {
    raw: *mut rdma::ib_device,
    ports: KVec<Port>,
    /// A reason why connections stay as they are was logged.
    logged: Atomic<bool>,
    #[pin]
    asking: Mutex<()>,
    #[pin]
    gate: Gate,
    events: UnsafeCell<rdma::ib_event_handler>,
}

// SAFETY: `raw` is used inside the gate only; `events` by ib_core under its own lock.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

/// Leave to use a device: it is not removed as long as this lives.
pub(crate) struct DeviceUse(Arc<Device>);

impl Deref for DeviceUse {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.0
    }
}

impl Drop for DeviceUse {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

impl Device {
    /// The device, for use as long as the [`DeviceUse`] lives.
    pub(crate) fn raw(&self) -> *mut rdma::ib_device {
        self.raw
    }

    /// A port by its number.
    pub(crate) fn port(&self, num: u32) -> Option<&Port> {
        self.ports.iter().find(|p| p.num == num)
    }

    /// Whether a port was ACTIVE when last asked.
    pub(crate) fn is_active(&self, num: u32) -> bool {
        self.port(num).is_some_and(|port| port.active.load(Acquire))
    }

    /// Ports that are ACTIVE: bit n for port n.
    pub(crate) fn active_ports(&self) -> u64 {
        let active = self.ports.iter().filter(|port| port.active.load(Acquire));
        active.fold(0, |all, port| all | bit(port.num))
    }

    /// GID and base LID of a port. Process context.
    pub(crate) fn address(&self, num: u32) -> Option<(Gid, u16)> {
        let mut attr = rdma::ib_port_attr::default();
        let mut gid = rdma::ib_gid::default();
        // SAFETY: Whoever has `self` to call this on holds a `DeviceUse`.
        unsafe {
            to_result(rdma::ib_query_port(self.raw, num, &mut attr)).ok()?;
            to_result(rdma::rdma_query_gid(self.raw, num, 0, &mut gid)).ok()?;
            Some((gid::read(&gid), attr.lid as u16))
        }
    }

    /// Asks the ports for their state. What an event says of a port may be out of date: events are
    /// delivered side by side, and some HCAs raise PORT_ERR for a port that comes back.
    fn ask_ports(&self) {
        // One at a time: an older answer must not come last.
        let _asking = self.asking.lock();
        for port in &self.ports {
            // SAFETY: Whoever has `self` to call this on holds a `DeviceUse`, or is `add`.
            let active = unsafe { is_active(self.raw, port.num) };
            port.active.store(active, Release);
        }
    }

    /// Logs why connections of this device stay as they are, the first time.
    pub(crate) fn log_once(&self, name: &Name, reason: Reason) {
        if !self.logged.xchg(true, Relaxed) {
            pr_info!("{name}: a connection has no alternate path: {reason}\n");
        }
    }

    /// The ports of this HCA, as they are now, for connections of this P_Key. Process context.
    pub(crate) fn local_ports(&self, pkey: u16) -> Result<KVec<LocalPort>> {
        let mut ports = KVec::new();
        for port in &self.ports {
            let mut attr = rdma::ib_port_attr::default();
            let mut gid = rdma::ib_gid::default();
            let mut index = 0;
            // SAFETY: Whoever has `self` to call this on holds a `DeviceUse`.
            unsafe {
                if to_result(rdma::ib_query_port(self.raw, port.num, &mut attr)).is_err()
                    || to_result(rdma::rdma_query_gid(self.raw, port.num, 0, &mut gid)).is_err()
                {
                    continue;
                }
                let pkey = rdma::ib_find_cached_pkey(self.raw, port.num, pkey, &mut index);
                ports.push(
                    LocalPort {
                        num: port.num,
                        gid: gid::read(&gid),
                        lid: attr.lid as u16,
                        lmc: attr.lmc,
                        active: attr.state == rdma::ib_port_state_IB_PORT_ACTIVE,
                        has_pkey: pkey == 0,
                    },
                    GFP_KERNEL,
                )?;
            }
        }
        Ok(ports)
    }
}

/// All devices.
#[pin_data]
pub(crate) struct Devices {
    #[pin]
    list: Mutex<KVec<Arc<Device>>>,
}

impl Devices {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
        })
    }

    /// Leave to use the device at this address; `None` where it is unknown or being removed.
    pub(crate) fn enter(&self, raw: *mut rdma::ib_device) -> Option<DeviceUse> {
        let list = self.list.lock();
        let device = list.iter().find(|d| d.raw == raw)?;
        device.gate.enter().then(|| DeviceUse(device.clone()))
    }

    /// Calls `f` for each device, with no lock held.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&DeviceUse)) {
        let mut n = 0;
        loop {
            let device = {
                let list = self.list.lock();
                let Some(device) = list.get(n) else { return };
                device.gate.enter().then(|| DeviceUse(device.clone()))
            };
            if let Some(device) = device {
                f(&device);
            }
            n += 1;
        }
    }

    fn add(&self, device: Arc<Device>) -> Result {
        Ok(self.list.lock().push(device, GFP_KERNEL)?)
    }

    fn remove(&self, raw: *mut rdma::ib_device) -> Option<Arc<Device>> {
        let mut list = self.list.lock();
        let place = list.iter().position(|d| d.raw == raw)?;
        list.remove(place).ok()
    }
}

struct Client(UnsafeCell<rdma::ib_client>);

// SAFETY: Written by ib_core alone, under its own locks.
unsafe impl Sync for Client {}

static CLIENT: Client = {
    // SAFETY: All-zero is a valid `struct ib_client`.
    let mut client: rdma::ib_client = unsafe { core::mem::zeroed() };
    client.name = c"ib_cm_apm".as_ptr().cast();
    client.add = Some(on_add);
    client.remove = Some(on_remove);
    Client(UnsafeCell::new(client))
};

/// The registration as a client of ib_core; dropping it lets go of all devices.
pub(crate) struct ClientRegistration(());

impl ClientRegistration {
    /// Registers. [`Service::current`] is there before and stays until this was dropped.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: A static, registered once at a time.
        to_result(unsafe { rdma::ib_register_client(CLIENT.0.get()) })?;
        Ok(Self(()))
    }
}

impl Drop for ClientRegistration {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`. Calls `on_remove` for each device.
        unsafe { rdma::ib_unregister_client(CLIENT.0.get()) };
    }
}

/// # Safety
///
/// Called by ib_core for a device that is registered until `on_remove` has returned.
unsafe extern "C" fn on_add(dev: *mut rdma::ib_device) -> c_int {
    // SAFETY: A callback of the client, whose registration ends before the service does.
    let Some(service) = (unsafe { Service::current() }) else {
        return 0;
    };
    // SAFETY: As ib_core promises.
    match unsafe { add(service, dev) } {
        Ok(()) => {}
        Err(e) => {
            // SAFETY: As above.
            let name = unsafe { device_name(dev) };
            pr_err!("{name}: not served: {e:?}\n");
        }
    }
    0
}

/// # Safety
///
/// As for [`on_add`].
unsafe fn add(service: &Service, dev: *mut rdma::ib_device) -> Result {
    let mut ports = KVec::new();
    // SAFETY: `dev` is registered until `on_remove` has returned, which cancels all agents.
    unsafe {
        for num in 1..=(*dev).phys_port_cnt {
            if is_infiniband(dev, num) {
                let sa = KBox::try_pin_init(Agent::new(dev, num)?, GFP_KERNEL)?;
                let cm = KBox::try_pin_init(Sender::new(dev, num)?, GFP_KERNEL)?;
                let port = Port {
                    num,
                    cm,
                    sa,
                    active: Atomic::new(is_active(dev, num)),
                    silent: Atomic::new(false),
                };
                ports.push(port, GFP_KERNEL)?;
            }
        }
    }
    if ports.is_empty() {
        // Known all the same, so that its connections can be shown with its name.
        stats::count(Stat::DevicesNotIb);
    }
    let device = Arc::pin_init(
        pin_init!(Device {
            raw: dev,
            ports,
            logged: Atomic::new(false),
            asking <- new_mutex!(()),
            gate <- Gate::new(),
            events: UnsafeCell::new(rdma::ib_event_handler {
                device: dev,
                handler: Some(on_event),
                ..Default::default()
            }),
        }),
        GFP_KERNEL,
    )?;
    service.devices.add(device.clone())?;
    // SAFETY: The handler lies in `device`, which `on_remove` keeps until it is unregistered. The
    // client data only tells ib_core that there is something to remove.
    unsafe {
        rdma::ib_register_event_handler(device.events.get());
        rdma::ib_set_client_data(dev, CLIENT.0.get(), Arc::as_ptr(&device).cast_mut().cast());
    }
    // Events before the registration were missed.
    device.ask_ports();
    Ok(())
}

/// # Safety
///
/// Called by ib_core, before the device goes and before the ULPs' clients hear of it.
unsafe extern "C" fn on_remove(dev: *mut rdma::ib_device, _data: *mut c_void) {
    // SAFETY: As in `on_add`.
    let Some(service) = (unsafe { Service::current() }) else {
        return;
    };
    let Some(device) = service.devices.remove(dev) else {
        return;
    };
    // SAFETY: Registered by `add`. No handler runs any more when this returns.
    unsafe { rdma::ib_unregister_event_handler(device.events.get()) };
    service.forget_answers(dev);
    service.table.forget_device(dev);
    for port in &device.ports {
        port.sa.cancel();
        port.cm.cancel();
    }
    device.gate.close();
}

/// # Safety
///
/// Called by ib_core for a device whose handler is registered. Process context.
unsafe extern "C" fn on_event(_handler: *mut rdma::ib_event_handler, event: *mut rdma::ib_event) {
    // SAFETY: Handlers are unregistered before the service goes.
    let Some(service) = (unsafe { Service::current() }) else {
        return;
    };
    // SAFETY: `event` is valid during the call.
    let (dev, kind) = unsafe { ((*event).device, (*event).event) };
    match kind {
        rdma::ib_event_type_IB_EVENT_PORT_ERR
        | rdma::ib_event_type_IB_EVENT_PORT_ACTIVE
        | rdma::ib_event_type_IB_EVENT_LID_CHANGE
        | rdma::ib_event_type_IB_EVENT_PKEY_CHANGE
        | rdma::ib_event_type_IB_EVENT_GID_CHANGE
        | rdma::ib_event_type_IB_EVENT_SM_CHANGE
        | rdma::ib_event_type_IB_EVENT_CLIENT_REREGISTER => {
            stats::count(Stat::PortEvents);
            // What was found before may be wrong now. Ports are read anew at each search: what the
            // event says of them may already be out of date.
            service.forget_answers(dev);
            if let Some(device) = service.devices.enter(dev) {
                device.ask_ports();
                for port in &device.ports {
                    port.silent.xchg(false, Full);
                }
                service.kick(&device);
            }
        }
        _ => {}
    }
}
