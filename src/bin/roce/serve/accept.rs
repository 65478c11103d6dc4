//! Accepting clients: nothing that a client does, and no shortage, ends the server.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use anyhow::Context;
use roce::control::tcp::close_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Server;
use crate::output::remark;

/// Interval at which a thread checks whether it is time to end.
const ROUND: Duration = Duration::from_millis(100);

/// The stack of a thread that serves a client.
const STACK_BYTES: usize = 512 << 10;

impl Server {
    /// Takes clients until it is stopped, and waits for those that are being served if it need not
    /// stop.
    pub(super) fn accept_until(
        &self,
        listeners: &[TcpListener],
        stopped: &AtomicBool,
    ) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let done = || {
                let once = self.settings.once && self.served.load(Ordering::SeqCst) > 0;
                once || stopped.load(Ordering::SeqCst)
            };
            let mut short = false;
            while !done() {
                for listener in readable(listeners)? {
                    if !self.admission.wait_for_room(ROUND) {
                        continue;
                    }
                    match listener.accept() {
                        Ok((stream, address)) => {
                            short = false;
                            self.take(scope, stream, address.ip().to_canonical());
                        }
                        Err(error) if is_shortage(&error) => {
                            // The client waits in the backlog until another one has ended.
                            if !short {
                                remark(&format!("cannot accept clients for now: {error}"));
                            }
                            short = true;
                            thread::sleep(ROUND);
                        }
                        Err(error) if is_broken(&error) => {
                            return Err(error).context("cannot accept clients");
                        }
                        Err(_) => {}
                    }
                }
            }
            let busy = self.admission.in_all().clients;
            if busy > 0 && stopped.load(Ordering::SeqCst) {
                // They see the connection close.
                remark(&format!("stopped while serving {busy}"));
                std::process::exit(0);
            }
            Ok(())
        })
    }

    /// Serves a client in a thread of its own, or tells it why not.
    fn take<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        stream: TcpStream,
        address: IpAddr,
    ) {
        let stream = Arc::new(stream);
        let refused = match self.admission.enter(address, close_of(&stream)) {
            Err(error) => {
                let error = error.into();
                self.refuse(&stream, &error);
                Err(error)
            }
            Ok(ticket) => {
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let spawned =
                    thread.spawn_scoped(scope, move || self.serve(stream, address, ticket));
                spawned.map(drop).context("cannot start a thread")
            }
        };
        if let Err(error) = refused {
            remark(&format!("{address}: refused: {error:#}"));
        }
    }
}

/// Waits for clients, but not long; returns the listeners that have one.
fn readable(listeners: &[TcpListener]) -> io::Result<Vec<&TcpListener>> {
    let mut fds: Vec<PollFd<'_>> =
        listeners.iter().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)).collect();
    let timeout = Timespec::try_from(ROUND).ok();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready = fds.iter().zip(listeners).filter(|(fd, _)| !fd.revents().is_empty());
    Ok(ready.map(|(_, listener)| listener).collect())
}

/// Whether the system lacks something that it will have again: descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| short.contains(&code))
}

/// Whether the listener itself can never accept again. All other errors are those of one client.
fn is_broken(error: &io::Error) -> bool {
    let broken = [libc::EBADF, libc::EINVAL, libc::ENOTSOCK, libc::EOPNOTSUPP, libc::EFAULT];
    error.raw_os_error().is_some_and(|code| broken.contains(&code))
}
