//! Listeners, and the thread that accepts.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::call::call_or;
use super::super::device::Device;
use super::super::error::{Code, Failure};
use super::super::handles::{self, Handle};
use super::super::listener::Listener;
use super::super::pointer::copy_out;
use super::connection::{OnEvent, RdmaConn, Side, address, done};
use super::{ERR, Opaque, handle, pointer};

/// Time between two checks of the thread that accepts whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A listener with the thread that accepts.
#[derive(Debug)]
pub(crate) struct RdmaListener {
    listener: Arc<Listener>,
    state: Mutex<State>,
    is_stopped: Arc<AtomicBool>,
    /// Handles of connections that were accepted and may be open.
    accepted: Arc<Mutex<Vec<Handle>>>,
}

#[derive(Debug, Default)]
struct State {
    on_accept: Option<OnEvent>,
    thread: Option<JoinHandle<()>>,
}

impl RdmaListener {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.thread.is_some() {
            return Err(Failure::invalid("it is started already"));
        }
        self.is_stopped.store(false, Ordering::Relaxed);
        let (listener, stop) = (Arc::clone(&self.listener), Arc::clone(&self.is_stopped));
        let (accepted, on_accept) = (Arc::clone(&self.accepted), state.on_accept);
        let run = move || accept(&listener, &stop, &accepted, on_accept);
        let thread = std::thread::Builder::new().name("roce-accept".to_owned()).spawn(run)?;
        state.thread = Some(thread);
        Ok(())
    }

    /// Stops accepting, and closes the connections.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let thread = self.lock().thread.take();
        // The accept callback may stop its listener.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *accepted);
        drop(accepted);
        for conn in all.into_iter().filter_map(|it| handles::remove_kind::<RdmaConn>(it).ok()) {
            let _ = conn.close();
        }
    }
}

/// Accepts until it is to stop.
fn accept(
    listener: &Listener,
    stop: &AtomicBool,
    accepted: &Mutex<Vec<Handle>>,
    on_accept: Option<OnEvent>,
) {
    while !stop.load(Ordering::Relaxed) {
        let connection = match listener.accept(LOOK) {
            Ok(connection) => connection,
            Err(failure) if failure.code == Code::TimedOut => continue,
            Err(_) => return,
        };
        let Ok((conn, handle)) = RdmaConn::create(Side::Server) else { continue };
        if conn.establish(connection).is_err() {
            let _ = handles::remove(handle);
            continue;
        }
        let mut open = accepted.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|it| handles::get::<RdmaConn>(*it).is_ok());
        open.push(handle);
        drop(open);
        if let Some(call) = on_accept {
            call(pointer(handle));
        }
        let _ = conn.start();
    }
}

/// Returns the listener that a pointer names.
fn get(listener: *mut Opaque) -> Result<Arc<RdmaListener>, Failure> {
    handles::get(handle(listener))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServer(listener: *mut *mut Opaque, ip: *const c_char, port: c_int) -> c_int {
    done(|| {
        // Whether there is room for it is known before it listens.
        copy_out(&0_usize.to_ne_bytes(), listener.cast())?;
        let own = Arc::new(RdmaListener {
            listener: Arc::new(Listener::listen(&Device::default(), address(ip, port)?)?),
            state: Mutex::default(),
            is_stopped: Arc::default(),
            accepted: Arc::default(),
        });
        let handle = handles::insert(own)?;
        copy_out(&pointer(handle).addr().to_ne_bytes(), listener.cast())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerSetAcceptCallback(
    listener: *mut Opaque,
    func: Option<OnEvent>,
) -> c_int {
    done(|| {
        get(listener)?.lock().on_accept = func;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerPort(listener: *mut Opaque) -> c_int {
    call_or(ERR, || Ok(get(listener)?.listener.local_addr()?.port().into()))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerStart(listener: *mut Opaque) -> c_int {
    done(|| get(listener)?.start())
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerStop(listener: *mut Opaque) -> c_int {
    done(|| {
        get(listener)?.stop();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdmaServerRelease(listener: *mut Opaque) {
    done(|| {
        handles::remove_kind::<RdmaListener>(handle(listener))?.stop();
        Ok(())
    });
}
