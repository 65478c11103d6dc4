//! Listeners.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use library::net::{Error, Listener};

use super::call::{ERR, Failure, call, done};
use super::conn::{RdmaConn, address};

/// How often the thread that accepts looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

type OnAccept = extern "C" fn(*mut RdmaConn);

/// What the program has of a listener.
#[derive(Debug)]
pub struct RdmaListener {
    listener: Arc<Listener>,
    state: Mutex<State>,
    is_stopped: Arc<AtomicBool>,
    /// All connections that were accepted: the program may use them until the listener is released.
    connections: Arc<Mutex<Vec<Arc<RdmaConn>>>>,
}

#[derive(Debug, Default)]
struct State {
    on_accept: Option<OnAccept>,
    thread: Option<JoinHandle<()>>,
}

impl RdmaListener {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops accepting, and closes the connections.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let thread = self.lock().thread.take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let all = self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().for_each(|conn| conn.close());
    }
}

/// The listener that a pointer names.
fn get<'a>(listener: *mut RdmaListener) -> Result<&'a RdmaListener, Failure> {
    // SAFETY: the program passes pointers that it got from `rdmaServer`, until it releases them.
    unsafe { listener.as_ref() }.ok_or_else(|| "a listener is needed, not NULL".into())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServer(
    listener: *mut *mut RdmaListener,
    ip: *const c_char,
    port: c_int,
) -> c_int {
    done(|| {
        if listener.is_null() {
            return Err("room for a listener is needed, not NULL".into());
        }
        let own = Box::new(RdmaListener {
            listener: Arc::new(Listener::bind(address(ip, port)?)?),
            state: Mutex::default(),
            is_stopped: Arc::default(),
            connections: Arc::default(),
        });
        // SAFETY: the program passes room for a pointer.
        unsafe { listener.write(Box::into_raw(own)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerSetAcceptCallback(
    listener: *mut RdmaListener,
    func: Option<OnAccept>,
) -> c_int {
    done(|| {
        get(listener)?.lock().on_accept = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerPort(listener: *mut RdmaListener) -> c_int {
    call(ERR, || Ok(get(listener)?.listener.local_addr()?.port().into()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerStart(listener: *mut RdmaListener) -> c_int {
    done(|| {
        let own = get(listener)?;
        let mut state = own.lock();
        if state.thread.is_some() {
            return Err("it is started already".into());
        }
        own.is_stopped.store(false, Ordering::Relaxed);
        let (listener, stop) = (Arc::clone(&own.listener), Arc::clone(&own.is_stopped));
        let (connections, on_accept) = (Arc::clone(&own.connections), state.on_accept);
        let run = move || accept(&listener, &stop, &connections, on_accept);
        let thread = std::thread::Builder::new().name("roce-accept".to_owned()).spawn(run)?;
        state.thread = Some(thread);
        Ok(())
    })
}

/// Accepts until it is to stop.
fn accept(
    listener: &Listener,
    stop: &AtomicBool,
    connections: &Mutex<Vec<Arc<RdmaConn>>>,
    on_accept: Option<OnAccept>,
) {
    while !stop.load(Ordering::Relaxed) {
        let request = match listener.request_timeout(LOOK) {
            Ok(request) => request,
            Err(Error::TimedOut) => continue,
            Err(_) => return,
        };
        let Ok(connection) = request.accept() else { continue };
        let conn = Arc::<RdmaConn>::default();
        if conn.establish(connection).is_err() {
            continue;
        }
        connections.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&conn));
        if let Some(call) = on_accept {
            call(conn.pointer());
        }
        let _ = conn.start();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerStop(listener: *mut RdmaListener) -> c_int {
    done(|| {
        get(listener)?.stop();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerRelease(listener: *mut RdmaListener) {
    done(|| {
        get(listener)?.stop();
        // SAFETY: `rdmaServer` made it, and the program does not use it any more.
        drop(unsafe { Box::from_raw(listener) });
        Ok(())
    });
}
