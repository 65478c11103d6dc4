//! Devices: named ones, and those that are chosen by an address.

use std::ffi::{c_char, c_int, c_uint};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use library::link::Spec;
use library::net::limits::{MESSAGE_MAX, RING_MAX, RING_MIN};
use library::net::{Config, Endpoint};
use library::rdma_nic::RdmaNic;

use super::call::{call, done};
use super::error::{Code, Failure};
use super::handles::{self, Handle};
use super::pointer::{put_text, text};

/// Number of retransmissions before a peer is lost, at most.
const RETRIES_MAX: u8 = 7;

/// A device, and the options of the connections on it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// `None` if it is chosen by an address.
    endpoint: Option<Endpoint>,
    config: Mutex<Config>,
}

impl Device {
    /// Returns the device of a handle; zero is one that is chosen by an address.
    pub(crate) fn of(handle: Handle) -> Result<Arc<Self>, Failure> {
        if handle == 0 { Ok(Arc::default()) } else { handles::get(handle) }
    }

    pub(crate) fn config(&self) -> Config {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device, unless it is chosen by an address.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        self.endpoint.clone()
    }

    fn set(&self, option: c_int, value: u64) -> Result<(), Failure> {
        let wrong = || Failure::invalid(format_args!("option {option} cannot be {value}"));
        let count = usize::try_from(value).map_err(|_| wrong())?;
        let time = Duration::from_millis(value);
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        *config = match option {
            1 if (RING_MIN..=RING_MAX).contains(&count) => config.ring(count),
            2 if (1..=MESSAGE_MAX).contains(&value) => config.message_max(value),
            3 if value > 0 => config.keepalive(time),
            4 => {
                let retries = u8::try_from(value).ok().filter(|count| *count <= RETRIES_MAX);
                config.retries(retries.ok_or_else(wrong)?)
            }
            5 => config.linger(time),
            _ => return Err(wrong()),
        };
        Ok(())
    }
}

/// Returns the address that a string of the program names.
pub(crate) fn address(pointer: *const c_char) -> Result<SocketAddr, Failure> {
    let text = text(pointer)?;
    let wrong = |why: String| Failure::new(Code::Address, format_args!("{text}: {why}"));
    let mut found = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("no address has this name".to_owned()))
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_open(name: *const c_char) -> Handle {
    call(|| {
        let endpoint = if name.is_null() {
            None
        } else {
            let name = text(name)?;
            Some(Endpoint::open(&name)?)
        };
        handles::insert(Arc::new(Device { endpoint, config: Mutex::default() }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_device_name(index: c_uint, buf: *mut c_char, len: usize) -> c_int {
    call(|| {
        let soft = Spec::of_every_interface()?.into_iter().map(|spec| spec.to_string());
        // Without libibverbs there are none.
        let real = RdmaNic::list().unwrap_or_default();
        let mut names = soft.chain(real.into_iter().map(|info| format!("verbs:{}", info.name)));
        let name = names.nth(index as usize);
        let none = || Failure::new(Code::NotFound, format_args!("there is no device {index}"));
        put_text(&name.ok_or_else(none)?, buf, len)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_set(device: Handle, option: c_int, value: u64) -> c_int {
    done(|| handles::get::<Device>(device)?.set(option, value))
}
