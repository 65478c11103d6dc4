//! Events of a world of two hosts, in the order of their times.

use roce::engine::Engine;
use roce::time::Instant;

use super::schedule::Schedule;
use super::wire::{Hop, InFlight, Wire};

/// State that every world of two hosts has.
pub struct Net<N> {
    pub now: Instant,
    /// Packets on the way, each with what the test notes about it.
    pub wire: Wire<N>,
    /// Work of the connections, by side.
    pub schedules: Vec<[Schedule; 2]>,
}

impl<N> Net<N> {
    pub fn new(now: Instant) -> Self {
        Self { now, wire: Wire::default(), schedules: Vec::new() }
    }
}

/// Two hosts and what a test does with them.
pub trait World: Sized {
    /// Note of a test about a packet.
    type Note: Clone;

    fn net(&mut self) -> &mut Net<Self::Note>;

    fn engines(&mut self) -> [&mut Engine; 2];

    /// Posts the send of this number, which is due.
    fn post_send(&mut self, connection: usize, side: usize, number: usize);

    /// Posts the receive of this number, which is due.
    fn post_receive(&mut self, connection: usize, side: usize, number: usize);

    /// Takes what the engines send, and completions.
    fn transmit(&mut self);

    /// Returns the end of the pause of a host that has packets to send.
    fn next_transmit(&self) -> Option<Instant> {
        None
    }

    /// Lets happen what is due.
    fn step(&mut self);

    /// A packet is seen at a point: 0 A, 1 the switch, 2 B.
    fn capture(&mut self, point: usize, time: Instant, packet: &InFlight<Self::Note>);

    /// Sends a packet over a hop, with the faults that it meets there.
    fn pass(&mut self, hop: Hop, time: Instant, packet: InFlight<Self::Note>);

    /// Hands a packet to a host.
    fn deliver(&mut self, to: usize, packet: &InFlight<Self::Note>);

    /// Runs until nothing is left to happen. Returns whether that takes at most `steps_max` steps.
    fn run(&mut self, steps_max: usize) -> bool {
        for _ in 0..steps_max {
            self.post();
            self.transmit();
            let Some(next) = self.next() else { return true };
            let now = &mut self.net().now;
            *now = next.max(*now);
            self.step();
        }
        false
    }

    /// Posts what is due.
    fn post(&mut self) {
        for connection in 0..self.net().schedules.len() {
            for side in [0, 1] {
                let now = self.net().now;
                while let Some(number) = self.schedule(connection, side).receives.take(now) {
                    self.post_receive(connection, side, number);
                }
                while let Some(number) = self.schedule(connection, side).sends.take(now) {
                    self.post_send(connection, side, number);
                }
            }
        }
    }

    fn schedule(&mut self, connection: usize, side: usize) -> &mut Schedule {
        &mut self.net().schedules[connection][side]
    }

    /// Returns the time of the next event.
    fn next(&mut self) -> Option<Instant> {
        let [a, b] = self.engines().map(|engine| engine.poll_timeout());
        let transmit = self.next_transmit();
        let Net { now, wire, schedules } = self.net();
        let posts = schedules.iter().flatten();
        let posts = posts.flat_map(|side| [side.sends.next(), side.receives.next()]).flatten();
        let events = [a, b, transmit, wire.next()].into_iter().flatten();
        events.chain(posts.filter(|at| at > now)).min()
    }

    /// Lets the next packet that has arrived go on; whether there was one.
    fn arrive(&mut self) -> bool {
        let Net { now, wire, .. } = self.net();
        let now = *now;
        let Some(packet) = wire.pop(now) else { return false };
        match packet.at {
            None => self.leave(packet),
            Some(1) => {
                self.capture(1, now, &packet);
                self.pass(Hop::second_of(packet.sender), now, packet);
            }
            Some(point) => {
                self.capture(point, now, &packet);
                self.deliver(point / 2, &packet);
            }
        }
        true
    }

    /// A packet leaves its host.
    fn leave(&mut self, packet: InFlight<Self::Note>) {
        let Net { now, wire, .. } = self.net();
        let time = wire.leave(packet.sender, *now, packet.bytes.len());
        self.depart(time, packet);
    }

    /// A packet is on the first link from this time on.
    fn depart(&mut self, time: Instant, packet: InFlight<Self::Note>) {
        self.capture(packet.sender * 2, time, &packet);
        self.pass(Hop::first_of(packet.sender), time, packet);
    }

    /// Tells the engines the time whose timers are due.
    fn handle_timeouts(&mut self) {
        let now = self.net().now;
        for engine in self.engines() {
            if engine.poll_timeout().is_some_and(|at| at <= now) {
                engine.handle_timeout(now);
            }
        }
    }
}
