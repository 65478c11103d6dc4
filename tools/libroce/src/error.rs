//! Error numbers of failures.

use std::ffi::CStr;
use std::fmt::Display;
use std::io;

use library::link::OpenError;
use library::memory::AccessError;
use library::net::Error;
use library::verbs::KeyError;
use library::{cm, connect};

/// Declares the numbers and texts, which `roce.h` has, too.
macro_rules! codes {
    ($($name:ident = $number:literal $text:literal,)*) => {
        /// The kind of a failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $($name = $number,)*
        }

        impl Code {
            /// Returns the text of a number that a call returned.
            pub(crate) fn text_of(number: i32) -> &'static CStr {
                match number {
                    0.. => c"success",
                    $($number => $text,)*
                    _ => c"there is no such error",
                }
            }
        }
    };
}

codes! {
    Invalid = -1 c"an argument is not valid",
    Handle = -2 c"the handle is closed, or is none for this call",
    Fault = -3 c"memory of the program is not mapped",
    Range = -4 c"the bytes are not within the memory",
    TooLong = -5 c"the message is too long",
    TimedOut = -6 c"timed out",
    Closed = -7 c"the peer has closed the connection",
    Finished = -8 c"this side of the connection is finished",
    Lost = -9 c"the connection is lost",
    Protocol = -10 c"the peer does not keep to the protocol",
    Refused = -11 c"the peer refused the connection",
    Foreign = -12 c"the peer is no program of this library",
    Address = -13 c"the address cannot be used",
    InUse = -14 c"another program has the address",
    Device = -15 c"the device cannot be used",
    NotFound = -16 c"there is nothing of this number",
    NoMemory = -17 c"there is no room for more",
    Undelivered = -18 c"closed, but not all messages were delivered",
    System = -19 c"the operating system failed",
    Bug = -20 c"the library has a mistake of its own",
}

impl Code {
    pub(crate) const fn number(self) -> i32 {
        self as i32
    }
}

/// Failure of a call: its number, and a line for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Display) -> Self {
        Self { code, text: text.to_string() }
    }

    pub(crate) fn invalid(text: impl Display) -> Self {
        Self::new(Code::Invalid, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Lost(_) => Code::Lost,
            Error::Protocol(_) => Code::Protocol,
            Error::Closed => Code::Closed,
            Error::Finished => Code::Finished,
            Error::Undelivered { .. } => Code::Undelivered,
            Error::WouldBlock | Error::TimedOut => Code::TimedOut,
            Error::PrivateData { .. } | Error::TooManyParts { .. } => Code::Invalid,
            Error::TooShort { .. } => Code::Range,
            Error::DirectoryFull(_) | Error::Create(_) | Error::Register(KeyError::NoMemory) => {
                Code::NoMemory
            }
            Error::Foreign => Code::Foreign,
            Error::Refused { .. } => Code::Refused,
            Error::Open(OpenError::InUse { .. }) => Code::InUse,
            Error::Spec(_) => Code::Address,
            Error::Open(_) | Error::QueuePair(_) | Error::Register(_) | Error::Post(_) => {
                Code::Device
            }
            Error::Connect(error) => of_connect(error),
            Error::Io(error) => of_io(error),
            _ => Code::System,
        };
        Self::new(code, error)
    }
}

/// Errors of the connection manager.
fn of_connect(error: &connect::Error) -> Code {
    match error {
        connect::Error::Timeout | connect::Error::Unreachable => Code::TimedOut,
        connect::Error::Refused { .. } | connect::Error::Disconnected => Code::Refused,
        connect::Error::Unresolved { .. }
        | connect::Error::Manager(cm::Error::AddressNotAvailable | cm::Error::NoDevice) => {
            Code::Address
        }
        connect::Error::Manager(cm::Error::AddressInUse) => Code::InUse,
        _ => Code::Device,
    }
}

fn of_io(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::TimedOut => Code::TimedOut,
        io::ErrorKind::ConnectionRefused => Code::Refused,
        io::ErrorKind::AddrInUse => Code::InUse,
        io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::NetworkUnreachable => Code::Address,
        io::ErrorKind::OutOfMemory => Code::NoMemory,
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
            Code::Device
        }
        _ => Code::System,
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        let code = match error {
            AccessError::OutOfRange { .. } => Code::Range,
            AccessError::Misaligned => Code::Invalid,
            _ => Code::Fault,
        };
        Self::new(code, error)
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Error::Register(error).into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(of_io(&error), error)
    }
}
