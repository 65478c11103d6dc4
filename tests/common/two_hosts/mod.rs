//! Two hosts, A and B, with an engine each, a switch between them, and faults on either link,
//! under virtual time.
//!
//! A test says what is posted and when ([`schedule`]), how the queue pairs are connected
//! ([`pair`]), which faults a packet meets and what is to be noted about it ([`world::World`]).
//! It owns every packet ([`wire`]) and sees it at three points: at A, at the switch and at B.

pub mod frames;
pub mod pair;
pub mod schedule;
pub mod wire;
pub mod world;
