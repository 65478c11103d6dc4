//! Asynchronous events of a device: `ibv_event_type`.

use super::codes::codes;
use super::{CqHandle, QpHandle, SrqHandle};

codes! {
    /// Kind of an asynchronous event: `ibv_event_type`.
    EventType, "IBV_EVENT_" {
        /// A completion queue ran over.
        CqErr = 0, "CQ_ERR", "CQ error";
        /// A queue pair failed and is in error now.
        QpFatal = 1, "QP_FATAL", "local work queue catastrophic error";
        /// A responder got an invalid request that no receive work request can report.
        QpReqErr = 2, "QP_REQ_ERR", "invalid request local work queue error";
        /// A responder got a request for memory it may not reach, that no receive work request can
        /// report.
        QpAccessErr = 3, "QP_ACCESS_ERR", "local access violation work queue error";
        /// The first packet came while the queue pair was ready to receive only.
        CommEst = 4, "COMM_EST", "communication established";
        /// A send queue has no message left that was begun.
        SqDrained = 5, "SQ_DRAINED", "send queue drained";
        /// A connection moved to its alternate path.
        PathMig = 6, "PATH_MIG", "path migrated";
        /// A connection could not move to its alternate path.
        PathMigErr = 7, "PATH_MIG_ERR", "path migration request error";
        /// The device broke down.
        DeviceFatal = 8, "DEVICE_FATAL", "local catastrophic error";
        /// A link came up.
        PortActive = 9, "PORT_ACTIVE", "port active";
        /// A link went down.
        PortErr = 10, "PORT_ERR", "port error";
        /// A port has another local identifier.
        LidChange = 11, "LID_CHANGE", "LID change";
        /// A port's table of partition keys changed.
        PkeyChange = 12, "PKEY_CHANGE", "P_Key change";
        /// A port has another subnet manager.
        SmChange = 13, "SM_CHANGE", "SM change";
        /// A shared receive queue failed.
        SrqErr = 14, "SRQ_ERR", "SRQ catastrophic error";
        /// A shared receive queue holds fewer work requests than its limit.
        SrqLimitReached = 15, "SRQ_LIMIT_REACHED", "SRQ limit reached";
        /// A queue pair in error will take nothing more from its shared receive queue.
        QpLastWqeReached = 16, "QP_LAST_WQE_REACHED", "last WQE reached";
        /// The subnet manager asks for all registrations anew.
        ClientReregister = 17, "CLIENT_REREGISTER", "client reregistration";
        /// A port's table of global identifiers changed.
        GidChange = 18, "GID_CHANGE", "GID table change";
        /// A work queue failed.
        WqFatal = 19, "WQ_FATAL", "WQ fatal";
        /// The device became faster or slower.
        DeviceSpeedChange = 20, "DEVICE_SPEED_CHANGE", "device speed change";
    }
}

/// Kind of object that an event concerns, which decides what `ibv_async_event.element` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// A work queue, as raw packet queue pairs have them.
    Wq,
    /// A port.
    Port,
    /// The whole device.
    Device,
}

impl EventType {
    /// Returns the kind of object that the event concerns.
    pub const fn subject(self) -> EventSubject {
        match self {
            Self::CqErr => EventSubject::Cq,
            Self::QpFatal
            | Self::QpReqErr
            | Self::QpAccessErr
            | Self::CommEst
            | Self::SqDrained
            | Self::PathMig
            | Self::PathMigErr
            | Self::QpLastWqeReached => EventSubject::Qp,
            Self::SrqErr | Self::SrqLimitReached => EventSubject::Srq,
            Self::WqFatal => EventSubject::Wq,
            Self::PortActive
            | Self::PortErr
            | Self::LidChange
            | Self::PkeyChange
            | Self::SmChange
            | Self::ClientReregister
            | Self::GidChange => EventSubject::Port,
            Self::DeviceFatal | Self::DeviceSpeedChange => EventSubject::Device,
        }
    }
}

/// An asynchronous event and the object that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Event of a completion queue.
    Cq(EventType, CqHandle),
    /// Event of a queue pair.
    Qp(EventType, QpHandle),
    /// Event of a shared receive queue.
    Srq(EventType, SrqHandle),
    /// Event of the port.
    Port(EventType),
    /// Event of the whole device.
    Device(EventType),
}

impl AsyncEvent {
    /// Returns the kind of event.
    pub const fn event(self) -> EventType {
        match self {
            Self::Cq(event, _)
            | Self::Qp(event, _)
            | Self::Srq(event, _)
            | Self::Port(event)
            | Self::Device(event) => event,
        }
    }
}
