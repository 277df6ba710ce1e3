// SPDX-License-Identifier: GPL-2.0-only

//! What a device and its ports say of themselves.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::bindings as rdma;
use super::name::Name;

/// The name of a device, copied.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn device_name(dev: *mut rdma::ib_device) -> Name {
    // SAFETY: The name is an array in `struct ib_device`, with a NUL at its end.
    unsafe { Name::copy((&raw const (*dev).name).cast()) }
}

/// The module that drives a device; the drivers that the core knows by number go by their number.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn driver_name(dev: *mut rdma::ib_device) -> Name {
    // SAFETY: `dev` is valid; a device's owner outlives it.
    unsafe {
        match (*dev).ops.driver_id {
            rdma::rdma_driver_id_RDMA_DRIVER_MLX5 => Name::from_str("mlx5_ib"),
            rdma::rdma_driver_id_RDMA_DRIVER_MLX4 => Name::from_str("mlx4_ib"),
            rdma::rdma_driver_id_RDMA_DRIVER_MTHCA => Name::from_str("ib_mthca"),
            _ => Name::copy(rdma::apm_driver(dev)),
        }
    }
}

/// Whether the device says that it does path migration.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn has_apm(dev: *mut rdma::ib_device) -> bool {
    // SAFETY: `dev` is valid.
    let flags = unsafe { (*dev).attrs.device_cap_flags };
    flags & rdma::ib_device_cap_flags_IB_DEVICE_AUTO_PATH_MIG as u64 != 0
}

/// Whether a port is ACTIVE now.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(super) unsafe fn is_active(dev: *mut rdma::ib_device, port: u32) -> bool {
    let mut attr = rdma::ib_port_attr::default();
    // SAFETY: By the function's contract.
    let asked = unsafe { rdma::ib_query_port(dev, port, &mut attr) };
    asked == 0 && attr.state == rdma::ib_port_state_IB_PORT_ACTIVE
}

/// Whether a port's link layer is InfiniBand.
///
/// # Safety
///
/// `dev` stays registered during this call and has the port.
pub(super) unsafe fn is_infiniband(dev: *mut rdma::ib_device, port: u32) -> bool {
    // SAFETY: By the function's contract.
    unsafe {
        rdma::rdma_port_get_link_layer(dev, port) == rdma::rdma_link_layer_IB_LINK_LAYER_INFINIBAND
    }
}

/// Whether a device has a port whose link layer is InfiniBand.
///
/// # Safety
///
/// `dev` stays registered during this call.
pub(crate) unsafe fn has_infiniband(dev: *mut rdma::ib_device) -> bool {
    // SAFETY: By the function's contract; the device has these ports.
    unsafe { (1..=(*dev).phys_port_cnt).any(|port| is_infiniband(dev, port)) }
}
