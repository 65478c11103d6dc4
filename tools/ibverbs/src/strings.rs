//! Names of numbers.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::LazyLock;

use roce::verbs::{EventType, NodeType, PortState, WcStatus};

/// Text for an unknown number.
const UNKNOWN: &std::ffi::CStr = c"unknown";

/// The texts of an enumeration, by number, for C.
type Texts = LazyLock<Vec<(u32, CString)>>;

fn text(texts: &Texts, code: u32) -> *const c_char {
    let found = texts.iter().find(|(known, _)| *known == code);
    found.map_or(UNKNOWN.as_ptr(), |(_, text)| text.as_ptr())
}

macro_rules! texts {
    ($($(#[$doc:meta])* $function:ident($type:ty) of $enum:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            extern "C" fn $function(number: $type) -> *const c_char {
                text(texts::$enum(), u32::from_ne_bytes(number.to_ne_bytes()))
            }
        )*

        /// Makes all texts, unless they are there.
        pub(crate) fn make() {
            $(LazyLock::force(texts::$enum());)*
        }

        /// The texts of each enumeration, which are made when they are first asked for.
        #[expect(non_snake_case, reason = "each has the name of its enumeration")]
        mod texts {
            use super::*;

            $(pub(super) fn $enum() -> &'static Texts {
                static TEXTS: Texts = LazyLock::new(|| {
                    let all = super::$enum::ALL.iter();
                    all.map(|value| (value.code(), CString::new(value.text()).unwrap_or_default())).collect()
                });
                &TEXTS
            })*
        }
    };
}

texts! {
    /// Text of a completion status.
    ibv_wc_status_str(c_uint) of WcStatus;
    /// Text of an event type.
    ibv_event_type_str(c_uint) of EventType;
    /// Text of a node type.
    ibv_node_type_str(c_int) of NodeType;
    /// Text of a port state.
    ibv_port_state_str(c_uint) of PortState;
}
