//! Handshake in which both sides of a connection prove themselves before it is used.

use super::counters::Counter;
use super::hello::{Exchange, Hello, Step};
use super::link::{Made, Refusal};
use super::mesh::{Mesh, lock};
use crate::net::{self, Connection, Request};

/// Connects to a server.
pub(super) fn dial(mesh: &Mesh, thread: usize, server: usize, hello: Hello) {
    let made = dial_and_prove(mesh, thread, server, hello);
    let Some(link) = mesh.link(thread, server) else { return };
    match made {
        Ok(made) => {
            let published = lock(&mesh.published);
            publish(&made.pipe, &published);
            lock(link).handle_connected(made, None::<fn(u64) -> Vec<u8>>, mesh.now());
            drop(published);
            mesh.notify(thread);
        }
        Err(net::Error::Refused { private_data }) if private_data == Refusal::Closed.text() => {
            mesh.note_failure(server, "it has left the group".to_owned());
            lock(link).handle_refused(mesh.now());
            mesh.notify(thread);
        }
        Err(error) => fail(mesh, thread, server, &error),
    }
}

fn dial_and_prove(
    mesh: &Mesh,
    thread: usize,
    server: usize,
    hello: Hello,
) -> Result<Made<Connection>, net::Error> {
    let to = mesh.hosts.get(server).expect("a link is to a server of the list");
    let from = mesh.hosts.get(mesh.own).map(|own| own.ip());
    let connection = mesh.endpoint.connect_from(from, to, &hello.emit())?;
    let aborted = Aborted(Some(connection));
    let connection = aborted.get();
    let is_right =
        |it: &Hello| (usize::from(it.server), usize::from(it.thread)) == (server, thread);
    let answer = Hello::parse(connection.private_data()).filter(is_right);
    let answer = answer.ok_or(net::Error::Foreign)?;
    let exchange = exchange(mesh, hello, answer);
    receive(mesh, connection, &exchange, Step::Accepted)?;
    // What is published is for a peer that has proved itself, and is there when it looks.
    publish(connection, &lock(&mesh.published));
    let received =
        lock(mesh.link(thread, server).ok_or(net::Error::Foreign)?).received_of(answer.incarnation);
    send(connection, &exchange.emit(Step::Dialer, received))?;
    let received = receive(mesh, connection, &exchange, Step::Acceptor)?;
    Ok(Made { pipe: aborted.keep(), hello: answer, received })
}

/// Accepts a peer that asks for a connection.
pub(super) fn accept(mesh: &Mesh, request: Request, hello: Hello, answer: Hello) {
    let (server, thread) = (usize::from(hello.server), usize::from(hello.thread));
    let exchange = exchange(mesh, hello, answer);
    let Some(link) = mesh.link(thread, server) else { return };
    match accept_and_prove(mesh, request, &exchange) {
        Ok(made) => {
            let published = lock(&mesh.published);
            publish(&made.pipe, &published);
            let account = |received| exchange.emit(Step::Acceptor, received);
            let mut link = lock(link);
            link.handle_connected(made, Some(account), mesh.now());
            if let Some(connection) = link.pipe() {
                connection.transmit();
            }
        }
        // The link is as it was.
        Err(error) => {
            mesh.count(Counter::Unproven);
            mesh.note_failure(server, error.to_string());
        }
    }
    mesh.notify(thread);
}

fn accept_and_prove(
    mesh: &Mesh,
    request: Request,
    exchange: &Exchange,
) -> Result<Made<Connection>, net::Error> {
    let connection = request.accept_with(&exchange.acceptor.emit())?;
    let aborted = Aborted(Some(connection));
    let connection = aborted.get();
    send(connection, &exchange.emit(Step::Accepted, 0))?;
    let received = receive(mesh, connection, exchange, Step::Dialer)?;
    Ok(Made { pipe: aborted.keep(), hello: exchange.dialer, received })
}

/// A connection could not be made by this side.
pub(super) fn fail(mesh: &Mesh, thread: usize, server: usize, error: &net::Error) {
    mesh.note_failure(server, error.to_string());
    if let Some(link) = mesh.link(thread, server) {
        lock(link).handle_failed(mesh.now());
    }
    mesh.notify(thread);
}

fn exchange(mesh: &Mesh, dialer: Hello, acceptor: Hello) -> Exchange {
    Exchange { secret: mesh.secret.clone(), hosts: mesh.hosts.clone(), dialer, acceptor }
}

fn send(connection: &Connection, message: &[u8]) -> Result<(), net::Error> {
    if !connection.queue_staged(message) {
        return Err(connection.ending().unwrap_or(net::Error::WouldBlock));
    }
    connection.transmit();
    Ok(())
}

/// Receives a message of the exchange, and checks its proof.
fn receive(
    mesh: &Mesh,
    connection: &Connection,
    exchange: &Exchange,
    step: Step,
) -> Result<u64, net::Error> {
    let mut message = Vec::new();
    if !connection.recv_timeout(&mut message, mesh.config.net.connect_timeout)? {
        return Err(net::Error::Closed);
    }
    let unproven = net::Error::Protocol("it has another secret or another list of servers");
    exchange.parse(step, &message).ok_or(unproven)
}

fn publish(connection: &Connection, published: &[(u64, crate::device::MrSlice)]) {
    for (id, memory) in published {
        // A connection that is lost is noticed when it is used.
        let _ = connection.publish(*id, memory);
    }
}

/// A connection that ends without a word unless it is kept.
struct Aborted(Option<Connection>);

impl Aborted {
    fn get(&self) -> &Connection {
        self.0.as_ref().expect("it is there until it is kept")
    }

    fn keep(mut self) -> Connection {
        self.0.take().expect("it is there until it is kept")
    }
}

impl Drop for Aborted {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.abort();
        }
    }
}
