//! Error numbers of C functions. They are those of Linux, because `libibverbs` exists only there.

use core::fmt;

/// An error number, positive, as the functions of `libibverbs` return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Returns the name, or `None` for a number that verbs do not report.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    /// Operation not permitted.
    EPERM = 1;
    /// No such object.
    ENOENT = 2;
    /// The device has failed.
    EIO = 5;
    /// Resource temporarily unavailable.
    EAGAIN = 11;
    /// A queue, or a table, is full.
    ENOMEM = 12;
    /// The access rights do not allow it.
    EACCES = 13;
    /// The object is still in use.
    EBUSY = 16;
    /// No such device.
    ENODEV = 19;
    /// The request makes no sense.
    EINVAL = 22;
    /// The device has no such verb.
    ENOSYS = 38;
    /// The device does not support the operation.
    EOPNOTSUPP = 95;
    /// The address is in use.
    EADDRINUSE = 98;
    /// The address is not available.
    EADDRNOTAVAIL = 99;
    /// No route to the network.
    ENETUNREACH = 101;
    /// Already connected.
    EISCONN = 106;
    /// Timed out.
    ETIMEDOUT = 110;
    /// The peer refused.
    ECONNREFUSED = 111;
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}
