//! Event channels, from which programs read events.

use std::collections::VecDeque;

use super::Manager;
use super::counters::Counter;
use super::disconnect::Destroyed;
use super::error::Error;
use super::event::{Ece, Event, EventKind, EventParam};
use super::state::IdState;
use super::table::{ChannelId, CmId};
use crate::time::Instant;

/// An event channel.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) events: VecDeque<Event>,
    /// Whether it is in the list of those that became readable.
    is_readable: bool,
}

impl Manager {
    /// Creates an event channel.
    pub fn create_channel(&mut self) -> Result<ChannelId, Error> {
        self.channels.insert(Channel::default()).ok_or(Error::Exhausted("channels"))
    }

    /// Closes an event channel, and destroys all of its ids, as the kernel does when the file is
    /// closed or the process ends. Returns the ids, each with what was left of it.
    pub fn close_channel(
        &mut self,
        now: Instant,
        channel: ChannelId,
    ) -> Result<Vec<(CmId, Destroyed)>, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let ids = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let ids: Vec<_> = ids.map(|(name, _)| name).collect();
        // Destroying a listener rejects the requests that its program has not taken.
        let destroyed = ids.into_iter().filter_map(|id| Some((id, self.destroy_id(now, id).ok()?)));
        let destroyed = destroyed.collect();
        self.channels.remove(channel);
        self.readable.retain(|name| *name != channel);
        Ok(destroyed)
    }

    /// Closes all channels, at the end of a process. Peers get the messages that are queued then,
    /// and those that follow if the caller goes on to transmit.
    pub fn shutdown(&mut self, now: Instant) -> Vec<(CmId, Destroyed)> {
        let channels: Vec<_> = self.channels.iter().map(|(name, _)| name).collect();
        let closed =
            channels.into_iter().filter_map(|channel| self.close_channel(now, channel).ok());
        closed.flatten().collect()
    }

    /// Moves an id and its queued events to another channel. Returns the number of its events that
    /// the program has taken.
    pub fn migrate_id(&mut self, id: CmId, channel: ChannelId) -> Result<u32, Error> {
        self.channels.get(channel).ok_or(Error::NotFound("channel"))?;
        let entry = self.ids.get_mut(id).ok_or(Error::NotFound("id"))?;
        let (old, reported) = (entry.channel, entry.events_reported);
        entry.channel = channel;
        if old == channel {
            return Ok(reported);
        }
        let Some(from) = self.channels.get_mut(old) else { return Ok(reported) };
        // Requests go with their listener.
        let moves = |event: &Event| event.listener.unwrap_or(event.id) == id;
        let (moved, kept) = from.events.drain(..).partition::<VecDeque<_>, _>(moves);
        from.events = kept;
        for event in moved {
            if event.listener.is_some()
                && let Some(requested) = self.ids.get_mut(event.id)
            {
                requested.channel = channel;
            }
            self.push(channel, event);
        }
        Ok(reported)
    }

    /// A channel that became readable since it was last returned here, or since its last event was
    /// taken. New ones come with commands, MADs and time.
    #[must_use]
    pub fn poll_readable(&mut self) -> Option<ChannelId> {
        loop {
            let name = self.readable.pop_front()?;
            if let Some(channel) = self.channels.get_mut(name)
                && core::mem::take(&mut channel.is_readable)
                && !channel.events.is_empty()
            {
                return Some(name);
            }
        }
    }

    /// The next event of a channel. New ones come with commands, MADs and time.
    #[must_use]
    pub fn poll_event(&mut self, channel: ChannelId) -> Option<Event> {
        let event = self.channels.get_mut(channel)?.events.pop_front()?;
        if let Some(listener) = event.listener {
            self.leave_backlog(event.id);
            if let Some(listener) = self.ids.get_mut(listener) {
                listener.events_reported += 1;
            }
        } else if let Some(id) = self.ids.get_mut(event.id) {
            id.events_reported += 1;
        }
        Some(event)
    }

    /// Whether a channel has an event.
    pub fn is_readable(&self, channel: ChannelId) -> bool {
        self.channels.get(channel).is_some_and(|channel| !channel.events.is_empty())
    }

    /// Queues an event for an id, if the program knows it already.
    pub(super) fn deliver(&mut self, id: CmId, kind: EventKind, status: i32, param: EventParam) {
        self.deliver_with_ece(id, kind, status, param, Ece::default());
    }

    pub(super) fn deliver_with_ece(
        &mut self,
        id: CmId,
        kind: EventKind,
        status: i32,
        param: EventParam,
        ece: Ece,
    ) {
        let Some(entry) = self.ids.get(id) else { return };
        if !entry.is_reported {
            self.counters.add(Counter::EventBeforeAccept);
            return;
        }
        let (channel, context) = (entry.channel, entry.context);
        self.push(channel, Event { kind, id, listener: None, context, status, param, ece });
    }

    /// Queues an event that only an id in state Connect gets.
    pub(super) fn deliver_connected(
        &mut self,
        id: CmId,
        kind: EventKind,
        status: i32,
        param: EventParam,
    ) {
        if self.id_state(id) == Some(IdState::Connect) {
            self.deliver(id, kind, status, param);
        }
    }

    pub(super) fn push(&mut self, name: ChannelId, event: Event) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.events.push_back(event);
        if !channel.is_readable {
            channel.is_readable = true;
            self.readable.push_back(name);
        }
    }

    /// Whether a command that raises an event finds room for it.
    pub(super) fn require_event_room(&self, id: CmId) -> Result<(), Error> {
        let channel = self.ids.get(id).ok_or(Error::NotFound("id"))?.channel;
        let queued = self.channels.get(channel).map_or(0, |channel| channel.events.len());
        if queued >= self.config.limits.events { Err(Error::Exhausted("events")) } else { Ok(()) }
    }

    /// Removes the request for this id from the backlog of its listener.
    pub(super) fn leave_backlog(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id) else { return };
        let (queued_at, connection) = (entry.queued_at.take(), entry.connection);
        let Some((listener, number)) = queued_at else { return };
        if let Some(listener) = self.ids.get_mut(listener) {
            listener.backlog.queue.remove(number);
        }
        if let Some(connection) = connection {
            self.leave_half_open(connection);
        }
    }
}
