//! The end of the process: connections that the program left open deliver what was sent.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

use super::connection::Connection;
use super::error::{Code, Failure};
use super::{handles, snow};

/// Number of connections that are closed at the same time.
const TOGETHER: usize = 64;

unsafe extern "C" {
    fn atexit(call: extern "C" fn()) -> c_int;
}

/// Whether [`close_all`] is registered. A child that the process forks has inherited that.
static IS_REGISTERED: Mutex<bool> = Mutex::new(false);

/// Has open connections closed when the process exits.
pub(crate) fn register() -> Result<(), Failure> {
    let mut is_registered = IS_REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the function does not unwind, and stays where it is as long as the library is loaded.
    if !*is_registered && unsafe { atexit(close_all) } != 0 {
        return Err(Failure::new(Code::NoMemory, "no function can be added to those at exit"));
    }
    *is_registered = true;
    Ok(())
}

/// Closes all connections. Their objects stay: a callback of the program may have called `exit`,
/// and waits for this.
extern "C" fn close_all() {
    let _ = catch_unwind(|| {
        let mut open = handles::all::<Connection>();
        let snow = handles::all::<snow::RdmaConn>();
        open.extend(snow.iter().filter_map(|conn| conn.connection().ok()));
        for connections in open.chunks(TOGETHER) {
            // At the same time: the slowest decides.
            std::thread::scope(|scope| {
                for connection in connections {
                    let close = || drop(connection.close());
                    let _ = std::thread::Builder::new().spawn_scoped(scope, close);
                }
            });
        }
    });
}
